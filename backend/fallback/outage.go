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

// Outage is a time in which hits were decided without the primary, and its price: the calls and
// hits that were admitted. docs/failure.md explains why MaxExcessHits is an upper bound.
type Outage struct {
	Start time.Time // first decision without the primary
	End   time.Time // zero while the outage lasts; for a blip, the time of its last decision

	// Err is the failure that opened the first breaker. It is nil if no breaker opened.
	Err error

	// Calls is the number of calls of Take with a decision without the primary. AdmittedCalls
	// is the number of these calls that no such decision denied.
	Calls, AdmittedCalls int64

	// Decisions is the number of hits decided without the primary. ByReason has the number
	// for each backend.Reason.
	Decisions int64
	ByReason  [len(backend.Reasons) + 1]int64

	// AdmittedHits is the sum of N of the admitted hits.
	AdmittedHits int64

	// MaxExcessHits is the most hits that this process can have admitted beyond the limits.
	MaxExcessHits int64

	// Replayed is the number of hits that the primary was charged with after the outage.
	Replayed int64

	// CountersKept reports that the primary has kept its counters. CountersKept is false while
	// the outage lasts, and if the fallback could not find out.
	CountersKept bool

	// Limits has the price of each limit, the highest price first.
	Limits []LimitPrice
}

// LimitPrice is the part of an Outage that concerns one limit.
type LimitPrice struct {
	Rule          string `json:"rule"`  // path of the rule, or OtherRules
	Limit         string `json:"limit"` // the limit in short, such as "10 per minute"
	Decisions     int64  `json:"decisions"`
	AdmittedHits  int64  `json:"admitted_hits"`
	MaxExcessHits int64  `json:"max_excess_hits"`
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
	// maxPricedLimits is the maximum number of limits with their own LimitPrice.
	maxPricedLimits = 1000

	// maxTallyPointers bounds the memory of tally.byPointer. A limit that is part of a
	// request has a new pointer in each request.
	maxTallyPointers = 4 * maxPricedLimits
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

// limitName names a limit in reports.
type limitName struct{ rule, limit string }

// limitTally counts the decisions about one limit.
type limitTally struct {
	decisions, admittedHits, excessHits atomic.Int64
	total                               *atomic.Int64 // the excess of all limits since the start
}

// addExcess adds n hits to the excess.
func (t *limitTally) addExcess(n int64) {
	t.excessHits.Add(n)
	t.total.Add(n)
}

// excessOf returns the number of h's hits that can be beyond the limit. A limit in shadow mode
// admits all hits anyway.
func excessOf(h *backend.Hit) int64 {
	if h.Shadow {
		return 0
	}
	return h.N
}

// record adds the decisions that the fallback made in one Take. Hits that the secondary
// admitted are logged for the replay if the primary has certainly not charged them, except for
// hits with holds: most of these holds end soon, and their holders release them here. If the
// primary may have charged a hit, record waits for the late answer.
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

// price returns the sums of tallies, without the End. At most maxPricedLimits limits have their own LimitPrice.
func price(tallies ...*tally) Outage {
	o, others := Outage{Start: tallies[0].start}, limitName{rule: OtherRules}
	prices := map[limitName]*LimitPrice{others: {Rule: OtherRules}}
	for _, t := range tallies {
		o.Calls += t.calls.Load()
		o.AdmittedCalls += t.admittedCalls.Load()
		o.Replayed += t.replayed.Load()
		for i := range t.byReason {
			o.ByReason[i] += t.byReason[i].Load()
		}
		t.mu.Lock()
		for name, lt := range t.byName {
			p := prices[name]
			switch {
			case p == nil && len(prices) > maxPricedLimits:
				p = prices[others]
			case p == nil:
				p = &LimitPrice{Rule: name.rule, Limit: name.limit}
				prices[name] = p
			}
			p.Decisions += lt.decisions.Load()
			p.AdmittedHits += lt.admittedHits.Load()
			p.MaxExcessHits += lt.excessHits.Load()
		}
		t.mu.Unlock()
	}
	for _, n := range o.ByReason {
		o.Decisions += n
	}
	for _, p := range prices {
		o.AdmittedHits += p.AdmittedHits
		o.MaxExcessHits += p.MaxExcessHits
		if p.Decisions > 0 {
			o.Limits = append(o.Limits, *p)
		}
	}
	slices.SortFunc(o.Limits, func(a, b LimitPrice) int {
		return cmp.Or(cmp.Compare(b.MaxExcessHits, a.MaxExcessHits), cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	return o
}

// A blip is a short time with decisions without the primary in which no breaker opens. A blip
// is reported blipReportDelay after its first decision, and at least blipReportPause after the
// previous report.
const (
	blipReportDelay = time.Second
	blipReportPause = 10 * time.Second
)

// currentTally returns the tally of the outage or the blip in progress. Its first use after
// a quiet time starts a blip.
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
		if l.blipTimer == nil {
			l.blipTimer = time.AfterFunc(delay, l.reportBlip)
		}
	}
	return t
}

// endBlip ends a blip that has lasted blipReportDelay, so that an outage that starts now does
// not contain this blip. The blip waits for its report. endBlip is called at the first failure
// of a breaker.
func (l *Limiter) endBlip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tally.Load(); t != nil && l.shardsDown == 0 && time.Since(t.start) >= blipReportDelay {
		l.addToUnreportedBlip(t)
	}
}

// addToUnreportedBlip adds t to the blips without a report, and ends t. The caller holds l.mu.
func (l *Limiter) addToUnreportedBlip(t *tally) {
	l.tally.Store(nil)
	l.unreportedBlips = append(l.unreportedBlips, t)
}

// reportBlip reports the blips since the last report. A tally that has become an outage is
// not a blip.
func (l *Limiter) reportBlip() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blipTimer = nil
	if l.ctx.Err() != nil {
		return
	}
	if t := l.tally.Load(); t != nil && l.shardsDown == 0 {
		l.addToUnreportedBlip(t)
	}
	if len(l.unreportedBlips) == 0 {
		return
	}
	last := l.unreportedBlips[len(l.unreportedBlips)-1]
	l.lastBlip = price(l.unreportedBlips...)
	l.lastBlip.End = last.start.Add(time.Duration(last.lastNanos.Load()))
	l.unreportedBlips, l.lastBlipReport = nil, time.Now()
	l.o.Observer.BlipEnded(l.lastBlip)
}

// Status is a snapshot of a Limiter.
type Status struct {
	// Down reports whether an outage is in progress.
	Down bool

	// Outage is the outage in progress, or else the last outage. Its Start is zero if there
	// was none.
	Outage Outage

	// Blip is the last blip. Its Start is zero if there was none.
	Blip Outage

	// MaxExcessHits is the most hits that this process can have admitted beyond the limits
	// since its start, in outages and in blips. A late answer and a replay can lower it.
	MaxExcessHits int64

	// Breakers has the breaker of each shard.
	Breakers []BreakerStatus
}

// BreakerStatus is a snapshot of a breaker.
type BreakerStatus struct {
	State BreakerState
	Since time.Time // start of State

	// TimeIn is the time that the breaker has spent in each BreakerState.
	TimeIn [len(breakerStates)]time.Duration
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
		s.Outage = price(l.currentTallyLocked())
		s.Outage.Err = l.downErr
	}
	return s
}
