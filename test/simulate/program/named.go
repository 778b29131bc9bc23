package main

import "time"

// namedPlans are schedules of defects that rls has had.
var namedPlans = map[string]*plan{"late-answers": lateAnswers()}

// lateAnswers is sixty stalls that are a little longer than the timeout.
func lateAnswers() *plan {
	p := &plan{
		replicas: 3, duration: 8 * time.Second, timeout: 50 * time.Millisecond, ratio: 0.5, maxQueue: 4096, maxBatch: 256, inflight: 1,
		maxHits: 300, unit: "year", algorithm: "fixed_window", callAlgorithm: "fixed_window", failureMode: "local",
		callers: 4, pause: 10 * time.Millisecond, delay: 100 * time.Microsecond,
	}
	for i := range 60 {
		at := time.Duration(i+1) * 120 * time.Millisecond
		p.addRange(fault{start: at, end: at + 60*time.Millisecond}, func(f *fleet) { f.redis.stall() }, func(f *fleet) { f.redis.resume() }, "Redis stalls")
	}
	return p
}
