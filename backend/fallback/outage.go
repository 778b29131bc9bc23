package fallback

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Outage is a time in which the fallback decided hits without the primary, with the price of these decisions.
// docs/failure.md explains why MaxExcessHits is an upper bound.
type Outage struct {
	Start time.Time // when the first hit was decided without the primary
	End   time.Time // zero while the outage lasts; for a blip, the time of its last decision

	// Err is the failure that opened the first breaker, or of a later probe. It is nil if no breaker opened.
	Err error

	// Calls is the number of Takes for which the fallback decided a hit. AdmittedCalls is the number of these Takes
	// that were not denied.
	Calls, AdmittedCalls int64

	Decisions     int64                           // the hits that the fallback decided
	ByReason      [len(backend.Reasons) + 1]int64 // the Decisions for each backend.Reason
	AdmittedHits  int64                           // the sum of N of the admitted hits in Takes that may have passed
	MaxExcessHits int64                           // the most hits that this process can have admitted beyond the limits
	ReplayedHits  int64                           // the hits that the replay has charged to the primary
	Limits        []LimitPrice                    // the limit with the highest price comes first

	// CountersKept reports that the primary has certainly kept its counters. It is false while the outage lasts.
	CountersKept bool
}

// LimitPrice is the part of an Outage that concerns one limit.
type LimitPrice struct {
	Rule          string `json:"rule"`  // path of the rule, or OtherRules
	Limit         string `json:"limit"` // the limit in short, such as "10 per minute"
	Decisions     int64  `json:"decisions"`
	AdmittedHits  int64  `json:"admitted_hits"`
	MaxExcessHits int64  `json:"max_excess_hits"`
}

// PriceText names up to three limits with the most excess, such as "shop.path (10 per minute): 12". The limit with the
// highest price must come first in limits.
func PriceText(limits []LimitPrice) string {
	const maxLimits = 3
	var texts []string
	for _, p := range limits[:min(len(limits), maxLimits)] {
		if p.MaxExcessHits > 0 {
			texts = append(texts, fmt.Sprintf("%s (%s): %d", p.Rule, cmp.Or(p.Limit, "several"), p.MaxExcessHits))
		}
	}
	return strings.Join(texts, "; ")
}

// OtherRules is the Rule of the LimitPrice for all limits beyond maxPricedLimits.
const OtherRules = "other"

// Duration returns the length of o until End, or until now while o lasts.
func (o *Outage) Duration() time.Duration {
	if o.End.IsZero() {
		return time.Since(o.Start)
	}
	return o.End.Sub(o.Start)
}

const (
	maxPricedLimits = 1000                // the most limits with a LimitPrice of their own
	maxLimitKeys    = 4 * maxPricedLimits // the most keys of countsOfLimit, because each request can bring a new limit
)

// outageCounts has the counts of an outage, or of a blip.
type outageCounts struct {
	start                time.Time    // the time of the first decision
	lastNanos            atomic.Int64 // the time from start to the last decision, in nanoseconds
	calls, admittedCalls atomic.Int64
	byReason             [len(backend.Reasons) + 1]atomic.Int64
	replayedHits         atomic.Int64
	mayHaveLostCounters  atomic.Bool   // the primary may have lost its counters
	totalExcess          *atomic.Int64 // Limiter.excess

	countsOfLimit sync.Map   // the *limitCounts of a *limit.Limit; most calls find their limit here, and need no mu
	mu            sync.Mutex // guards the fields below
	limitKeyCount int        // the number of keys in countsOfLimit
	countsOfName  map[limitName]*limitCounts
}

type limitName struct{ rule, limit string }

type limitCounts struct {
	decisions, admittedHits, excessHits atomic.Int64
	totalExcess                         *atomic.Int64 // Limiter.excess
}

func (c *limitCounts) addExcess(n int64) {
	c.excessHits.Add(n)
	c.totalExcess.Add(n)
}

