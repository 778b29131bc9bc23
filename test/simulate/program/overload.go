package main

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"time"
)

// pauseAll stops all replicas and callers for d, as if they got no CPU time. Redis and the network go on,
// so the times of their answers are in the past after the pause.
func (f *fleet) pauseAll(d time.Duration) {
	f.pausedTime += d
	hostPause(d.Nanoseconds())
	f.lastPause = elapsed()
	if d > pauseGrace {
		f.lastLongPause = f.lastPause
	}
}

// drawPauses draws times without CPU time, as a container has beyond its CPU limit.
func (p *plan) drawPauses(r *rand.Rand, at time.Duration) {
	for range pick(r, 1, 5, 30) {
		pause := between(r, 5*time.Millisecond, 150*time.Millisecond)
		p.addPause(at, pause)
		at += pause + between(r, 5*time.Millisecond, 100*time.Millisecond)
		if at >= p.duration {
			return
		}
	}
}

func (p *plan) addPause(at, pause time.Duration) {
	p.addEvent(at, func(f *fleet) { f.pauseAll(pause) }, "no CPU time for %v", pause)
}

// flood describes callers who send calls without a pause.
type flood struct {
	replica int
	callers int
	cancels bool          // each caller cancels each call after at most a millisecond
	cpuTime time.Duration // of a call

	// cpuLimit is the CPU time of the flood in each cpuPeriod. Then nothing runs until the period ends, as
	// in a container with a CPU limit. 0 means no limit.
	cpuLimit time.Duration
}

// cpuPeriod is the time over which Linux counts the CPU time of a container with a CPU limit.
const cpuPeriod = 100 * time.Millisecond

// drawFlood draws a flood of calls to one replica.
func (p *plan) drawFlood(r *rand.Rand, at time.Duration) {
	o := flood{replica: r.IntN(p.replicas), callers: pick(r, 8, 30, 300), cancels: r.IntN(2) == 0, cpuTime: pick(r, 50*time.Microsecond, 100*time.Microsecond)}
	p.addFlood(o, at, at+between(r, 50*time.Millisecond, 400*time.Millisecond))
}

func (p *plan) addFlood(o flood, from, to time.Duration) {
	to = min(to, p.duration)
	text := "%d callers of replica %d make no pauses"
	if o.cancels {
		text += " and cancel their calls"
	}
	var stop func()
	p.addStartAndEnd(from, to, func(f *fleet) { stop = f.startFlood(o) }, func(*fleet) { stop() }, text, o.callers, o.replica)
}

// startFlood starts the callers of a flood. The returned function stops them.
func (f *fleet) startFlood(o flood) (stop func()) {
	var running sync.WaitGroup
	isStopped, usedTime := false, time.Duration(0)
	for i := range o.callers {
		random := rand.New(rand.NewPCG(f.plan.seed, uint64(1000+i)))
		running.Go(func() {
			for !isStopped && f.currentReplicas[o.replica] != nil {
				f.pauseAll(o.cpuTime)
				if usedTime += o.cpuTime; o.cpuLimit > 0 && usedTime >= o.cpuLimit {
					usedTime = 0
					f.pauseAll(cpuPeriod - o.cpuLimit)
				}
				runtime.Gosched() // nothing interrupts a caller whose calls do not wait
				f.sendCall(f.currentReplicas[o.replica], callOptions{cancels: o.cancels, patience: time.Duration(random.Int64N(int64(time.Millisecond)))})
			}
		})
	}
	return func() { isStopped = true; running.Wait() }
}
