package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// plan is everything that a run does: the settings of the replicas, the calls, and the schedule
// of the faults. It is drawn before the run.
//
// Each call has hits on two counters. All calls share the counter of the tight limit, which is usually soon
// used up. And each call has a counter of its own, whose limit is never reached.
type plan struct {
	seed     uint64
	replicas int
	duration time.Duration // of the calls

	// Settings of the replicas.
	timeout                      time.Duration
	fallbackRatio                float64
	maxQueue, maxBatch, inflight int
	waitReplicas                 int  // that must have the charges; Redis has none
	autoTimeout                  bool // timeout is then the longest one that may come of it
	denyCache, allOrNone         bool
	perSecondRedis               bool // limits per second have a Redis of their own

	// The limits.
	maxHits                                     int // of the tight limit
	unit, algorithm, callAlgorithm, failureMode string
	chargeDenied                                bool    // of the tight limit, if it has a fixed window
	leaseWaste                                  float64 // lease_waste of the tight limit; 0 without a lease
	burst                                       int     // of the tight limit; 0 for none
	secondMax                                   int     // of the limit per second that each call has too; 0 for none

	// The calls of each replica.
	callers     int
	callerPause time.Duration // mean time between two calls of a caller
	deadline    time.Duration // of a call; 0 means no deadline
	cancelShare float64       // of the calls, which their callers cancel
	refundShare float64       // of the admitted calls, which their callers take back

	// Callers wait for permits with rls-acquire. Calls with several limits need this, or allOrNone.
	acquires         bool
	refundsElsewhere bool // callers take back calls through the last replica

	holds holdPlan

	networkDelay time.Duration // least delay of the network in one direction
	distance     time.Duration // further delay of all bytes in one direction

	events       []event
	faults       []fault
	losesAnswers bool // answers of Redis can be lost, or more than a second late
	clockSteps   int  // number of changes of a machine's clock
	deletions    int  // number of deletions of the tight counter
	restarts     int  // number of restarts of a replica
	reloadedMax  int  // the highest maximum of the tight limit after a reload
}

// event is one step of the schedule.
type event struct {
	at   time.Duration
	text string
	run  func(*fleet)
}

// fault is a time in which Redis or the network does not work.
type fault struct {
	start, end time.Duration
	losesData  bool
}

// defaultQueue is the default of REDIS_MAX_QUEUE_SIZE.
const defaultQueue = 4096

// pick returns one of the values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// between returns a duration from low to high, in whole milliseconds.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64((high-low)/time.Millisecond)+1))*time.Millisecond
}

// newPlan draws the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &plan{
		seed:          seed,
		replicas:      1 + r.IntN(3),
		duration:      between(r, 2*time.Second, 6*time.Second),
		timeout:       pick(r, 20*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond),
		fallbackRatio: pick(r, 0.1, 0.34, 0.5),
		maxQueue:      pick(r, 1, 8, defaultQueue, defaultQueue),
		maxBatch:      pick(r, 4, 256),
		inflight:      1 + r.IntN(2),
		denyCache:     r.IntN(2) == 0,
		allOrNone:     r.IntN(4) >= 0 && r.IntN(5) == 0, // a setting that is removed had the first draw; so a seed keeps its plan
		maxHits:       pick(r, 1, 30, 100, 300),
		unit:          pick(r, "year", "year", "year", "second"),
		algorithm:     pick(r, "fixed_window", "fixed_window", "fixed_window", "sliding_window", "sliding_log", "token_bucket", "first_hit_window"),
		callAlgorithm: pick(r, "fixed_window", "fixed_window", "sliding_log"),
		failureMode:   pick(r, "local", "local", "local", "deny", "allow"),
		callers:       1 + r.IntN(6),
		callerPause:   between(r, 5*time.Millisecond, 40*time.Millisecond),
		deadline:      pick(r, 0, 0, 20*time.Millisecond, 200*time.Millisecond),
		cancelShare:   pick(r, 0, 0, 0, 0.1, 0.9),
		networkDelay:  time.Duration(50+r.IntN(400)) * time.Microsecond,
	}
	if (p.algorithm == "fixed_window" || p.algorithm == "token_bucket") && r.IntN(2) == 0 {
		p.leaseWaste, p.maxHits = pick(r, 0.1, 0.5), pick(r, 30, 100, 300, 1000)
	}
	p.chargeDenied = p.algorithm == "fixed_window" && r.IntN(2) == 0
	for range r.IntN(5) {
		p.drawFault(r, between(r, 100*time.Millisecond, p.duration-100*time.Millisecond))
	}
	p.sortEvents()
	p.refundShare = pick(r, 0, 0, 0, 0.3)
	p.drawHolds(rand.New(rand.NewPCG(seed, 2000)))
	p.drawWaits(rand.New(rand.NewPCG(seed, 5000)))
	p.drawDeletion(rand.New(rand.NewPCG(seed, 4000)))
	return p
}

// drawWaits draws whether callers wait for permits, and the replica through which they take back calls.
func (p *plan) drawWaits(r *rand.Rand) {
	p.acquires = r.IntN(6) == 0
	p.refundsElsewhere = r.IntN(2) == 0
}

func (p *plan) sortEvents() {
	slices.SortStableFunc(p.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
}

func (p *plan) addEvent(at time.Duration, run func(*fleet), format string, args ...any) {
	p.events = append(p.events, event{min(at, p.duration), fmt.Sprintf(format, args...), run})
}

// highestMax returns the highest maximum that the tight limit has in the run.
func (p *plan) highestMax() int64 { return int64(max(p.maxHits, p.reloadedMax)) }

// leaseBudget returns the most permits that all replicas together may hold unused.
func (p *plan) leaseBudget() int64 { return int64(p.leaseWaste * float64(p.highestMax())) }

// dataLosses returns how often the tight counter is lost.
func (p *plan) dataLosses() int {
	n := p.deletions
	for _, f := range p.faults {
		if f.losesData {
			n++
		}
	}
	return n
}

// isInFault reports whether a fault of Redis or of the network includes the time at, or has ended at most
// after (a duration) earlier.
func (p *plan) isInFault(at, after time.Duration) bool {
	return slices.ContainsFunc(p.faults, func(f fault) bool { return f.start <= at && at <= f.end+after })
}

// print writes the plan to the trace.
func (p *plan) print() {
	fmt.Fprintf(output, "seed %d: %d replicas for %v; timeout %v, ratio %v, queue %d, batch %d, in flight %d, deny cache %v, all or none %v\n",
		p.seed, p.replicas, p.duration, p.timeout, p.fallbackRatio, p.maxQueue, p.maxBatch, p.inflight, p.denyCache, p.allOrNone)
	fmt.Fprintf(output, "limit: %d per %s, %s, charge_denied %v, lease waste %v, on_backend_failure %s; each call also has a counter of its own, %s\n",
		p.maxHits, p.unit, p.algorithm, p.chargeDenied, p.leaseWaste, p.failureMode, p.callAlgorithm)
	fmt.Fprintf(output, "calls of each replica: %d callers, pause %v, deadline %v, canceled %v, taken back %v (elsewhere %v), waiting for permits %v; network delay %v\n",
		p.callers, p.callerPause, p.deadline, p.cancelShare, p.refundShare, p.refundsElsewhere, p.acquires, p.networkDelay)
	if p.holds.slots > 0 {
		fmt.Fprintf(output, "holds: %+v\n", p.holds)
	}
	for _, e := range p.events {
		fmt.Fprintf(output, "at %v: %s\n", e.at, e.text)
	}
}