// isCallDenied reports whether a denied hit has certainly denied the request. If a hit has an error, it returns false: the
// request fails, and the caller may let it pass.
func isCallDenied(hits []backend.Hit, results []backend.Result) bool {
	isDenied := false
	for i := range results {
		if results[i].Err != nil {
			return false
		}
		isDenied = isDenied || hits[i].DenialDeniesCall && !results[i].Allowed
	}
	return isDenied
}

// recordDecisions adds the decisions of the fallback in one Take to the current counts. If the secondary has admitted a hit
// that the primary has certainly not charged, recordDecisions adds the hit to the log for the replay. The log gets no holds,
// because most holds end soon. If the primary may have charged a hit, settle corrects the counts after the late answer. In a
// denied Take, an admitted hit is charged too, but it has no price.
func (l *Limiter) recordDecisions(hits []backend.Hit, results []backend.Result, failedHits []failedHit) {
	c := l.currentCounts()
	isDenied, isGroupDenied := isCallDenied(hits, results), backend.IsGroupDenied(hits, results)
	isCallAdmitted := !isDenied
	for _, f := range failedHits {
		h, r := &hits[f.index], &results[f.index]
		if r.Err != nil {
			continue
		}
		c.byReason[r.Reason].Add(1)
		counts := c.limitCountsOf(h)
		counts.decisions.Add(1)
		isAdmitted := r.Allowed && (!isGroupDenied || !h.IsInGroup())
		excess := int64(0) // the part of counts.excessHits that h adds
		switch {
		case !isAdmitted:
			isCallAdmitted = isCallAdmitted && h.Shadow
		case h.N > 0:
			if !isDenied {
				if !h.Shadow { // in shadow mode, the limit would have denied no hit
					excess = h.N
				}
				counts.admittedHits.Add(h.N)
				counts.addExcess(excess)
			}
			switch {
			case r.Mode != limit.FailLocal:
			case h.Limit.Algorithm.HasHolds():
				l.recordHold(h)
			case r.Reason == backend.ReasonBreakerOpen:
				l.breakerOf(h).keepForReplay(h, counts, excess)
			case backend.IsNotSent(f.err):
				l.breakerOf(h).chargeLater(h, counts, excess)
			}
		}
		if r.Reason != backend.ReasonBreakerOpen && h.N > 0 {
			if lateError := (*backend.LateError)(nil); errors.As(f.err, &lateError) {
				late := &lateHit{hit: *h, mode: r.Mode, isAdmitted: isAdmitted, excess: excess, chargeEnd: chargeEnd(h, r), counts: counts}
				late.hit.Key = slices.Clone(h.Key)
				lateError.OnArrival(func(answer backend.Result) { l.settle(late, answer) })
			}
		}
	}
	c.lastNanos.Store(int64(time.Since(c.start)))
	c.calls.Add(1)
	if isCallAdmitted {
		c.admittedCalls.Add(1)
	}
}

