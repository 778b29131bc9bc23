package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// checkCounters checks the counters in Redis: each has a time to live, and each call has charged
// its own counter at most once. If Redis has decided the call, it has charged once. Without a
// fault, Redis is also charged with each hit that the fallback has admitted. A refund takes hits back at
// most once, and once if Redis has decided the refund.
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
	if len(c.lossTimes) > 0 {
		lastLoss = slices.Max(c.lossTimes)
	}
	for _, r := range c.records.calls {
		if r.isRefund() {
			continue
		}
		n, refunds := charged[r.id], int64(0)
		if r.refund != nil {
			refunds = 1
		}
		isCharged := !r.ownResult.IsDegraded() || len(c.plan.faults) == 0 && !c.plan.losesAnswers
		isKept := r.err == nil && isCharged && r.start > lastLoss && !r.isGroupDenied()
		switch {
		case n > ownHits:
			c.fail("call %d: charged %d hits, want at most %d", r.id, n, ownHits)
		case n < ownHits-refunds && isKept:
			c.fail("call %d: decided by %s, and not charged: got %d hits, want %d", r.id, r.ownResult.Source, n, ownHits-refunds)
		case n == ownHits && isKept && !r.ownResult.IsDegraded() && refunds > 0 && r.refund.err == nil && !r.refund.ownResult.IsDegraded():
			c.fail("call %d: refunded by %s, and still charged with %d hits", r.id, r.refund.ownResult.Source, n)
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

// isTightCounter reports whether a counter of a tight limit, or of its lease, has this name.
func isTightCounter(name string) bool { return strings.Contains(name, "|tight=") }

// isLeaseCounter reports whether a counter of allowances has this name.
func isLeaseCounter(name string) bool { return strings.Contains(name, "lease:") }

// checkCharges compares the counter of a tight limit of a year with the calls, after the end of all
// replicas. Each hit that Redis or a permit has admitted is charged, so no permit is spent twice,
// and no return takes back the charge of a used permit. Beyond the calls, at most the lost permits
// are charged.
func (c *checks) checkCharges() {
	p := c.plan
	if p.algorithm != "fixed_window" || p.unit != "year" || p.dataLosses() > 0 {
		return
	}
	charged, allowances := int64(0), int64(0)
	c.redis.eachCounter(func(name, text string, _ bool) {
		if !isTightCounter(name) {
			return
		}
		n, _ := strconv.ParseInt(text, 10, 64)
		if isLeaseCounter(name) {
			allowances += n
		} else {
			charged += n
		}
	})
	admitted := c.countCalls(func(r *callRecord) bool {
		return !r.isRefund() && !r.isGroupDenied() && r.tightResult.Err == nil && r.tightResult.Allowed && (r.tightResult.Source == backend.SourceRedis || r.tightResult.Source == backend.SourceLease)
	})
	refunds := c.countCalls((*callRecord).isRefund)
	if charged < admitted-refunds {
		c.fail("charged hits: got %d, want at least the %d that Redis and permits have admitted, without %d refunds", charged, admitted, refunds)
	}
	calls := c.countCalls(func(r *callRecord) bool { return !r.isRefund() })
	budget := p.leaseBudget()
	if charged > calls+budget {
		c.fail("charged hits: got %d, want at most %d calls and %d lost permits", charged, calls, budget)
	}
	if allowances > budget {
		c.fail("allowances: got %d, want at most %d", allowances, budget)
	}
	if len(p.events) == 0 && p.maxQueue == defaultQueue && (charged > calls || allowances != 0) {
		c.fail("without a fault: got %d charged hits and an allowance of %d after the end, want at most %d calls and 0", charged, allowances, calls)
	}
	if !p.chargeDenied && !p.losesAnswers {
		c.checkRefunds(charged)
	}
}

// checkRefunds checks that Redis has given back each hit that the fallback has denied before the
// answer of Redis came.
func (c *checks) checkRefunds(charged int64) {
	canceled := c.countCalls(func(r *callRecord) bool { return r.err != nil })
	admitted := c.countCalls((*callRecord).isAdmitted)
	lost := c.lostPermits()
	if charged > admitted+canceled+lost {
		c.fail("charged hits: got %d, want at most %d admitted hits, %d canceled hits and %d lost permits", charged, admitted, canceled, lost)
	}
}
