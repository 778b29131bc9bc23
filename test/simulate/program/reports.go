package main

import (
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// checkReports checks that the metrics and the reports count each decision once.
func (c *checks) checkReports() {
	for _, replica := range c.replicas {
		want, degraded := map[string]float64{}, 0
		for _, r := range c.records.all() {
			if r.replica != replica {
				continue
			}
			for _, result := range r.results() {
				if r.reportCount == 0 || result.Err != nil {
					continue
				}
				name := "over_limit"
				if result.Allowed {
					name = "ok"
				}
				want[name+" "+result.Source.String()]++
				if result.IsDegraded() {
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
		reportedDecisions := int64(0)
		for _, o := range replica.outages {
			reportedDecisions += o.Decisions
		}
		if reportedDecisions != int64(degraded) || replica.fallbackHits != degraded {
			c.fail("%s: decisions without Redis: outages report %d, the observer %d, calls had %d", replica.name, reportedDecisions, replica.fallbackHits, degraded)
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
		for _, at := range r.breakerOpenings {
			if !c.plan.isInFault(at, outageMemory) {
				c.fail("%s: breaker opened at %v without a fault", r.name, at)
			}
		}
	}
	for _, r := range c.records.all() {
		for _, result := range r.results() {
			if result.IsDegraded() && !c.mayBeDegraded(r, result.Reason) {
				c.fail("%s: decided without Redis (%s) without a fault", r.name(), result.Reason)
				break
			}
		}
	}
}

// mayBeDegraded reports whether a call may be decided without Redis, for this reason. After a time
// without CPU time, a queue of calls can remain. Small batches empty the queue slowly, but no call stays
// there longer than the timeout.
func (c *checks) mayBeDegraded(r *callRecord, reason backend.Reason) bool {
	switch {
	case c.plan.isInFault(r.end, outageMemory), r.replica.isClosed:
		return true
	case reason == backend.ReasonOverload:
		return r.pausedTime > 0 || r.sincePause <= c.plan.timeout || c.plan.maxQueue < defaultQueue
	case reason == backend.ReasonLate:
		return r.pausedTime > 0
	}
	return false
}