// limitCountsOf returns the counts of h's limit. After a reload, a limit with the same text keeps its counts.
func (c *outageCounts) limitCountsOf(h *backend.Hit) *limitCounts {
	if knownCounts, ok := c.countsOfLimit.Load(h.Limit); ok {
		return knownCounts.(*limitCounts)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := limitName{h.Rule, h.Limit.String()}
	if c.countsOfName[name] == nil && len(c.countsOfName) >= maxPricedLimits {
		name = limitName{rule: OtherRules}
	}
	counts := c.countsOfName[name]
	if counts == nil {
		counts = &limitCounts{totalExcess: c.totalExcess}
		c.countsOfName[name] = counts
	}
	if c.limitKeyCount < maxLimitKeys {
		c.limitKeyCount++
		c.countsOfLimit.Store(h.Limit, counts)
	}
	return counts
}

// price returns an Outage with the counts, and without End and Err.
func (c *outageCounts) price() Outage {
	o := Outage{Start: c.start, Calls: c.calls.Load(), AdmittedCalls: c.admittedCalls.Load(), ReplayedHits: c.replayedHits.Load()}
	for i := range c.byReason {
		o.ByReason[i] = c.byReason[i].Load()
		o.Decisions += o.ByReason[i]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, counts := range c.countsOfName {
		p := LimitPrice{
			Rule: name.rule, Limit: name.limit,
			Decisions: counts.decisions.Load(), AdmittedHits: counts.admittedHits.Load(), MaxExcessHits: counts.excessHits.Load(),
		}
		o.AdmittedHits += p.AdmittedHits
		o.MaxExcessHits += p.MaxExcessHits
		o.Limits = append(o.Limits, p)
	}
	slices.SortFunc(o.Limits, func(a, b LimitPrice) int {
		return cmp.Or(cmp.Compare(b.MaxExcessHits, a.MaxExcessHits), cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return o
}

// A blip is reported blipReportDelay after its first decision, but at least blipReportPause after the report of another
// blip. If a breaker opens before the report, the blip becomes the start of the outage.
const (
	blipReportDelay = time.Second
	blipReportPause = 10 * time.Second
)

// currentCounts returns the outageCounts of the outage or the blip in progress. If there is none, it starts a blip.
func (l *Limiter) currentCounts() *outageCounts {
	if c := l.counts.Load(); c != nil {
		return c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.currentCountsLocked()
}

// currentCountsLocked is currentCounts for a caller that holds l.mu.
func (l *Limiter) currentCountsLocked() *outageCounts {
	if c := l.counts.Load(); c != nil {
		return c
	}
	now := time.Now()
	c := &outageCounts{start: now, countsOfName: map[limitName]*limitCounts{}, totalExcess: &l.excess}
	l.counts.Store(c)
	if l.ctx.Err() == nil {
		delay := max(blipReportDelay, l.lastBlipReport.Add(blipReportPause).Sub(now))
		l.blipTimer = time.AfterFunc(delay, func() { l.reportBlip(c) })
	}
	return c
}

// reportBlip ends and reports the blip of c, unless c has become an outage.
func (l *Limiter) reportBlip(c *outageCounts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil || l.downShardCount > 0 || l.counts.Load() != c {
		return
	}
	l.counts.Store(nil)
	l.lastBlip, l.lastBlipReport = c.price(), time.Now()
	l.blipCount++
	l.lastBlip.End = c.start.Add(time.Duration(c.lastNanos.Load()))
	l.options.Observer.BlipEnded(l.lastBlip)
}

// Status is a snapshot of a Limiter.
type Status struct {
	Down     bool            // an outage is in progress
	Outage   Outage          // the outage in progress, or else the last outage; Start is zero before the first outage
	Blip     Outage          // the last blip; Start is zero before the first blip
	Blips    int64           // the number of reported blips
	Breakers []BreakerStatus // the breaker of each shard

	// MaxExcessHits is the most hits that this process can have admitted beyond the limits since its start. A
	// late answer and a replay can lower it.
	MaxExcessHits int64
}

// BreakerStatus is a snapshot of a breaker.
type BreakerStatus struct {
	State       BreakerState
	StateStart  time.Time                         // the start of State
	TimeByState [len(breakerStates)]time.Duration // the time spent in each BreakerState
}

// Status returns a snapshot. It does not slow calls.
func (l *Limiter) Status() Status {
	s := Status{Breakers: make([]BreakerStatus, len(l.breakers)), MaxExcessHits: l.excess.Load()}
	for i, b := range l.breakers {
		s.Breakers[i] = b.status()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Down, s.Outage, s.Blip, s.Blips = l.downShardCount > 0, l.lastOutage, l.lastBlip, l.blipCount
	if s.Down {
		s.Outage = l.currentCountsLocked().price()
		s.Outage.Err = l.outageError
	}
	return s
}
