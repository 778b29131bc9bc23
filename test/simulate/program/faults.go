package main

import (
	"math/rand/v2"
	"time"

	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// drawFault draws a fault, or several that belong together, and adds them to the schedule.
func (p *plan) drawFault(r *rand.Rand, at time.Duration) {
	kinds := []func(*plan, *rand.Rand, time.Duration){
		(*plan).drawStalls, (*plan).drawStalls, (*plan).drawCut, (*plan).drawRefusal, (*plan).drawSlowness, (*plan).drawResets,
		(*plan).drawCrash, (*plan).drawFailover, (*plan).drawScriptFlushes, (*plan).drawMode, (*plan).drawServerClockStep,
		(*plan).drawReplicaClockStep, (*plan).drawRestart, (*plan).drawReload, (*plan).drawPauses, (*plan).drawFlood,
	}
	kinds[r.IntN(len(kinds))](p, r, at)
}

// addFault adds a fault of Redis or of the network, with an event at its start and one at its end.
func (p *plan) addFault(f fault, begin, end func(*fleet), format string, args ...any) {
	f.end = min(f.end, p.duration)
	p.faults = append(p.faults, f)
	p.addStartAndEnd(f.start, f.end, begin, end, format, args...)
}

// addStartAndEnd adds an event at a time from, and one at a time to.
func (p *plan) addStartAndEnd(from, to time.Duration, begin, end func(*fleet), format string, args ...any) {
	p.addEvent(from, begin, format+" for %v", append(args, to-from)...)
	p.addEvent(to, end, format+" ends", args...)
}

// drawStalls draws up to sixty short stalls of Redis, or a long one.
func (p *plan) drawStalls(r *rand.Rand, at time.Duration) {
	count, longest := pick(r, 1, 5, 60), 90*time.Millisecond
	if count == 1 {
		longest, p.losesAnswers = 2*time.Second, true
	}
	for range count {
		end := at + between(r, 10*time.Millisecond, longest)
		p.addFault(fault{start: at, end: end}, func(f *fleet) { f.redis.stall() }, func(f *fleet) { f.redis.resume() }, "Redis stalls")
		at = end + between(r, 5*time.Millisecond, 80*time.Millisecond)
		if at >= p.duration {
			return
		}
	}
}

// drawCut draws a cut of the network of one replica or of all.
func (p *plan) drawCut(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	first, count := r.IntN(p.replicas), 1
	if r.IntN(2) == 0 {
		first, count = 0, p.replicas
	}
	p.addFault(fault{start: at, end: at + between(r, 20*time.Millisecond, 2*time.Second)},
		func(f *fleet) {
			for i := range count {
				f.links[first+i].Cut()
			}
		},
		func(f *fleet) {
			for i := range count {
				f.links[first+i].Heal()
			}
		}, "network of %d replicas from replica %d is cut", count, first)
}

// drawRefusal draws a time in which Redis refuses connections of a replica. First all of them break.
func (p *plan) drawRefusal(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	i := r.IntN(p.replicas)
	p.addFault(fault{start: at, end: at + between(r, 20*time.Millisecond, time.Second)},
		func(f *fleet) { f.links[i].Refuse(); f.links[i].Reset() },
		func(f *fleet) { f.links[i].Heal() }, "Redis refuses connections of replica %d", i)
}

// drawSlowness draws a time in which the network of a replica is slower.
func (p *plan) drawSlowness(r *rand.Rand, at time.Duration) {
	i, delay := r.IntN(p.replicas), between(r, 5*time.Millisecond, 80*time.Millisecond)
	p.addFault(fault{start: at, end: at + between(r, 50*time.Millisecond, 2*time.Second)},
		func(f *fleet) { f.links[i].Slow(delay) },
		func(f *fleet) { f.links[i].Heal() }, "network of replica %d is slower by %v", i, delay)
}

// drawResets draws several times at which the connections of all replicas break.
func (p *plan) drawResets(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	for range 1 + r.IntN(8) {
		p.faults = append(p.faults, fault{start: at, end: at})
		p.addEvent(at, func(f *fleet) { f.resetConnections() }, "all connections break")
		at += between(r, 5*time.Millisecond, 200*time.Millisecond)
	}
}

// drawCrash draws a crash of Redis. Redis starts again later, empty or with all its data.
func (p *plan) drawCrash(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	isEmpty := r.IntN(2) == 0
	kind := "with its data"
	if isEmpty {
		kind = "empty"
	}
	p.addFault(fault{start: at, end: at + between(r, 10*time.Millisecond, 2*time.Second), losesData: isEmpty},
		func(f *fleet) {
			if isEmpty {
				f.lossTimes = append(f.lossTimes, elapsed())
			} else {
				f.redis.keepCopy()
			}
			f.crashRedis(isEmpty)
		},
		(*fleet).healNetwork, "Redis is down, then comes up %s,", kind)
}

// drawFailover draws a failover to a Redis replica without the last writes.
func (p *plan) drawFailover(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	lag := between(r, time.Millisecond, 90*time.Millisecond)
	p.addEvent(at-lag, func(f *fleet) { f.redis.keepCopy() }, "the Redis replica gets no more writes")
	p.addFault(fault{start: at, end: at + between(r, 10*time.Millisecond, time.Second), losesData: true},
		func(f *fleet) {
			f.lossTimes = append(f.lossTimes, elapsed())
			f.crashRedis(false)
		},
		(*fleet).healNetwork, "Redis fails over without the writes of %v,", lag)
}

// crashRedis ends Redis and refuses connections. The next Redis is empty, or has the kept copy.
func (f *fleet) crashRedis(isEmpty bool) {
	f.eachLink((*netmodel.Link).Refuse)
	f.resetConnections()
	f.redis.restart(isEmpty)
}

// healNetwork accepts connections again, and ends cuts and delays of the network.
func (f *fleet) healNetwork() { f.eachLink((*netmodel.Link).Heal) }

func (p *plan) drawScriptFlushes(r *rand.Rand, at time.Duration) {
	for range 1 + r.IntN(20) {
		p.addEvent(at, func(f *fleet) { f.redis.execute("SCRIPT", "FLUSH") }, "SCRIPT FLUSH")
		at += between(r, time.Millisecond, 50*time.Millisecond)
	}
}

// drawMode draws a time in which Redis refuses commands.
func (p *plan) drawMode(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	mode, name := resp.ReadOnly, "read only"
	if r.IntN(2) == 0 {
		mode, name = resp.Loading, "loading its data"
	}
	p.addFault(fault{start: at, end: at + between(r, 10*time.Millisecond, time.Second)},
		func(f *fleet) { f.redis.setMode(mode) },
		func(f *fleet) { f.redis.setMode(resp.Normal) }, "Redis is %s", name)
}

func (p *plan) drawServerClockStep(r *rand.Rand, at time.Duration) {
	step := between(r, -3*time.Second, 3*time.Second)
	p.addEvent(at, func(f *fleet) { f.redis.clockStep += step }, "clock of Redis steps by %v", step)
	p.clockSteps++
}

func (p *plan) drawReplicaClockStep(r *rand.Rand, at time.Duration) {
	i, step := r.IntN(p.replicas), between(r, -3*time.Second, 3*time.Second)
	p.addEvent(at, func(f *fleet) { f.clockSteps[i] += step }, "clock of replica %d steps by %v", i, step)
	p.clockSteps++
}

// drawRestart draws the restart of a replica, which is killed or ends after its last calls.
func (p *plan) drawRestart(r *rand.Rand, at time.Duration) {
	p.losesAnswers = true
	p.addRestart(r.IntN(p.replicas), at, pick(r, 0, time.Second))
}

// addRestart adds a restart of replica i. Without a drain it is killed.
func (p *plan) addRestart(i int, at, drain time.Duration) {
	stopped := at + drain
	p.addEvent(at, func(f *fleet) {
		r := f.currentReplicas[i]
		f.currentReplicas[i] = nil
		if r != nil && drain == 0 {
			r.kill()
		}
	}, "replica %d gets no more calls, and ends after %v", i, drain)
	p.addEvent(stopped, func(f *fleet) {
		for _, r := range f.replicas {
			if r.number == i && f.currentReplicas[i] != r {
				r.close()
			}
		}
		if f.currentReplicas[i] == nil {
			f.currentReplicas[i] = f.startReplica(i)
		}
	}, "replica %d starts again", i)
	p.restarts++
}

// drawDeletion draws the deletion of the tight counter, in an eighth of the seeds.
func (p *plan) drawDeletion(r *rand.Rand) {
	if r.IntN(8) == 0 {
		p.addDeletion(between(r, 100*time.Millisecond, p.duration-100*time.Millisecond))
		p.sortEvents()
	}
}

// addDeletion adds the deletion of the tight counter.
func (p *plan) addDeletion(at time.Duration) {
	p.addEvent(at, func(f *fleet) { f.redis.deleteTightCounter() }, "an operator deletes the tight counter")
	p.deletions++
}

// drawReload draws a reload with another maximum of the tight limit.
func (p *plan) drawReload(r *rand.Rand, at time.Duration) {
	maxHits, leaseWaste := pick(r, p.maxHits, max(p.maxHits/2, 1), 2*p.maxHits), p.leaseWaste
	if leaseWaste > 0 {
		leaseWaste = pick(r, leaseWaste, leaseWaste, 0)
	}
	p.addReload(at, maxHits, leaseWaste)
}

func (p *plan) addReload(at time.Duration, maxHits int, leaseWaste float64) {
	p.addEvent(at, func(f *fleet) { f.setLimit(maxHits, leaseWaste) }, "limits are loaded: %d hits, lease waste %v", maxHits, leaseWaste)
	p.reloadedMax = max(p.reloadedMax, maxHits)
}
