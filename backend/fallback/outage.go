package fallback

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Outage is a time with decisions without the primary. It includes the price of these decisions. docs/failure.md explains
// why MaxExcessHits is an upper bound.
type Outage struct {
	Start time.Time // when the first hit was decided without the primary
	End   time.Time // zero while the outage lasts; for a blip, when its last hit was decided

	// Err is the failure that opened the first breaker. It is nil if no breaker opened.
	Err error

	// Calls is the number of Takes with a decision without the primary. AdmittedCalls counts these Takes without
	// the Takes that such a decision denied.
	Calls, AdmittedCalls int64

	Decisions     int64                           // hits decided without the primary
	ByReason      [len(backend.Reasons) + 1]int64 // the Decisions for each backend.Reason
	AdmittedHits  int64                           // the sum of N of the admitted hits
	MaxExcessHits int64                           // the most hits that this process can have admitted beyond the limits
	Replayed      int64                           // the hits that the replay has charged to the primary
	Limits        []LimitPrice                    // the limit with the highest price comes first

	// CountersKept reports that the primary has kept its counters. It is false while the outage lasts, and if
	// the fallback does not know.
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
	maxPricedLimits  = 1000                // limits with their own LimitPrice
	maxTallyPointers = 4 * maxPricedLimits // the size of tally.byPointer; each request with a limit in it adds a pointer
)

// tally counts the decisions of an outage, or of a blip.
type tally struct {
	start                time.Time
	lastNanos            atomic.Int64 // the time from start to the last decision
	calls, admittedCalls atomic.Int64
	byReason             [len(backend.Reasons) + 1]atomic.Int64
	replayed             atomic.Int64
	countersLost         atomic.Bool   // see Outage.CountersKept
	totalExcess          *atomic.Int64 // the excess of all tallies

	byPointer sync.Map   // *limitTally; the key is a *limit.Limit, and most calls find their limit here without mu
	mu        sync.Mutex // guards the fields below
	pointers  int        // the number of keys in byPointer
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

// excessOf returns how many of h's hits can be beyond the limit. In shadow mode, no hit is beyond the limit.
func excessOf(h *backend.Hit) int64 {
	if h.Shadow {
		return 0
	}
	return h.N
}

// record adds the decisions of the fallback in one Take to the tally. If the secondary admitted a hit and the primary has
// certainly not charged it, record adds the hit to the log for the replay. The replay leaves out holds: most holds end
// soon, and their holders release them here. If the primary may have charged a hit, the late answer settles the hit.
func (l *Limiter) record(hits []backend.Hit, results []backend.Result, failedHits []failedHit) {
	t := l.currentTally()
	isCallAdmitted, isGroupDenied := true, backend.IsGroupDenied(hits, results)
	for _, f := range failedHits {
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
			if lateError := (*backend.LateError)(nil); errors.As(f.err, &lateError) {
				l.awaitLateAnswer(lateError, &lateHit{hit: *h, mode: r.Mode, isAdmitted: isAdmitted, chargeEnd: chargeEnd(h, r), tally: lt})
			}
		}
	}
	t.lastNanos.Store(int64(time.Since(t.start)))
	t.calls.Add(1)
	if isCallAdmitted {
		t.admittedCalls.Add(1)
	}
}

// limitTallyOf returns the counts of h's limit. A reloaded limit keeps its counts.
func (t *tally) limitTallyOf(h *backend.Hit) *limitTally {
	if knownTally, ok := t.byPointer.Load(h.Limit); ok {
		return knownTally.(*limitTally)
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

// price returns t as an Outage without End.
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

// A blip is a short time with decisions without the primary in which no breaker opens. The report comes blipReportDelay
// after the first decision of the blip, and at least blipReportPause after the previous report. If a breaker opens before
// the report, the blip is the start of the outage.
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

// reportBlip ends and reports the blip of t, unless t has become an outage.
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
	Outage   Outage          // the outage in progress, or else the last outage; Start is zero before the first outage
	Blip     Outage          // the last blip; Start is zero before the first blip
	Breakers []BreakerStatus // the breaker of each shard

	// MaxExcessHits is the most hits that this process can have admitted beyond the limits since its start. A
	// late answer and a replay can lower it.
	MaxExcessHits int64
}

// BreakerStatus is a snapshot of a breaker.
type BreakerStatus struct {
	State       BreakerState
	Since       time.Time                         // the start of State
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
	s.Down, s.Outage, s.Blip = l.shardsDown > 0, l.lastOutage, l.lastBlip
	if s.Down {
		s.Outage = l.currentTallyLocked().price()
		s.Outage.Err = l.outageError
	}
	return s
}
