package main

import "github.com/seed-81f232ab/rls/backend"

// checkLeases checks the permits after the end of all replicas.
func (c *checks) checkLeases() {
	for _, r := range c.replicas {
		s := r.leases.Stats()
		logf("%s: permits: %+v", r.name, s)
		if s.TakenPermits != s.UsedPermits+s.ReturnedPermits+s.LapsedPermits+s.HeldPermits {
			c.fail("%s: permits do not add up: %+v", r.name, s)
		}
		if !r.isKilled && s.HeldPermits != 0 {
			c.fail("%s: permits after the end: got %d, want 0", r.name, s.HeldPermits)
		}
		if hits := c.leaseHits(r); s.UsedPermits != hits {
			c.fail("%s: used permits: got %d, want one for each of %d hits", r.name, s.UsedPermits, hits)
		}
	}
	if c.plan.algorithm != "fixed_window" || c.plan.unit != "year" || len(c.lossTimes) > 0 {
		return
	}
	if lost, budget := c.lostPermits(), c.plan.leaseBudget(); lost > budget {
		c.fail("lost permits: got %d, want at most %d", lost, budget)
	}
}

// lostPermits returns the permits that were neither used nor returned.
func (c *checks) lostPermits() (lost int64) {
	for _, r := range c.replicas {
		s := r.leases.Stats()
		lost += s.LapsedPermits + s.HeldPermits
	}
	return lost
}

// leaseHits returns the hits of a replica that permits have admitted.
func (c *checks) leaseHits(replica *replica) int64 {
	return c.countCalls(func(r *callRecord) bool {
		return r.replica == replica && !r.isRefund() && r.tightResult.Source == backend.SourceLease && r.tightResult.Err == nil && r.tightResult.Allowed && !r.isGroupDenied()
	})
}
