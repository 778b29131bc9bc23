package main

import (
	"time"

	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
)

// namedPlans are plans whose events provoke defects that rls has had or could have.
var namedPlans = map[string]func() *plan{
	"late-answers":             lateAnswers,
	"late-answers-all-or-none": lateAnswersAllOrNone,
	"late-denials":             lateDenials,
	"late-return":              lateReturn,
	"no-cpu-time":              noCPUTime,
	"busy-callers":             busyCallers,
	"canceled-calls":           canceledCalls,
	"full-queue":               fullQueue,
	"full-queue-far-away":      fullQueueFarAway,
	"short-windows":            shortWindows,
	"late-refunds":             lateRefunds,
	"long-network-cut":         longNetworkCut,
	"refunds":                  refundingCallers,
	"late-permits":             latePermits,
	"lost-permits":             lostPermits,
	"killed-replicas":          killedReplicas,
	"lost-returns":             lostReturns,
	"missing-replicas":         missingReplicas,
	"far-redis":                farRedis,
	"deleted-counter":          deletedCounter,
	"refunds-elsewhere":        refundsElsewhere,
	"groups-on-one-counter":    groupsOnOneCounter,
	"acquires":                 acquires,
	"acquires-two-redis":       acquiresTwoRedis,
	"raised-rate":              raisedRate,
	"lowered-rate":             loweredRate,
	"idle-permits":             idlePermits,
	"holders":                  holders,
	"anonymous-holders":        anonymousHolders,
	"holders-long-network-cut": holdersLongNetworkCut,
}

// newNamedPlan returns three replicas that share a limit of 300 per year, without a fault.
func newNamedPlan(duration time.Duration) *plan {
	return &plan{
		replicas: 3, duration: duration, timeout: 50 * time.Millisecond, fallbackRatio: 0.5, maxQueue: defaultQueue, maxBatch: 256, inflight: 1,
		maxHits: 300, unit: "year", algorithm: "fixed_window", callAlgorithm: "fixed_window", failureMode: "local", chargeDenied: true,
		callers: 4, callerPause: 10 * time.Millisecond, networkDelay: 100 * time.Microsecond,
	}
}

// lateAnswers has sixty stalls that are a little longer than the timeout.
func lateAnswers() *plan {
	p := newNamedPlan(8 * time.Second)
	for i := range 60 {
		at := time.Duration(i+1) * 120 * time.Millisecond
		p.addFault(fault{start: at, end: at + 60*time.Millisecond}, func(f *fleet) { f.redis.stall() }, func(f *fleet) { f.redis.resume() }, "Redis stalls")
	}
	return p
}

func lateAnswersAllOrNone() *plan {
	p := lateAnswers()
	p.allOrNone = true
	return p
}

// lateDenials is lateAnswers with a fallback that denies all hits. Denied hits are not charged, so rls
// refunds a late hit that Redis has charged.
func lateDenials() *plan {
	p := lateAnswers()
	p.failureMode, p.chargeDenied = "deny", false
	return p
}

// lateReturn has a reload shortly before the end of a window. The first call after the reload comes in
// the next window, and gives back the permits of the old window. Another replica has already charged
// hits in the next window.
func lateReturn() *plan {
	p := newNamedPlan(6 * time.Second)
	p.replicas, p.callers, p.unit, p.maxHits, p.leaseWaste = 2, 0, "second", 1000, 0.5
	p.addEvent(300*time.Millisecond, func(f *fleet) {
		f.currentReplicas[0].close()
		f.currentReplicas[0] = f.startReplica(0)
	}, "a new replica, whose sweeps are not at the ends of windows")
	for i := range 2 {
		windowEnd := time.Duration(2*i+2) * time.Second
		addCallers := func(replica, callers int, from, to time.Duration) {
			p.addFlood(flood{replica: replica, callers: callers, cpuTime: 500 * time.Microsecond}, windowEnd+from, windowEnd+to)
		}
		addCallers(0, 1, -900*time.Millisecond, -500*time.Millisecond)
		p.addReload(windowEnd-15*time.Millisecond, p.maxHits-1-i, p.leaseWaste)
		addCallers(1, 1, 150*time.Millisecond, 250*time.Millisecond)
		addCallers(0, 1, 250*time.Millisecond, 260*time.Millisecond)
		addCallers(1, 8, 300*time.Millisecond, 800*time.Millisecond)
	}
	p.sortEvents()
	return p
}

