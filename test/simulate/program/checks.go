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
	problems []string
}

// newChecks checks a run that has ended and recovered.
func newChecks(f *fleet) *checks {
	c := &checks{fleet: f}
	c.checkCalls()
	c.checkAdmitted()
	c.checkReportedExcess()
	c.checkDenials()
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
		longest := r.budget + computeTime
		if r.paused > 0 {
			longest += r.paused + pauseGrace
		}
		if took := r.end - r.start; took > longest {
			c.fail("%s: took %v, want at most %v", r.name(), took, longest)
		}
		if r.answered != 1 {
			c.fail("%s: reported %d times, want once", r.name(), r.answered)
		}
		if r.err != nil && !r.gaveUp {
			c.fail("%s: failed: %v", r.name(), r.err)
		}
		if r.isLast && slices.ContainsFunc(r.results(), backend.Result.Degraded) {
			c.fail("%s: decided without Redis after the recovery", r.name())
		}
	}
}

// countCalls returns the number of calls for which isCounted returns true.
func (c *checks) countCalls(isCounted func(*callRecord) bool) (n int64) {
	for _, r := range c.records.calls {
		if isCounted(r) {
			n++
		}
	}
	return n
}

// isAdmitted reports whether the hit on the tight limit was admitted.
func (r *callRecord) isAdmitted() bool { return r.refundOf == nil && r.err == nil && r.tight.Allowed }

// isRefund reports whether the call takes back the hits of another call.
func (r *callRecord) isRefund() bool { return r.refundOf != nil }

