package main

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// isDeniedBy reports whether this source has denied a hit of r on the tight limit.
func (r *callRecord) isDeniedBy(source backend.Source) bool {
	if r.isRefund() || r.err != nil || r.holder != nil {
		return false
	}
	for _, result := range r.tightResults() {
		if result.Err == nil && !result.Allowed && result.Source == source {
			return true
		}
	}
	return false
}

// tightResults returns the answers to the hits on the tight limit.
func (r *callRecord) tightResults() []backend.Result {
	return append([]backend.Result{r.tightResult}, r.otherResults[:min(int(r.hits-1), len(r.otherResults))]...)
}

// lowerLimit returns the limit that admits less of the limits at the start and at the end of the call.
func (r *callRecord) lowerLimit() *tightLimit {
	first, last := &r.limits[0], &r.limits[1]
	if cmp.Or(cmp.Compare(last.capacity, first.capacity), cmp.Compare(last.max, first.max)) < 0 {
		return last
	}
	return first
}

// checkDenials checks that the counter of the tight limit has had no room for a denied call for longer than
// docs/redis.md and docs/failure.md allow. The checks know the counter from the commands that Redis has
// executed. The bounds are:
//
//   - Redis: no time. With one Redis, temporary charges of other calls don't count as spent.
//   - deny cache: a second, and as long again as the denial was right. Temporary charges make no denial
//     right.
//   - fallback: the outage, if the replica has spent its share.
//   - leases: permits that other replicas hold count as spent, for as long as they have hits, and for
//     maxIdleTime after.
//
// Runs that set a clock are checked only if no window ends in the run.
func (c *checks) checkDenials() {
	p := c.plan
	if p.clockSteps > 0 && (p.unit == "second" || p.algorithm != "fixed_window") {
		return
	}
	c.mostSpent = c.redis.history.mostSpent(&c.limit)
	temporary, answers := c.temporaryCharges(), c.redisAnswers()
	withoutRoom := func(r *callRecord, others int64, charges []temporaryCharge) time.Duration {
		return c.redis.history.lastWithoutRoom(r.lowerLimit(), r.hits+others, r.end, charges)
	}
	for _, r := range c.records.calls {
		switch {
		case r.isDeniedBy(backend.SourceRedis):
			charges, others := temporary, c.refundsDuring(r)
			if p.perSecondRedis {
				charges, others = nil, others+c.deniedGroupsDuring(r)
			}
			if last := withoutRoom(r, others, charges); r.start-last > computeTime {
				c.fail("%s: denied by Redis, which had room since %v", r.name(), max(last, 0))
			}
			if r.idlePermits > 0 {
				c.fail("%s: denied while replicas hold %d permits without hits", r.name(), r.idlePermits)
			}
		case r.isDeniedBy(backend.SourceDenyCache):
			last := withoutRoom(r, c.refundsDuring(r), temporary)
			bound := firstDenialSpan + max(last-answers[r.replica].firstDenial(r), 0)
			if r.start-last > bound+computeTime {
				c.fail("%s: denied by the deny cache, though Redis had room since %v, which is longer than %v", r.name(), max(last, 0), bound)
			}
		case r.isDeniedBy(backend.SourceFallback):
			c.checkFallbackDenial(r)
		}
	}
}

// firstDenialSpan is the time for which the deny cache remembers the first denial of a counter.
const firstDenialSpan = time.Second

// redisAnswers are the answers of Redis to one replica about the tight limit.
type redisAnswers struct {
	denials []*callRecord // in order of their ends
	others  []*callRecord // admitted calls and refunds, in order of their ends
}

func (c *checks) redisAnswers() map[*replica]*redisAnswers {
	answers := map[*replica]*redisAnswers{}
	for _, r := range c.replicas {
		answers[r] = &redisAnswers{}
	}
	for _, r := range c.records.calls {
		a := answers[r.replica]
		switch {
		case r.isDeniedBy(backend.SourceRedis):
			a.denials = append(a.denials, r)
		case r.isRefund() || r.isAdmitted() && r.tightResult.Source == backend.SourceRedis:
			a.others = append(a.others, r)
		}
	}
	for _, a := range answers {
		byEnd := func(x, y *callRecord) int { return cmp.Compare(x.end, y.end) }
		slices.SortStableFunc(a.denials, byEnd)
		slices.SortStableFunc(a.others, byEnd)
	}
	return answers
}

// firstDenial returns the start of the first denial by Redis of those that r's replica has got in a row
// before r. If other answers came at the same time, the first denial may have come before them.
func (a *redisAnswers) firstDenial(r *callRecord) time.Duration {
	lastOther := longAgo
	before := sort.Search(len(a.others), func(i int) bool { return a.others[i].end > r.start })
	for _, other := range a.others[:before] {
		lastOther = max(lastOther, other.start)
	}
	first := sort.Search(len(a.denials), func(i int) bool { return a.denials[i].end >= lastOther })
	if first == len(a.denials) {
		return r.start
	}
	return a.denials[first].start
}

// deniedGroupsDuring returns the hits of denied groups that were under way during the call. Two Redis servers
// can have their charges for this time.
func (c *checks) deniedGroupsDuring(call *callRecord) int64 {
	return c.countCalls(func(r *callRecord) bool {
		return r != call && r.start <= call.end && call.start <= r.end && c.isDecidedGroup(r)
	})
}