// noCPUTime has pauses of the process that are longer than the timeout. The time between two pauses is too
// short for a trip to Redis.
func noCPUTime() *plan {
	p := newNamedPlan(4 * time.Second)
	for i := range 20 {
		p.addPause(time.Second+time.Duration(i)*(80*time.Millisecond+100*time.Microsecond), 80*time.Millisecond)
	}
	return p
}

// canceledCalls has callers who cancel each call, as fast as they can. They use up the CPU limit of the
// replica, and Redis is so far away that no trip ends before the next pause.
func canceledCalls() *plan {
	p := newNamedPlan(3 * time.Second)
	p.replicas, p.networkDelay, p.timeout = 1, 3*time.Millisecond, 80*time.Millisecond
	p.addFlood(flood{callers: 100, cancels: true, cpuTime: 50 * time.Microsecond, cpuLimit: 5 * time.Millisecond}, 900*time.Millisecond, 2*time.Second)
	return p
}

// busyCallers has callers who keep the replica so busy that a goroutine waits for its turn for half of the
// timeout.
func busyCallers() *plan {
	p := newNamedPlan(2 * time.Second)
	p.replicas, p.timeout, p.maxQueue, p.maxBatch = 1, 20*time.Millisecond, 8, 4
	p.addFlood(flood{callers: 300, cpuTime: 100 * time.Microsecond}, 500*time.Millisecond, 750*time.Millisecond)
	return p
}

// fullQueue has eight callers without pauses, and a queue with room for one call.
func fullQueue() *plan {
	p := newNamedPlan(2 * time.Second)
	p.replicas, p.callers, p.maxHits, p.maxQueue = 1, 1, 1000, 1
	p.addFlood(flood{callers: 8, cpuTime: 50 * time.Microsecond}, 500*time.Millisecond, time.Second)
	return p
}

// fullQueueFarAway is fullQueue with a Redis that answers after 40 to 80 ms.
func fullQueueFarAway() *plan {
	p := fullQueue()
	p.networkDelay, p.timeout = 20*time.Millisecond, time.Second
	return p
}

// shortWindows has windows of a second with far more calls than the limit, which is raised in the
// middle of a window.
func shortWindows() *plan {
	p := newNamedPlan(4 * time.Second)
	p.replicas, p.unit, p.maxHits, p.denyCache = 1, "second", 30, true
	p.addReload(2500*time.Millisecond, 300, 0)
	return p
}

// longNetworkCut has a cut of the network for three seconds. Far more calls come than the limit admits.
func longNetworkCut() *plan {
	p := newNamedPlan(4 * time.Second)
	p.addFault(fault{start: 50 * time.Millisecond, end: 3 * time.Second},
		func(f *fleet) { f.eachLink((*netmodel.Link).Cut) }, (*fleet).healNetwork, "the network of all replicas is cut")
	return p
}

// lateRefunds is lateAnswers with callers who take back most of their admitted calls.
func lateRefunds() *plan {
	p := lateAnswers()
	p.refundShare = 0.8
	return p
}

// refundingCallers has callers who take back a part of their admitted calls, a limit with a lease, and
// a deny cache.
func refundingCallers() *plan {
	p := newNamedPlan(3 * time.Second)
	p.refundShare, p.leaseWaste, p.denyCache = 0.5, 0.5, true
	return p
}

