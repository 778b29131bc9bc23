package main

import (
	"time"

	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
)

// regionPlans are the plans with regions. The plan named regions depends on the seed.
var regionPlans = map[string]func(seed uint64) *regionPlan{"regions": drawRegionPlan}

func init() {
	for name, newPlan := range map[string]func() *regionPlan{
		"regions-years":          regionsYears,
		"regions-short-windows":  regionsShortWindows,
		"regions-bucket":         regionsBucket,
		"regions-bucket-burst":   regionsBucketBurst,
		"regions-one-busy":       regionsOneBusy,
		"regions-moving-demand":  regionsMovingDemand,
		"regions-cut":            regionsCut,
		"regions-lost-orders":    regionsLostOrders,
		"regions-late-orders":    regionsLateOrders,
		"regions-lost-answers":   regionsLostAnswers,
		"regions-slow":           regionsSlow,
		"regions-clocks":         regionsClocks,
		"regions-close-clocks":   regionsCloseClocks,
		"regions-global-empty":   regionsGlobalEmpty,
		"regions-lost-writes":    regionsLostWrites,
		"regions-killed-buyers":  regionsKilledBuyers,
		"regions-stalls":         regionsStalls,
		"regions-redis-empty":    regionsRedisEmpty,
		"regions-script-flushes": regionsScriptFlushes,
		"regions-raised-limit":   regionsRaisedLimit,
		"regions-lowered-limit":  regionsLoweredLimit,
		"regions-idle-wakes":     regionsIdleWakes,
		"regions-groups":         regionsGroups,
		"regions-refunds":        regionsRefunds,
		"regions-reset":          regionsReset,
	} {
		regionPlans[name] = func(seed uint64) *regionPlan {
			p := newPlan()
			p.seed = seed
			p.sortEvents()
			return p
		}
	}
}

// newRegionPlan returns a plan with two replicas in each region, without calls and faults.
func newRegionPlan(duration time.Duration, limits ...*globalLimit) *regionPlan {
	return &regionPlan{replicas: 2, duration: duration, limits: limits}
}

// newBusyPlan is newRegionPlan with callers in all regions, who want more than all limits.
func newBusyPlan(duration time.Duration, limits ...*globalLimit) *regionPlan {
	p := newRegionPlan(duration, limits...)
	for _, l := range limits {
		p.addDemand(l, 2, 45*time.Millisecond, 0, endOfRun, 0, 1, 2)
	}
	return p
}

func newYears() (fixed, sliding *globalLimit) {
	return yearly("year", "fixed_window", 300), yearly("slidingyear", "sliding_window", 300)
}

func regionsYears() *regionPlan {
	fixed, sliding := newYears()
	return newBusyPlan(5*time.Second, fixed, sliding)
}

func regionsShortWindows() *regionPlan {
	return newBusyPlan(7*time.Second, every3s("fixed", "fixed_window", 150), every3s("sliding", "sliding_window", 150))
}

func regionsBucket() *regionPlan { return newBusyPlan(6*time.Second, bucket(120)) }

// regionsOneBusy has callers only in the region that is furthest away.
func regionsOneBusy() *regionPlan {
	fixed, sliding := newYears()
	p := newRegionPlan(6*time.Second, fixed, sliding, bucket(120), every3s("fixed", "fixed_window", 150))
	for _, l := range p.limits {
		p.addDemand(l, 4, 40*time.Millisecond, 0, endOfRun, 2)
	}
	return p
}

// regionsMovingDemand has callers in two regions at first. Then all callers are in the third region.
func regionsMovingDemand() *regionPlan {
	l := yearly("year", "fixed_window", 900)
	p := newRegionPlan(11*time.Second, l)
	p.addDemand(l, 2, 40*time.Millisecond, 0, 2*time.Second, 0)
	p.addDemand(l, 2, 40*time.Millisecond, time.Second, 3*time.Second, 1)
	p.addDemand(l, 2, 80*time.Millisecond, 2*time.Second, endOfRun, 2)
	p.addDemand(l, 4, 20*time.Millisecond, 7500*time.Millisecond, endOfRun, 2)
	return p
}

// regionsBucketBurst has regions with a stock and a bucket that is almost full, and then much more demand.
func regionsBucketBurst() *regionPlan {
	l := bucket(120)
	p := newRegionPlan(4500*time.Millisecond, l)
	p.addDemand(l, 2, 100*time.Millisecond, 0, endOfRun, 0, 1, 2)
	p.addDemand(l, 6, 10*time.Millisecond, 3370*time.Millisecond, 4*time.Second, 2)
	p.addDemand(l, 6, 10*time.Millisecond, 3600*time.Millisecond, 4*time.Second, 0, 1)
	return p
}

// newCutPlan has one busy region.
func newCutPlan() *regionPlan {
	p := newRegionPlan(7*time.Second, yearly("year", "fixed_window", 900), every3s("fixed", "fixed_window", 150))
	for _, l := range p.limits {
		p.addDemand(l, 2, 20*time.Millisecond, 0, endOfRun, 1)
	}
	return p
}

func regionsCut() *regionPlan {
	p := newCutPlan()
	p.addCut(1, 1200*time.Millisecond, 3800*time.Millisecond, false, (*netmodel.Link).Cut, "the global Redis is cut off")
	return p
}

func newLossPlan() *regionPlan {
	return newBusyPlan(7*time.Second, yearly("year", "fixed_window", 600), every3s("fixed", "fixed_window", 150))
}

func regionsLostOrders() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		at := time.Duration(600+400*i) * time.Millisecond
		p.addCut(i, at, at+1700*time.Millisecond, true, (*netmodel.Link).CutToServer, "orders are lost")
	}
	return p
}

