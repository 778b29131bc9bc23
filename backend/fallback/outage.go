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

// Outage is a time in which hits were decided without the primary, and its price. docs/failure.md explains why
// MaxExcessHits is an upper bound.
type Outage struct {
	Start time.Time // first decision without the primary
	End   time.Time // zero while the outage lasts; for a blip, the time of its last decision

	// Err is the failure that opened the first breaker. It is nil if no breaker opened.
	Err error

	// Calls is the number of Takes with a decision without the primary. AdmittedCalls is the number of Takes
	// that no such decision denied.
	Calls, AdmittedCalls int64

	Decisions     int64                           // hits decided without the primary
	ByReason      [len(backend.Reasons) + 1]int64 // Decisions by backend.Reason
	AdmittedHits  int64                           // sum of N of the admitted hits
	MaxExcessHits int64                           // the most hits that this process can have admitted beyond the limits
	Replayed      int64                           // hits that the primary was charged with after the outage
	Limits        []LimitPrice                    // the highest price first

	// CountersKept reports that the primary has kept its counters. It is false while the outage lasts, and if
	// the fallback could not find out.
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

// PriceText names up to three limits with the most hits that can be too many.
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

// OtherRules is the Rule of the LimitPrice that sums the limits beyond maxPricedLimits.
const OtherRules = "other"

// Duration returns the length of o until End, or until now while o lasts.
func (o *Outage) Duration() time.Duration {
	if o.End.IsZero() {
		return time.Since(o.Start)
	}
	return o.End.Sub(o.Start)
}

const (
	maxPricedLimits  = 1000                // limits with their own LimitPrice
	maxTallyPointers = 4 * maxPricedLimits // in tally.byPointer; the limit of a request has a new pointer in each request
)

// tally counts the decisions of an outage, or of a blip.
type tally struct {
	start                time.Time
	lastNanos            atomic.Int64 // time of the last decision after start
	calls, admittedCalls atomic.Int64
	byReason             [len(backend.Reasons) + 1]atomic.Int64
	replayed             atomic.Int64
	countersLost         atomic.Bool   // see Outage.CountersKept
	totalExcess          *atomic.Int64 // of all tallies

	byPointer sync.Map   // *limit.Limit to *limitTally; most calls find their limit here without mu
	mu        sync.Mutex // guards the fields below
	pointers  int        // number of pointers in byPointer
	byName    map[limitName]*limitTally
}

type limitName struct{ rule, limit string }

type limitTally struct {
	decisions, admittedHits, excessHits atomic.Int64
	total                               *atomic.Int64 // the excess of all limits since the start
}

func (t *limitTally) addExcess(n int64) {
	t.excessHits.Add(n)
	t.total.Add(n)
}

// excessOf returns the number of h's hits that can be beyond the limit. A limit in shadow mode admits all hits.
func excessOf(h *backend.Hit) int64 {
	if h.Shadow {
		return 0
	}
	return h.N
}

// record adds the decisions that the fallback made in one Take. It logs hits that the secondary admitted and that
// the primary has certainly not charged, for the replay. Holds are not replayed: most of them end soon, and their
// holders release them here. If the primary may have charged a hit, record waits for the late answer.
func (l *Limiter) record(hits []backend.Hit, results []backend.Result, failed []failedHit) {
	t := l.currentTally()
	isCallAdmitted, isGroupDenied := true, backend.IsGroupDenied(hits, results)
	for _, f := range failed {
		h, r := &hits[f.index], &results[f.index]
		if r.Err != nil {
			continue
		}
		t.byReason[r.Reason].Add(1)
		lt := t.limitTallyOf(h)
		lt.decisions.Add(1)
		isAdmitted := r.Allowed && (!isGroupDenied || !h.InGroup())
		switch {
		case !isAdmitted:
			isCallAdmitted = isCallAdmitted && h.Shadow
		case h.N > 0:
			lt.admittedHits.Add(h.N)
			lt.addExcess(excessOf(h))
			switch {
			case r.Mode != limit.FailLocal:
			case h.Limit.Algorithm.HasHolds():
				l.noteHold(h)
			case r.Reason == backend.ReasonBreakerOpen:
				l.breakerOf(h).log.add(h.Key, pendingCharge{limit: h.Limit, n: h.N, tally: lt, excess: excessOf(h)})
			case backend.IsNotSent(f.err):
				l.breakerOf(h).replayLater(h, lt)
			}
		}
		if r.Reason != backend.ReasonBreakerOpen && h.N > 0 {
			if late := (*backend.LateError)(nil); errors.As(f.err, &late) {
				l.awaitLateAnswer(late, &lateHit{hit: *h, mode: r.Mode, isAdmitted: isAdmitted, chargeEnd: chargeEnd(h, r), tally: lt})
			}
		}
	}
	t.lastNanos.Store(int64(time.Since(t.start)))
	t.calls.Add(1)
	if isCallAdmitted {
		t.admittedCalls.Add(1)
	}
}

// limitTallyOf returns the counts of h's limit. A limit that is reloaded keeps its counts.
func (t *tally) limitTallyOf(h *backend.Hit) *limitTally {
	if known, ok := t.byPointer.Load(h.Limit); ok {
		return known.(*limitTally)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	name := limitName{h.Rule, h.Limit.String()}
	if t.byName[name] == nil && len(t.byName) >= maxPricedLimits {
		name = limitName{rule: OtherRules}
	}
	lt := t.byName[name]
	if lt == nil {
		lt = &limitTally{total: t.totalExcess}
		t.byName[name] = lt
	}
	if t.pointers < maxTallyPointers {
		t.pointers++
		t.byPointer.Store(h.Limit, lt)
	}
	return lt
}

// price returns the sums of t, without the End.
func (t *tally) price() Outage {
	o := Outage{Start: t.start, Calls: t.calls.Load(), AdmittedCalls: t.admittedCalls.Load(), Replayed: t.replayed.Load()}
	for i := range t.byReason {
		o.ByReason[i] = t.byReason[i].Load()
		o.Decisions += o.ByReason[i]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, lt := range t.byName {
		p := LimitPrice{
			Rule: name.rule, Limit: name.limit,
			Decisions: lt.decisions.Load(), AdmittedHits: lt.admittedHits.Load(), MaxExcessHits: lt.excessHits.Load(),
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

// A blip is a short time with decisions without the primary in which no breaker opens. It is reported
// blipReportDelay after its first decision, and at least blipReportPause after the previous report. If a breaker
// opens before the report, the blip is the start of the outage.
const (
	blipReportDelay = time.Second
	blipReportPause = 10 * time.Second
)

// currentTally returns the tally of the outage or the blip in progress. After a quiet time, it starts a blip.
func (l *Limiter) currentTally() *tally {
	if t := l.tally.Load(); t != nil {
		return t
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.currentTallyLocked()
}

// currentTallyLocked is currentTally for a caller that holds l.mu.
func (l *Limiter) currentTallyLocked() *tally {
	if t := l.tally.Load(); t != nil {
		return t
	}
	now := time.Now()
	t := &tally{start: now, byName: map[limitName]*limitTally{}, totalExcess: &l.excess}
	l.tally.Store(t)
	if l.ctx.Err() == nil {
		delay := max(blipReportDelay, l.lastBlipReport.Add(blipReportPause).Sub(now))
		l.blipTimer = time.AfterFunc(delay, func() { l.reportBlip(t) })
	}
	return t
}

// reportBlip ends and reports t, unless t has become an outage.
func (l *Limiter) reportBlip(t *tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil || l.shardsDown > 0 || l.tally.Load() != t {
		return
	}
	l.tally.Store(nil)
	l.lastBlip, l.lastBlipReport = t.price(), time.Now()
	l.lastBlip.End = t.start.Add(time.Duration(t.lastNanos.Load()))
	l.o.Observer.BlipEnded(l.lastBlip)
}

// Status is a snapshot of a Limiter.
type Status struct {
	Down     bool            // an outage is in progress
	Outage   Outage          // in progress, or else the last one; its Start is zero if there was none
	Blip     Outage          // the last blip; its Start is zero if there was none
	Breakers []BreakerStatus // by shard

	// MaxExcessHits is the most hits that this process can have admitted beyond the limits since its start. A
	// late answer and a replay can lower it.
	MaxExcessHits int64
}

// BreakerStatus is a snapshot of a breaker.
type BreakerStatus struct {
	State  BreakerState
	Since  time.Time                         // start of State
	TimeIn [len(breakerStates)]time.Duration // time spent in each BreakerState
}

// Status returns a snapshot. It does not slow calls.
func (l *Limiter) Status() Status {
	s := Status{Breakers: make([]BreakerStatus, len(l.breakers)), MaxExcessHits: l.excess.Load()}
	for i, b := range l.breakers {
		s.Breakers[i] = b.status()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Down, s.Outage, s.Blip = l.shardsDown > 0, l.lastOutage, l.lastBlip
	if s.Down {
		s.Outage = l.currentTallyLocked().price()
		s.Outage.Err = l.downErr
	}
	return s
}