// latePermits is lateAnswers with a lease. Answers to trips for permits come late too, so these permits are
// lost.
func latePermits() *plan {
	p := lateAnswers()
	p.maxHits, p.leaseWaste, p.losesAnswers = 5000, 0.02, true
	return p
}

// lostPermits has short cuts of the network, each with a break of all connections. Some requests for
// permits do not reach Redis.
func lostPermits() *plan {
	p := newNamedPlan(8 * time.Second)
	p.replicas, p.callers, p.callerPause, p.maxHits, p.leaseWaste, p.losesAnswers = 1, 30, 20*time.Millisecond, 20_000, 0.01, true
	for i := range 40 {
		at := time.Second + time.Duration(i)*170*time.Millisecond
		p.addCutAndReset(fault{start: at, end: at + 60*time.Millisecond})
	}
	p.sortEvents()
	return p
}

// addCutAndReset adds a cut of the network of all replicas. At its end all connections break.
func (p *plan) addCutAndReset(cut fault) {
	p.addFault(cut, func(f *fleet) { f.eachLink((*netmodel.Link).Cut) },
		func(f *fleet) { f.resetConnections(); f.healNetwork() }, "the network is cut and all connections break")
}

// lostReturns has five faults, each with a reload at its start. After a reload, the permits go back. In the
// first four faults Redis stalls: the answer to the return of the permits comes after the timeout, but
// the answer to the return of their allowance comes in time. In the last fault, no return reaches
// Redis. A lease takes no permits for a second after a reload, so the faults are further apart.
func lostReturns() *plan {
	p := newNamedPlan(9500 * time.Millisecond)
	p.replicas, p.callers, p.callerPause, p.maxHits, p.leaseWaste, p.losesAnswers = 1, 10, 20*time.Millisecond, 20_000, 0.01, true
	for i := range 5 {
		at := time.Duration(i+1) * 1700 * time.Millisecond
		f := fault{start: at, end: at + 60*time.Millisecond}
		if i < 4 {
			p.addFault(f, func(f *fleet) { f.redis.stall() }, func(f *fleet) { f.redis.resume() }, "Redis stalls")
		} else {
			p.addCutAndReset(f)
		}
		p.addReload(at+time.Millisecond, p.maxHits-1-i, p.leaseWaste)
	}
	p.sortEvents()
	return p
}

// holders has holders with ids. Some of them work longer than a hold lasts, and renew it. Some crash.
func holders() *plan {
	p := newNamedPlan(4 * time.Second)
	p.callers = 1
	p.holds = holdPlan{slots: 5, holders: 3, hold: 500 * time.Millisecond, longestWork: 900 * time.Millisecond, crashShare: 0.1}
	return p
}

// anonymousHolders has holders without ids. They work for a shorter time than a hold lasts.
func anonymousHolders() *plan {
	p := holders()
	p.holds.hold, p.holds.longestWork, p.holds.anonymousShare, p.holds.crashShare = 30*time.Second, 300*time.Millisecond, 1, 0
	return p
}

// holdersLongNetworkCut is holders while the network of all replicas is cut.
func holdersLongNetworkCut() *plan {
	p := holders()
	p.addFault(fault{start: time.Second, end: 3 * time.Second},
		func(f *fleet) { f.eachLink((*netmodel.Link).Cut) }, (*fleet).healNetwork, "the network of all replicas is cut")
	return p
}

// killedReplicas has three replicas that are killed at the same moment. Each replica then has all permits
// that it may hold.
func killedReplicas() *plan {
	p := newNamedPlan(4 * time.Second)
	p.maxHits, p.leaseWaste, p.losesAnswers = 5000, 0.1, true
	for i := range p.replicas {
		p.addFlood(flood{replica: i, callers: 2, cpuTime: time.Millisecond}, time.Second, 2*time.Second)
	}
	for i := range p.replicas {
		p.addRestart(i, 2500*time.Millisecond, 0)
	}
	p.sortEvents()
	return p
}
