package main

import "time"

// addCalls adds calls, one after the other. Each has hits on the tight limit.
func (p *plan) addCalls(at time.Duration, replica, calls int, hits int64) {
	p.addEvent(at, func(f *fleet) {
		for range calls {
			f.sendCall(f.currentReplicas[replica], callOptions{hits: hits})
		}
	}, "%d calls with %d hits come to replica %d", calls, hits, replica)
}

// addBorrower adds a caller that takes all hits of the tight limit through a replica, and gives them back
// later.
func (p *plan) addBorrower(from, to time.Duration, replica int) {
	var borrowed []*callRecord
	p.addStartAndEnd(from, to, func(f *fleet) {
		for range 3 * p.maxHits { // other callers have hits that come back soon
			borrowed = append(borrowed, f.sendCall(f.currentReplicas[replica], callOptions{}))
			time.Sleep(p.callerPause / 2)
		}
	}, func(f *fleet) {
		for _, call := range borrowed {
			if call.isAdmitted() {
				call.refund = f.sendCall(f.currentReplicas[replica], callOptions{refundOf: call})
			}
		}
		borrowed = nil
	}, "a borrower takes all hits through replica %d", replica)
}

// refundsElsewhere has callers whose hits are taken back through the last replica, and a borrower at this
// replica. The deny cache of the first replica sees no refund.
func refundsElsewhere() *plan {
	p := newNamedPlan(8 * time.Second)
	p.replicas, p.callers, p.callerPause, p.maxHits, p.denyCache, p.chargeDenied = 2, 1, 25*time.Millisecond, 10, true, false
	p.refundShare, p.refundsElsewhere = 1, true
	p.addBorrower(500*time.Millisecond, time.Second, 1)
	p.addBorrower(4*time.Second, 4500*time.Millisecond, 1)
	p.sortEvents()
	return p
}

// groupsOnOneCounter has calls with two hits on the tight limit, which are charged all or none. They are
// denied while there is room for one hit.
func groupsOnOneCounter() *plan {
	p := newNamedPlan(2 * time.Second)
	p.replicas, p.callers, p.maxHits, p.algorithm, p.denyCache, p.allOrNone = 1, 0, 4, "sliding_window", true, true
	p.addCalls(200*time.Millisecond, 0, 3, 1)
	p.addCalls(400*time.Millisecond, 0, 1, 2)
	p.addCalls(600*time.Millisecond, 0, 1, 1)
	return p
}

// acquires has callers who wait for permits of two limits: a limit per second that denies most calls, and the
// tight limit, which has room.
func acquires() *plan {
	p := newNamedPlan(1500 * time.Millisecond)
	p.callers, p.callerPause, p.maxHits, p.algorithm, p.unit, p.secondMax, p.acquires, p.denyCache = 8, 15*time.Millisecond, 11, "sliding_log", "day", 3, true, true
	return p
}

// acquiresTwoRedis is acquires with a Redis of its own for limits per second.
func acquiresTwoRedis() *plan {
	p := acquires()
	p.perSecondRedis, p.networkDelay = true, time.Millisecond
	return p
}

// raisedRate has a token bucket with few spent tokens. Then the rate and the burst are raised.
func raisedRate() *plan {
	p := newNamedPlan(3 * time.Second)
	p.replicas, p.callers, p.algorithm, p.unit, p.maxHits, p.burst = 2, 0, "token_bucket", "day", 10, 50
	p.addCalls(200*time.Millisecond, 0, 4, 1)
	p.addRateReload(time.Second, 200, 50)
	p.addCalls(1200*time.Millisecond, 1, 5, 1)
	p.addRateReload(2*time.Second, 200, 60)
	p.addCalls(2200*time.Millisecond, 0, 60, 1)
	return p
}

// loweredRate has a token bucket with few spent tokens. Then the rate and the burst are lowered.
func loweredRate() *plan {
	p := newNamedPlan(3 * time.Second)
	p.replicas, p.callers, p.algorithm, p.unit, p.maxHits, p.burst = 2, 0, "token_bucket", "day", 200, 50
	p.addCalls(200*time.Millisecond, 0, 4, 1)
	p.addRateReload(time.Second, 10, 50)
	p.addCalls(1200*time.Millisecond, 1, 5, 1)
	p.addRateReload(2*time.Second, 10, 20)
	p.addCalls(2200*time.Millisecond, 0, 20, 1)
	return p
}

// addRateReload adds a reload with another rate and burst of the tight limit.
func (p *plan) addRateReload(at time.Duration, maxHits, burst int) {
	p.addEvent(at, func(f *fleet) {
		f.burst = burst
		f.setLimit(maxHits, p.leaseWaste)
	}, "limits are loaded: %d hits, burst %d", maxHits, burst)
	p.reloadedMax = max(p.reloadedMax, maxHits, burst)
}

// idlePermits has many calls to the first replica, and then to the second one only. The second one needs the
// permits of the first.
func idlePermits() *plan {
	p := newNamedPlan(5 * time.Second)
	p.replicas, p.callers, p.maxHits, p.leaseWaste = 2, 0, 2000, 0.2
	p.addFlood(flood{replica: 0, callers: 1, cpuTime: time.Millisecond}, 100*time.Millisecond, time.Second)
	p.addFlood(flood{replica: 1, callers: 1, cpuTime: time.Millisecond}, time.Second, 5*time.Second)
	p.sortEvents()
	return p
}