// refundsDuring returns the refunds that were under way during the call. Hits and refunds in one command
// don't show the states in between.
func (c *checks) refundsDuring(call *callRecord) (n int64) {
	if c.plan.refundShare == 0 {
		return 0
	}
	return c.countCalls(func(r *callRecord) bool { return r.isRefund() && r.start <= call.end && call.start <= r.end })
}

// temporaryCharges returns the charges of the tight counter by calls that were denied because of another
// limit. The call's own counter has a charge at the same time.
func (c *checks) temporaryCharges() (charges []temporaryCharge) {
	if len(c.lossTimes) > 0 || c.plan.leaseWaste > 0 {
		return nil
	}
	for _, r := range c.records.calls {
		isAllowed := !slices.ContainsFunc(r.tightResults(), func(result backend.Result) bool { return !result.Allowed })
		if !c.isDecidedGroup(r) || !isAllowed {
			continue
		}
		for _, t := range c.redis.history.own[r.id] {
			charges = append(charges, temporaryCharge{t, r.hits})
		}
	}
	return charges
}

// isDecidedGroup reports whether r is a denied group that the fallback did not decide.
func (c *checks) isDecidedGroup(r *callRecord) bool {
	return r.err == nil && r.isGroupDenied() && !slices.ContainsFunc(r.results(), backend.Result.IsDegraded)
}

// checkTemporaryCharges checks that one Redis never has a charge of a denied group. With two Redis servers,
// such a charge lasts as long as a call to Redis may take.
func (c *checks) checkTemporaryCharges() {
	longest := time.Duration(0)
	if c.plan.perSecondRedis {
		longest = c.plan.timeout + computeTime
	}
	for _, r := range c.records.calls {
		if !c.isDecidedGroup(r) || len(c.lossTimes) > 0 {
			continue
		}
		for _, t := range c.redis.history.own[r.id] {
			if t.end-t.start > longest+r.pausedTime && !c.plan.isInFault(r.end, outageMemory) {
				c.fail("%s: denied, and charged in Redis at %v until %v, want at most for %v", r.name(), t.start, t.end, longest)
			}
		}
	}
}

// checkGrowth checks that the spent hits in Redis grow only by calls. So a change of the limit takes no room
// away.
func (c *checks) checkGrowth() {
	p := c.plan
	if len(p.faults) > 0 || p.clockSteps > 0 || p.leaseWaste > 0 || p.maxQueue < defaultQueue || c.pausedTime > 0 || p.losesAnswers {
		return
	}
	for name, states := range c.redis.history.states {
		for i := 1; i < len(states); i++ {
			at, l := states[i].at, &c.limit
			growth := states[i].spent(l, at) - states[i-1].spent(l, at)
			calls := c.countCalls(func(r *callRecord) bool { return !r.isRefund() && r.start <= at && at <= r.end+p.timeout })
			if growth > float64(calls)+roundedHits {
				c.fail("counter %s: %v hits were spent at %v, during calls with %d hits", name, math.Round(growth), at, calls)
			}
		}
	}
}

// roundedHits is how much more a counter can show as spent, because a share of a window is rounded up.
const roundedHits = 1.01

// checkFallbackDenial checks that the fallback has spent its share of a limit that does not end in the run.
// The fallback starts from its share of the last count of Redis.
func (c *checks) checkFallbackDenial(r *callRecord) {
	p, l := c.plan, r.lowerLimit()
	if p.failureMode == "allow" {
		c.fail("%s: denied by the fallback, which must admit all calls", r.name())
	}
	if p.failureMode != "local" || p.unit == "second" {
		return
	}
	admitted := c.countCalls(func(other *callRecord) bool {
		return other.replica == r.replica && !other.isRefund() && other.start <= r.end && (other.tightResult.IsDegraded() || other.err != nil)
	})
	counted := math.Ceil(p.fallbackRatio * min(c.mostSpent, float64(l.capacity)))
	share := max(math.Floor(p.fallbackRatio*float64(l.max)), 1)
	if float64(admitted+r.hits-1)+counted < share {
		c.fail("%s: denied by the fallback after %d hits, with %v of the share of %v counted in Redis", r.name(), admitted-1, counted, share)
	}
}

// mostSpent returns the most hits of l that the counter has ever spent.
func (h *history) mostSpent(l *tightLimit) (most float64) {
	for _, states := range h.states {
		for i := range states {
			most = max(most, states[i].spent(l, states[i].at))
		}
	}
	return most
}

// maxIdleTime is the longest time for which a replica holds permits without hits: a second, half a second
// until the next sweep, and a trip to Redis.
func (p *plan) maxIdleTime() time.Duration { return 1500*time.Millisecond + 2*p.timeout }

// idlePermits returns the permits that replicas hold for longer than maxIdleTime without hits.
func (f *fleet) idlePermits() (n int64) {
	now := elapsed()
	if f.plan.leaseWaste == 0 || now-f.lastLongPause < f.plan.maxIdleTime() {
		return 0
	}
	for _, r := range f.replicas {
		if !r.isKilled && now-r.lastCallAt > f.plan.maxIdleTime() {
			n += r.leases.Stats().HeldPermits
		}
	}
	return n
}