// checkBound compares the admitted hits of some calls with a maximum: windows times the bound that
// docs/failure.md states for one window of the tight limit. The calls are those for which isPart
// returns true.
func (c *checks) checkBound(name string, windows int64, isPart func(*callRecord) bool) {
	p := c.plan
	maxHits := p.highestMax()
	returned := p.leaseBudget() // to counters that Redis has lost
	bound := windows*(maxHits+int64(p.losses())*(maxHits+returned)) +
		c.countCalls(func(r *callRecord) bool { return r.isRefund() && isPart(r) })
	for _, replica := range c.replicas {
		bound += min(windows*c.share(replica), c.countCalls(func(r *callRecord) bool {
			return r.replica == replica && r.isAdmitted() && r.tight.Degraded() && isPart(r)
		}))
	}
	if n := c.countCalls(func(r *callRecord) bool { return r.isAdmitted() && isPart(r) }); n > bound {
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
	share := max(p.ratio*float64(maxHits), 1)
	if known := c.knownCount(replica); known > 0 {
		share = min(share, p.ratio*float64(maxHits-known)+1)
	}
	return int64(share)
}

// knownCount returns the hits that Redis had counted before the first fault, as far as its
// answers told the replica. The fallback then admits only a share of the rest. A short queue and a
// lack of CPU time make the fallback decide hits even before.
func (c *checks) knownCount(replica *replica) int64 {
	p, known := c.plan, int64(0)
	if p.algorithm != "fixed_window" || p.unit != "year" || p.reloadedMax > 0 || p.losses() > 0 || len(p.faults) == 0 || p.maxQueue < defaultQueue || p.refundShare > 0 || c.paused > 0 {
		return 0
	}
	first := p.faults[0].start
	for _, f := range p.faults {
		first = min(first, f.start)
	}
	for _, r := range c.records.calls {
		if r.replica == replica && r.err == nil && r.end < first && r.tight.Source == backend.SourceRedis {
			known = max(known, min(int64(p.maxHits)-r.tight.Remaining, int64(p.maxHits)))
		}
	}
	return known
}

// checkAdmitted checks the bound of the admitted hits. Limits of a second have one only while no
// clock is set, for the windows of fixed_window and for token_bucket.
func (c *checks) checkAdmitted() {
	p := c.plan
	switch {
	case p.unit == "year" && p.algorithm == "token_bucket":
		// A year refills hardly more than a token in the run. The recovery calls get it.
		c.checkBound("", 1, func(r *callRecord) bool { return !r.isLast })
	case p.unit == "year":
		c.checkBound("", 1, func(*callRecord) bool { return true })
	case p.algorithm == "token_bucket" && p.clockSteps == 0:
		refills := int64(p.duration / time.Second) // each second refills the bucket once
		c.checkBound(" of all seconds", 2+refills, func(r *callRecord) bool { return !r.isLast })
	case p.algorithm == "fixed_window" && p.clockSteps == 0:
		for second := range int64(p.duration/time.Second) + 1 {
			c.checkBound(fmt.Sprintf(" of second %d", second), 1, func(r *callRecord) bool {
				return windowOf(r.start-windowMargin) == second && windowOf(r.end+windowMargin) == second
			})
		}
	}
}

// windowMargin is the time around the end of a window in which it is not known which window a
// call counts in. The replica's estimate of the clock of Redis has such an error.
const windowMargin = 120 * time.Millisecond

// windowOf returns the window of a second that holds a time since the start of the program.
func windowOf(t time.Duration) int64 {
	return startTime.Add(t).Unix() - startTime.Unix()
}

// checkReportedExcess checks that the replicas have reported at least the hits beyond the limit. They
// can't know hits beyond the limit that Redis admits because it has lost counters.
func (c *checks) checkReportedExcess() {
	p := c.plan
	if p.losses() > 0 || p.restarts > 0 || p.unit != "year" || p.reloadedMax > 0 || p.algorithm == "token_bucket" {
		return
	}
	reported, counted := int64(0), int64(0)
	for _, r := range c.replicas {
		for _, o := range r.reported {
			reported += o.MaxExcessHits
		}
		counted += r.fallback.Status().MaxExcessHits
	}
	n := c.countCalls((*callRecord).isAdmitted) - c.countCalls((*callRecord).isRefund)
	if n > int64(p.maxHits)+reported {
		c.fail("admitted hits without refunds: got %d, want at most %d and the reported %d", n, p.maxHits, reported)
	}
	if n > int64(p.maxHits)+counted {
		c.fail("admitted hits without refunds: got %d, want at most %d and the %d of rls_max_excess_hits", n, p.maxHits, counted)
	}
}

// checkDenials checks that the deny cache denies a hit only if Redis has denied a hit on the same
// counter before: within a window, under the same limit or a higher limit, and without a refund through
// this replica in between.
func (c *checks) checkDenials() {
	longest := time.Duration(math.MaxInt64)
	if c.plan.unit == "second" && c.plan.clockSteps == 0 {
		longest = time.Second + windowMargin
		switch c.plan.algorithm {
		case "sliding_window": // a hit counts until the next window ends
			longest += time.Second
		case "token_bucket": // the debt is at most the hits of a window
			longest += time.Second
		}
	}
	denials, refunds := map[*replica][]*callRecord{}, map[*replica][]*callRecord{} // denials by Redis
	for _, r := range c.records.calls {
		if r.tight.Source == backend.SourceRedis && r.tight.Err == nil && !r.tight.Allowed {
			denials[r.replica] = append(denials[r.replica], r)
		}
		if r.isRefund() {
			refunds[r.replica] = append(refunds[r.replica], r)
		}
	}
	for _, r := range c.records.calls {
		if r.err != nil || r.tight.Source != backend.SourceDenyCache {
			continue
		}
		if !slices.ContainsFunc(denials[r.replica], func(d *callRecord) bool {
			return d.start <= r.end && r.start-d.end <= longest && slices.Max(d.maxHits[:]) >= slices.Min(r.maxHits[:]) &&
				!slices.ContainsFunc(refunds[r.replica], func(refund *callRecord) bool { return d.end <= refund.start && refund.end <= r.start })
		}) {
			c.fail("call %d: denied by the deny cache without a denial by Redis", r.id)
		}
	}
}
