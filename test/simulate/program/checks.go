package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
	c.checkPrice()
	c.checkReports()
	c.checkBreakers()
	c.checkCounters()
	return c
}

func (c *checks) fail(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// computeTime is the time that a call may take besides its waits.
const computeTime = 2 * time.Millisecond

// checkCalls checks that each call is answered in time, is reported once, and fails only if the
// caller has given it up. After the recovery, Redis must decide again.
func (c *checks) checkCalls() {
	for _, r := range c.records.calls {
		if took := r.end - r.start; took > r.budget+computeTime {
			c.fail("call %d: took %v, want at most %v", r.id, took, r.budget+computeTime)
		}
		if r.answered != 1 {
			c.fail("call %d: reported %d times, want once", r.id, r.answered)
		}
		if r.err != nil && !r.gaveUp {
			c.fail("call %d: failed: %v", r.id, r.err)
		}
		if r.isLast && (r.tight.Degraded() || r.own.Degraded()) {
			c.fail("call %d: decided without Redis after the recovery", r.id)
		}
	}
}

// admitted returns the number of hits on the tight limit that were admitted.
func (c *checks) admitted(isCounted func(*callRecord) bool) int64 {
	n := int64(0)
	for _, r := range c.records.calls {
		if r.err == nil && r.tight.Allowed && isCounted(r) {
			n++
		}
	}
	return n
}

// bound returns the most hits that one window of the tight limit may admit, as docs/failure.md
// states.
func (c *checks) bound() int64 {
	p := c.plan
	maxHits := int64(max(p.maxHits, p.reloadedMax))
	bound := maxHits * int64(1+p.losses())
	if p.failureMode == "deny" {
		return bound
	}
	for _, r := range c.replicas {
		share := max(p.ratio*float64(maxHits), 1)
		if known := c.knownCount(r); known > 0 {
			share = min(share, p.ratio*float64(maxHits-known)+1)
		}
		bound += int64(share)
	}
	return bound
}

// knownCount returns the hits that Redis had counted before the first fault, as far as its
// answers told the replica. The fallback then admits only a share of the rest. A short queue makes
// the fallback decide hits even before.
func (c *checks) knownCount(replica *replica) int64 {
	p, known := c.plan, int64(0)
	if p.algorithm != "fixed_window" || p.unit != "year" || p.reloadedMax > 0 || p.losses() > 0 || len(p.faults) == 0 || p.maxQueue < 4096 {
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

// checkAdmitted checks the bound of the admitted hits. Mode allow has none. Limits of a second
// have one only while no clock is set, for the windows of fixed_window and for token_bucket.
func (c *checks) checkAdmitted() {
	p, bound := c.plan, c.bound()
	switch {
	case p.failureMode == "allow":
		return
	case p.unit == "year":
		if p.algorithm == "token_bucket" {
			bound++ // a year refills hardly more than a token in the run
		}
		if n := c.admitted(func(*callRecord) bool { return true }); n > bound {
			c.fail("admitted hits: got %d, want at most %d", n, bound)
		}
	case p.algorithm == "token_bucket" && p.clockSteps == 0:
		bound *= 2 + int64(p.duration/time.Second) // each second refills the bucket once
		if n := c.admitted(func(r *callRecord) bool { return !r.isLast }); n > bound {
			c.fail("admitted hits of %v: got %d, want at most %d", p.duration, n, bound)
		}
	case p.algorithm == "fixed_window" && p.clockSteps == 0:
		for second := range int64(p.duration/time.Second) + 1 {
			n := c.admitted(func(r *callRecord) bool {
				return windowOf(r.start-windowMargin) == second && windowOf(r.end+windowMargin) == second
			})
			if n > bound {
				c.fail("admitted hits of second %d: got %d, want at most %d", second, n, bound)
			}
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

// checkPrice checks that the replicas have reported at least the hits beyond the limit. They
// can't know hits beyond the limit that Redis admits because it has lost counters.
func (c *checks) checkPrice() {
	p := c.plan
	if p.losses() > 0 || p.restarts > 0 || p.unit != "year" || p.reloadedMax > 0 || p.algorithm == "token_bucket" {
		return
	}
	price := int64(0)
	for _, r := range c.replicas {
		for _, o := range r.reported {
			price += o.MaxExcessHits
		}
	}
	if n := c.admitted(func(*callRecord) bool { return true }); n > int64(p.maxHits)+price {
		c.fail("admitted hits: got %d, want at most %d and the reported %d", n, p.maxHits, price)
	}
}

// checkReports checks that the metrics and the reports count each decision once.
func (c *checks) checkReports() {
	for _, replica := range c.replicas {
		want, degraded := map[string]float64{}, 0
		for _, r := range c.records.calls {
			if r.replica != replica {
				continue
			}
			for _, result := range []backend.Result{r.tight, r.own} {
				if r.answered == 0 || result.Err != nil {
					continue
				}
				name := "over_limit"
				if result.Allowed {
					name = "ok"
				}
				want[name+" "+result.Source.String()]++
				if result.Degraded() {
					degraded++
					want["without redis "+result.Reason.String()]++
				}
			}
		}
		for name, got := range countedDecisions(replica) {
			if got != want[name] {
				c.fail("%s: metrics of decisions %s: got %v, want %v", replica.name, name, got, want[name])
			}
			delete(want, name)
		}
		for name, n := range want {
			c.fail("%s: metrics of decisions %s: got none, want %v", replica.name, name, n)
		}
		if replica.isClosed {
			continue // nobody reports the last blip
		}
		reported := int64(0)
		for _, o := range replica.reported {
			reported += o.Decisions
		}
		if reported != int64(degraded) || replica.served != degraded {
			c.fail("%s: decisions without Redis: outages report %d, the observer %d, calls had %d", replica.name, reported, replica.served, degraded)
		}
	}
}

// countedDecisions returns the decisions in the metrics of a replica.
func countedDecisions(r *replica) map[string]float64 {
	counts := map[string]float64{}
	families, err := r.meter.Gather()
	if err != nil {
		panic(err) // the metrics are consistent
	}
	for _, family := range families {
		for _, m := range family.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			var name string
			switch family.GetName() {
			case "rls_decisions_total":
				name = labels["result"] + " " + labels["source"]
			case "rls_decisions_without_redis_total":
				name = "without redis " + labels["reason"]
			default:
				continue
			}
			if n := m.Counter.GetValue(); n > 0 {
				counts[name] += n
			}
		}
	}
	return counts
}

// outageMemory is the time after a fault in which a breaker may still open.
const outageMemory = 1500 * time.Millisecond

// checkBreakers checks that breakers open only because of a fault, and that without a fault
// Redis decides all hits that fit in the queue.
func (c *checks) checkBreakers() {
	for _, r := range c.replicas {
		for _, at := range r.openings {
			if !c.plan.isInFault(at, outageMemory) {
				c.fail("%s: breaker opened at %v without a fault", r.name, at)
			}
		}
	}
	for _, r := range c.records.calls {
		if r.own.Degraded() && r.own.Reason != backend.ReasonOverload && !c.plan.isInFault(r.end, outageMemory) && !r.replica.isClosed {
			c.fail("call %d: decided without Redis (%s) without a fault", r.id, r.own.Reason)
		}
	}
}

// checkCounters checks the counters in Redis: each has a time to live, and each call has charged
// its own counter at most once. If Redis has decided the call, it has charged once.
func (c *checks) checkCounters() {
	charged := map[int]int64{}
	c.redis.eachCounter(func(name, text string, hasExpiry bool) {
		if !hasExpiry {
			c.fail("counter %s: has no time to live", name)
		}
		if id, ok := callOfCounter(name); ok {
			n, _ := strconv.ParseInt(text, 10, 64)
			charged[id] += n
		}
	})
	if c.plan.callAlgorithm != "fixed_window" {
		return
	}
	lastLoss := time.Duration(math.MinInt64)
	if len(c.losses) > 0 {
		lastLoss = slices.Max(c.losses)
	}
	for _, r := range c.records.calls {
		n := charged[r.id]
		isKept := r.err == nil && !r.own.Degraded() && r.start > lastLoss && (!c.plan.allOrNone || r.tight.Allowed)
		switch {
		case n > 1:
			c.fail("call %d: charged %d times, want at most once", r.id, n)
		case n == 0 && isKept:
			c.fail("call %d: decided by %s, and not charged", r.id, r.own.Source)
		}
	}
}

// callOfCounter returns the call whose own counter has this name.
func callOfCounter(name string) (id int, ok bool) {
	_, rest, found := strings.Cut(name, "|call=")
	if !found {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, "@")
	id, err := strconv.Atoi(number)
	return id, err == nil
}
