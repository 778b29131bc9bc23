package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// checks collects the broken promises of a run.
type checks struct {
	*fleet
	problems  []string
	mostSpent float64 // the most hits of the tight limit that Redis has counted
}

// newChecks checks a run that has ended and recovered.
func newChecks(f *fleet) *checks {
	c := &checks{fleet: f}
	c.checkCalls()
	c.checkAdmitted()
	c.checkReportedExcess()
	c.checkDenyCache()
	c.checkDenials()
	c.checkTemporaryCharges()
	c.checkGrowth()
	c.checkReports()
	c.checkBreakers()
	c.checkCounters()
	c.checkHolders()
	c.checkTakenSlots()
	return c
}

func (c *checks) fail(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

const (
	// computeTime is the time that a call may take besides its waits.
	computeTime = 2 * time.Millisecond

	// pauseGrace is how much longer a call may wait in a replica that got no CPU time.
	pauseGrace = 10 * time.Millisecond
)

// checkCalls checks that each call is answered in time, is reported once, and fails only if the
// caller has given it up. After the recovery, Redis must decide again.
func (c *checks) checkCalls() {
	for _, r := range c.records.all() {
		maxTime := r.budget + computeTime
		if r.pausedTime > 0 {
			maxTime += r.pausedTime + pauseGrace
		}
		if took := r.end - r.start; took > maxTime {
			c.fail("%s: took %v, want at most %v", r.name(), took, maxTime)
		}
		if r.reportCount != 1 {
			c.fail("%s: reported %d times, want once", r.name(), r.reportCount)
		}
		if r.err != nil && !r.gaveUp {
			c.fail("%s: failed: %v", r.name(), r.err)
		}
		if r.isAfterRecovery && slices.ContainsFunc(r.results(), backend.Result.IsDegraded) {
			c.fail("%s: decided without Redis after the recovery", r.name())
		}
	}
}

// countCalls returns the hits on the tight limit of the calls for which isCounted returns true.
func (c *checks) countCalls(isCounted func(*callRecord) bool) (n int64) {
	for _, r := range c.records.calls {
		if isCounted(r) {
			n += r.hits
		}
	}
	return n
}

// isAdmitted reports whether the call's hits on the tight limit were admitted.
func (r *callRecord) isAdmitted() bool {
	return r.refundOf == nil && r.err == nil && r.tightResult.Allowed && !r.isGroupDenied()
}

// isGroupDenied reports whether the hits of r are charged all or none, and one was denied.
func (r *callRecord) isGroupDenied() bool {
	return r.isGroup && slices.ContainsFunc(r.results(), func(result backend.Result) bool { return result.Err == nil && !result.Allowed })
}

// isRefund reports whether the call takes back the hits of another call.
func (r *callRecord) isRefund() bool { return r.refundOf != nil }

// checkBound checks that the calls for which isIncluded returns true have at most bound admitted hits on
// the tight limit. docs/failure.md states the bound of one window. The bound here is this bound times
// windows, the number of windows.
func (c *checks) checkBound(name string, windows int64, isIncluded func(*callRecord) bool) {
	p := c.plan
	maxHits := p.highestMax()
	// Redis forgets maxHits hits in each loss of data. Then replicas return permits to the new counter,
	// which makes room for as many hits.
	returnedPermits := p.leaseBudget()
	bound := windows*(maxHits+int64(p.dataLosses())*(maxHits+returnedPermits)) +
		c.countCalls(func(r *callRecord) bool { return r.isRefund() && isIncluded(r) })
	for _, replica := range c.replicas {
		bound += min(windows*c.share(replica), c.countCalls(func(r *callRecord) bool {
			return r.replica == replica && r.isAdmitted() && r.tightResult.IsDegraded() && isIncluded(r)
		}))
	}
	if n := c.countCalls(func(r *callRecord) bool { return r.isAdmitted() && isIncluded(r) }); n > bound {
		c.fail("admitted hits%s: got %d, want at most %d", name, n, bound)
	}
}

// share returns the most hits that the fallback of a replica may admit in a window.
func (c *checks) share(replica *replica) int64 {
	p := c.plan
	maxHits := p.highestMax()
	switch p.failureMode {
	case "allow":
		return math.MaxInt32
	case "deny":
		return 0
	}
	share := max(p.fallbackRatio*float64(maxHits), 1)
	if knownHits := c.knownCount(replica); knownHits > 0 {
		share = min(share, p.fallbackRatio*float64(maxHits-knownHits)+1)
	}
	return int64(share)
}

// knownCount returns the highest count that an answer of Redis gave the replica before the first fault.
// The fallback then admits only a share of the remaining hits. knownCount returns 0 if the fallback may
// have decided hits before the first fault, because of a short queue or a lack of CPU time. It also
// returns 0 if the count can fall, or if the limit can change.
func (c *checks) knownCount(replica *replica) int64 {
	p, knownHits := c.plan, int64(0)
	if p.algorithm != "fixed_window" || p.unit != "year" || p.reloadedMax > 0 || p.dataLosses() > 0 || len(p.faults) == 0 || p.maxQueue < defaultQueue || p.refundShare > 0 || c.pausedTime > 0 {
		return 0
	}
	firstStart := p.faults[0].start
	for _, f := range p.faults {
		firstStart = min(firstStart, f.start)
	}
	for _, r := range c.records.calls {
		if r.replica == replica && r.err == nil && r.end < firstStart && r.tightResult.Source == backend.SourceRedis {
			knownHits = max(knownHits, min(int64(p.maxHits)-r.tightResult.Remaining, int64(p.maxHits)))
		}
	}
	return knownHits
}

// checkAdmitted checks the bound of the admitted hits. Limits per second are checked only if no clock is
// changed and the algorithm is fixed_window or token_bucket. In all other cases, limits per second have no
// bound.
func (c *checks) checkAdmitted() {
	p := c.plan
	switch {
	case p.unit == "year" && p.algorithm == "token_bucket":
		// In the run, a bucket per year refills about one token. The calls after the recovery may get this
		// token, so they are not counted.
		c.checkBound("", 1, func(r *callRecord) bool { return !r.isAfterRecovery })
	case p.unit == "year":
		c.checkBound("", 1, func(*callRecord) bool { return true })
	case p.algorithm == "token_bucket" && p.clockSteps == 0:
		refills := int64(p.duration / time.Second) // each second refills the bucket once
		c.checkBound(" of all seconds", 2+refills, func(r *callRecord) bool { return !r.isAfterRecovery })
	case p.algorithm == "fixed_window" && p.clockSteps == 0:
		for second := range int64(p.duration/time.Second) + 1 {
			c.checkBound(fmt.Sprintf(" of second %d", second), 1, func(r *callRecord) bool {
				return windowOf(r.start-windowMargin) == second && windowOf(r.end+windowMargin) == second
			})
		}
	}
}

// windowMargin is the most that a replica's estimate of the clock of Redis can be wrong. A call less than
// windowMargin before or after the end of a window may count in either window.
const windowMargin = 120 * time.Millisecond

// windowOf returns the window of a second that contains t, a time since the start of the program.
func windowOf(t time.Duration) int64 {
	return startTime.Add(t).Unix() - startTime.Unix()
}

// checkReportedExcess checks that the replicas have reported at least the admitted hits beyond the limit.
// It does not check runs in which Redis may have lost counters. Redis then admits hits beyond the limit
// that no replica can know.
func (c *checks) checkReportedExcess() {
	p := c.plan
	if p.dataLosses() > 0 || p.restarts > 0 || p.unit != "year" || p.reloadedMax > 0 || p.algorithm == "token_bucket" {
		return
	}
	reportedExcess, metricExcess := int64(0), int64(0)
	for _, r := range c.replicas {
		for _, o := range r.outages {
			reportedExcess += o.MaxExcessHits
		}
		metricExcess += r.fallback.Status().MaxExcessHits
	}
	n := c.countCalls((*callRecord).isAdmitted) - c.countCalls((*callRecord).isRefund)
	if n > int64(p.maxHits)+reportedExcess {
		c.fail("admitted hits without refunds: got %d, want at most %d and the reported %d", n, p.maxHits, reportedExcess)
	}
	if n > int64(p.maxHits)+metricExcess {
		c.fail("admitted hits without refunds: got %d, want at most %d and the %d of rls_max_excess_hits", n, p.maxHits, metricExcess)
	}
}

// checkDenyCache checks that the deny cache denies a hit only if Redis has denied an earlier hit on the same
// counter. The earlier denial must meet three conditions:
//
//   - it was at most one window earlier;
//   - the limit was the same or higher;
//   - no refund came through this replica in between.
func (c *checks) checkDenyCache() {
	longestDenial := time.Duration(math.MaxInt64)
	if c.plan.unit == "second" && c.plan.clockSteps == 0 {
		longestDenial = time.Second + windowMargin
		switch c.plan.algorithm {
		case "sliding_window": // a hit counts until the next window ends
			longestDenial += time.Second
		case "token_bucket": // the debt is at most the hits of a window
			longestDenial += time.Second
		}
	}
	denials, refunds := map[*replica][]*callRecord{}, map[*replica][]*callRecord{} // denials by Redis
	for _, r := range c.records.calls {
		if r.tightResult.Source == backend.SourceRedis && r.tightResult.Err == nil && !r.tightResult.Allowed {
			denials[r.replica] = append(denials[r.replica], r)
		}
		if r.isRefund() {
			refunds[r.replica] = append(refunds[r.replica], r)
		}
	}
	for _, r := range c.records.calls {
		if r.err != nil || r.tightResult.Source != backend.SourceDenyCache {
			continue
		}
		if !slices.ContainsFunc(denials[r.replica], func(d *callRecord) bool {
			return d.start <= r.end && r.start-d.end <= longestDenial && max(d.limits[0].max, d.limits[1].max) >= min(r.limits[0].max, r.limits[1].max) &&
				!slices.ContainsFunc(refunds[r.replica], func(refund *callRecord) bool { return d.end <= refund.start && refund.end <= r.start })
		}) {
			c.fail("call %d: denied by the deny cache without a denial by Redis", r.id)
		}
	}
}