// regionsLateOrders has orders that reach the global Redis when their buyer no longer waits.
func regionsLateOrders() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		at := time.Duration(600+400*i) * time.Millisecond
		p.addCut(i, at, at+2500*time.Millisecond, false, (*netmodel.Link).CutToServer, "orders are held")
	}
	return p
}

func regionsLostAnswers() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		at := time.Duration(600+400*i) * time.Millisecond
		p.addCut(i, at, at+1700*time.Millisecond, true, (*netmodel.Link).CutToClient, "answers to orders are lost")
	}
	return p
}

func regionsSlow() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		p.addCut(i, time.Second, 4*time.Second, false, func(l *netmodel.Link) { l.Slow(time.Duration(200+200*i) * time.Millisecond) }, "the global Redis is far away")
	}
	return p
}

// regionsClocks has Redis servers whose clocks differ by seconds. A fixed_window needs no clocks that agree.
func regionsClocks() *regionPlan {
	p := newBusyPlan(7*time.Second, every3s("fixed", "fixed_window", 150))
	p.addClockStep(0, 0, 2*time.Second)
	p.addClockStep(1, 0, -3*time.Second)
	p.addReplicaClockStep(2, 0, 3*time.Second, -3*time.Second)
	p.addReplicaClockStep(2, 1, 3*time.Second, 2*time.Second)
	p.addClockDrift(2, 0.001)
	return p
}

// regionsCloseClocks has the clocks that a sliding_window and a token_bucket allow.
func regionsCloseClocks() *regionPlan {
	p := newBusyPlan(7*time.Second, every3s("sliding", "sliding_window", 150), bucket(120))
	p.addClockStep(0, time.Second, 20*time.Millisecond)
	p.addClockStep(1, time.Second, -20*time.Millisecond)
	p.addClockDrift(2, 0.001)
	return p
}

func newGlobalFaultPlan() *regionPlan {
	fixed, sliding := newYears()
	return newBusyPlan(4*time.Second, fixed, sliding, bucket(120))
}

func regionsGlobalEmpty() *regionPlan {
	p := newGlobalFaultPlan()
	p.addGlobalRestart(1500*time.Millisecond, 300*time.Millisecond, true, 0)
	return p
}

// regionsLostWrites has failovers of the global Redis, each without the writes of 90 ms.
func regionsLostWrites() *regionPlan {
	p := newGlobalFaultPlan()
	for i := range 3 {
		p.addGlobalRestart(time.Duration(300+600*i)*time.Millisecond, 50*time.Millisecond, false, 90*time.Millisecond)
	}
	return p
}

func regionsKilledBuyers() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		for j := range 3 {
			p.addKill(i, j%2, time.Duration(310+700*i+500*j)*time.Millisecond, 300*time.Millisecond)
		}
	}
	return p
}

// regionsStalls has short stalls of each Redis of a region, and a long stall.
func regionsStalls() *regionPlan {
	p := newLossPlan()
	for i := range regionCount {
		for j := range 25 {
			at := time.Duration(500+120*j) * time.Millisecond
			p.addStall(i, at, at+60*time.Millisecond)
		}
		at := 4 * time.Second
		p.addStall(i, at, at+time.Second)
	}
	return p
}

// regionsRedisEmpty has a region whose Redis starts again empty, and a region whose Redis fails over.
func regionsRedisEmpty() *regionPlan {
	p := newLossPlan()
	p.addRegionalRestart(0, 1500*time.Millisecond, 200*time.Millisecond, true, 0)
	p.addRegionalRestart(1, 2*time.Second, 100*time.Millisecond, false, 90*time.Millisecond)
	return p
}

func regionsScriptFlushes() *regionPlan {
	p := newGlobalFaultPlan()
	for i := range 20 {
		p.addScriptFlush(time.Duration(500+100*i) * time.Millisecond)
	}
	return p
}

func regionsRaisedLimit() *regionPlan {
	p := newLossPlan()
	for _, l := range p.limits {
		p.addReload(l, 4*time.Second, 2*l.max, 0)
	}
	return p
}

func regionsLoweredLimit() *regionPlan {
	p := newLossPlan()
	for _, l := range p.limits {
		p.addReload(l, 1500*time.Millisecond, l.max/2, 0)
	}
	return p
}

// regionsIdleWakes has a region that is idle at first.
func regionsIdleWakes() *regionPlan {
	fixed, sliding := newYears()
	p := newRegionPlan(9*time.Second, fixed, sliding, bucket(120))
	for _, l := range p.limits {
		p.addDemand(l, 2, 60*time.Millisecond, 0, 4*time.Second, 0, 1)
		p.addDemand(l, 2, 40*time.Millisecond, 3*time.Second, endOfRun, 2)
	}
	return p
}

// regionsGroups has calls with several hits, and a limit of each region, all or none.
func regionsGroups() *regionPlan {
	fixed, sliding := newYears()
	p := newBusyPlan(4*time.Second, fixed, sliding, bucket(120))
	p.ownMax = 150
	for i := range p.demands {
		p.demands[i].mostHits = 4
	}
	return p
}

func regionsRefunds() *regionPlan {
	fixed, _ := newYears()
	p := newBusyPlan(5*time.Second, fixed, every3s("sliding", "sliding_window", 150), bucket(120))
	p.refundShare = 0.3
	return p
}

func regionsReset() *regionPlan {
	fixed, _ := newYears()
	p := newBusyPlan(6*time.Second, fixed)
	p.addReset(1, fixed, 1200*time.Millisecond)
	return p
}
