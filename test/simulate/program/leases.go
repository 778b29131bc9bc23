package main

import (
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/backend"
)

// checkLeases checks the permits after the end of all replicas.
func (c *checks) checkLeases() {
	if c.plan.leaseWaste == 0 {
		return
	}
	for _, r := range c.replicas {
		s := r.leases.Stats()
		logf("%s: permits: %+v", r.name, s)
		if s.Taken != s.Used+s.Returned+s.Lapsed+s.Held {
			c.fail("%s: permits do not add up: %+v", r.name, s)
		}
		if !r.isKilled && s.Held != 0 {
			c.fail("%s: permits after the end: got %d, want 0", r.name, s.Held)
		}
		if hits := c.leaseHits(r); s.Used != hits {
			c.fail("%s: used permits: got %d, want one for each of %d hits", r.name, s.Used, hits)
		}
	}
	c.checkCharges()
}

// leaseHits returns the hits of a replica that permits have admitted.
func (c *checks) leaseHits(replica *replica) int64 {
	return c.countCalls(func(r *callRecord) bool {
		return r.replica == replica && r.tight.Source == backend.SourceLease && r.tight.Err == nil && r.tight.Allowed
	})
}

func (c *checks) countCalls(isCounted func(*callRecord) bool) (n int64) {
	for _, r := range c.records.calls {
		if isCounted(r) {
			n++
		}
	}
	return n
}

// checkCharges compares the counter of a tight limit of a year with the calls. Each hit that
// Redis or a permit has admitted is charged, so no permit is spent twice, and no return takes
// back the charge of a used permit. Beyond the calls, at most the lost permits are charged.
func (c *checks) checkCharges() {
	p := c.plan
	if p.algorithm != "fixed_window" || p.unit != "year" || len(c.losses) > 0 {
		return
	}
	charged, allowances := int64(0), int64(0)
	c.redis.eachCounter(func(name, text string, _ bool) {
		if !strings.Contains(name, "|tight=") {
			return
		}
		n, _ := strconv.ParseInt(text, 10, 64)
		if strings.Contains(name, "lease:") {
			allowances += n
		} else {
			charged += n
		}
	})
	admitted := c.countCalls(func(r *callRecord) bool {
		return r.tight.Err == nil && r.tight.Allowed && (r.tight.Source == backend.SourceRedis || r.tight.Source == backend.SourceLease)
	})
	if charged < admitted {
		c.fail("charged hits: got %d, want at least the %d that Redis and permits have admitted", charged, admitted)
	}
	calls := int64(len(c.records.calls))
	lost := int64(p.leaseWaste * float64(max(p.maxHits, p.reloadedMax)))
	if charged > calls+lost {
		c.fail("charged hits: got %d, want at most %d calls and %d lost permits", charged, calls, lost)
	}
	if allowances > lost {
		c.fail("allowances: got %d, want at most %d", allowances, lost)
	}
	if len(p.events) == 0 && p.maxQueue == 4096 && (charged > calls || allowances != 0) {
		c.fail("without a fault: got %d charged hits and an allowance of %d after the end, want at most %d calls and 0", charged, allowances, calls)
	}
}
