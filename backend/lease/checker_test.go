package lease

import (
	"context"
	"encoding/binary"
	"flag"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// The checker visits the states of replicas that share a limit, breadth first, with all orders of hits, trips, returns and
// faults. The code of this package makes each step. The limit is small, but a lease needs 16 remaining hits for its first
// permits. A tick is half a window.

const (
	checkedRequests = 24
	checkedWaste    = 0.125 // so the budget is 3 permits
	checkedTick     = second / 2
	checkedEnd      = 5 // ticks until a path ends
)

// checkedReplica is a replica between two steps.
type checkedReplica struct {
	lease lease // its limit is nil if the replica has no lease

	// hasTrip says that trip is in flight. hasAnswers says that the shared counters have answered.
	hasTrip, hasAnswers bool
	trip                trip
	tripNumber          int
	plannedAt           int64
	permits, budget     backend.Result

	returns []permitReturn // the returns in flight
}

type checkedWorld struct {
	now      int64            // in microseconds since epoch
	counts   map[string]int64 // the counts of sharedCounters
	replicas [2]checkedReplica
	faults   int   // lost messages and crashes that may still happen
	losses   int   // how often the shared counters may still lose all data
	admitted int64 // the admitted hits of this window
	allowed  int64 // the most hits that this window may admit
	isLossy  bool  // the shared counters have lost data in this window
}

// leaseMutant changes the code into wrong code. Each field can be nil.
type leaseMutant struct {
	afterTrip       func(e *lease, t *trip, permits *backend.Result)
	afterStep       func(e *lease)
	afterLostReturn func(c *leaseChecker, g *permitReturn)
}

// leaseChecker has a Limiter, which gets the lease of a replica before a step.
type leaseChecker struct {
	t        *testing.T
	mutant   leaseMutant
	counters *sharedCounters
	limiter  *Limiter
	limit    *limit.Limit
	stripe   *stripe
	id       fingerprint.ID
	start    int64 // the time of the epoch in the Limiter
}

// hasNoMutant reports whether the checker runs the right code.
func (c *leaseChecker) hasNoMutant() bool {
	m := &c.mutant
	return m.afterTrip == nil && m.afterStep == nil && m.afterLostReturn == nil
}

func newLeaseChecker(t *testing.T, m leaseMutant) *leaseChecker {
	c := &leaseChecker{t: t, mutant: m, counters: newSharedCounters()}
	c.limit = newLimit(t, limit.Spec{Requests: checkedRequests, Unit: limit.Second, Lease: true, LeaseWaste: checkedWaste})
	c.limiter = New(Options{Next: backend.Counters{Limiter: c.counters}, Source: c.counters})
	c.limiter.createdAt = epoch.Add(-time.Hour)
	c.start = c.limiter.micros(epoch)
	c.id = c.limiter.seeds.ID([]byte("k"), c.limit.Tag())
	c.stripe = c.limiter.stripeOf(c.id)
	return c
}

// stepReplica returns the world that follows w if replica i makes a step. step gets the lease of the replica, or nil.
func (c *leaseChecker) stepReplica(w *checkedWorld, i int, step func(next *checkedWorld, r *checkedReplica, e *lease)) checkedWorld {
	next := *w
	next.counts = maps.Clone(w.counts)
	c.counters.counts, c.counters.now = next.counts, epoch.Add(time.Duration(next.now)*time.Microsecond)
	r := &next.replicas[i]
	clear(c.stripe.leases)
	var e *lease
	if r.lease.limit != nil {
		leaseCopy := r.lease
		e = &leaseCopy
		c.stripe.leases[c.id] = e
	}
	now := c.start + next.now
	c.limiter.spawn = func(func()) { // the checker makes the trip of a refill
		e := c.stripe.leases[c.id]
		e.isRefilling = false
		t, ok := e.planTrip(now)
		require.True(c.t, ok)
		e.isRefilling = true
		r.hasTrip, r.hasAnswers, r.trip, r.tripNumber, r.plannedAt = true, false, t, 1, now
	}
	step(&next, r, e)
	r.lease = lease{}
	if e = c.stripe.leases[c.id]; e != nil {
		if c.mutant.afterStep != nil {
			c.mutant.afterStep(e)
		}
		// Demand is always large, each lease is idle, and no trip waits after a failure.
		e.rate, e.rateHits, e.rateStart, e.lastHitAt, e.retryAt, e.answeredAt, e.resetAt = 1, 0, now, now-idleTime, 0, now, now
		r.lease = *e
	}
	return next
}

func (c *leaseChecker) takeHits(next *checkedWorld, hits int64) {
	results := make([]backend.Result, 1)
	c.limiter.Take(context.Background(), c.counters.now, []backend.Hit{{Key: []byte("k"), Limit: c.limit, N: hits}}, results)
	if results[0].Allowed {
		next.admitted += hits
	}
}

// passAnswers passes answers to a trip.
func (c *leaseChecker) passAnswers(r *checkedReplica, e *lease, permits, budget backend.Result) {
	t, plannedAt := r.trip, r.plannedAt
	r.hasTrip = false
	if e == nil {
		return
	}
	r.trip, r.hasTrip = c.limiter.finishTrip(c.stripe, e, t, plannedAt, permits, budget, r.tripNumber < maxTrips)
	r.hasAnswers = false
	r.tripNumber++
	if c.mutant.afterTrip != nil && e.epoch == t.epoch {
		c.mutant.afterTrip(e, &t, &permits)
	}
}

// sendReturns sends the returns of a replica. If the trip of the permits fails, err is its error.
func (c *leaseChecker) sendReturns(r *checkedReplica, err error, isCharged bool) {
	returns := append([]permitReturn(nil), r.returns...)
	r.returns = nil
	if err == nil {
		c.limiter.giveBackPart(returns, c.start)
		return
	}
	source := c.limiter.options.Source
	defer func() { c.limiter.options.Source = source }()
	trips := 0
	c.limiter.options.Source = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		if trips++; trips == 1 && returns[0].permits > 0 {
			c.counters.err, c.counters.chargesBeforeError = err, isCharged
			defer func() { c.counters.err, c.counters.chargesBeforeError = nil, false }()
		}
		source.Take(ctx, now, hits, results)
	})
	c.limiter.giveBackPart(returns, c.start)
	if c.mutant.afterLostReturn != nil && returns[0].permits > 0 {
		c.mutant.afterLostReturn(c, &returns[0])
	}
}

// successors returns the worlds that follow w.
func (c *leaseChecker) successors(w *checkedWorld) (nextWorlds []checkedWorld) {
	add := func(i int, faults int, step func(next *checkedWorld, r *checkedReplica, e *lease)) {
		if w.faults >= faults {
			next := c.stepReplica(w, i, step)
			next.faults -= faults
			nextWorlds = append(nextWorlds, next)
		}
	}
	lostAnswer := backend.Result{Err: errDown}
	unsentAnswer := backend.Result{Err: &backend.Error{NotSent: true}}
	for i := range w.replicas {
		r := &w.replicas[i]
		for _, hits := range []int64{1, 8} {
			add(i, 0, func(next *checkedWorld, _ *checkedReplica, _ *lease) { c.takeHits(next, hits) })
		}
		switch {
		case r.hasTrip && !r.hasAnswers:
			add(i, 0, c.completeTrips)
			add(i, 0, func(_ *checkedWorld, r *checkedReplica, _ *lease) {
				r.hasAnswers = true
				r.permits, r.budget = c.limiter.sendTrip(r.trip, r.plannedAt)
			})
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, e *lease) { c.passAnswers(r, e, unsentAnswer, unsentAnswer) })
		case r.hasTrip:
			add(i, 0, func(_ *checkedWorld, r *checkedReplica, e *lease) { c.passAnswers(r, e, r.permits, r.budget) })
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, e *lease) { c.passAnswers(r, e, lostAnswer, lostAnswer) })
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, e *lease) { c.passAnswers(r, e, lostAnswer, r.budget) })
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, e *lease) { c.passAnswers(r, e, r.permits, lostAnswer) })
		}
		if len(r.returns) > 0 {
			add(i, 0, func(_ *checkedWorld, r *checkedReplica, _ *lease) { c.sendReturns(r, nil, false) })
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, _ *lease) { c.sendReturns(r, errDown, true) })
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, _ *lease) { c.sendReturns(r, errDown, false) })
		} else if r.lease.limit != nil && !r.hasTrip {
			add(i, 0, func(next *checkedWorld, r *checkedReplica, _ *lease) { r.returns = c.stripe.sweep(c.start + next.now) })
		}
		if r.lease.limit != nil || r.hasTrip {
			add(i, 1, func(_ *checkedWorld, r *checkedReplica, _ *lease) { // a crash
				*r = checkedReplica{}
				clear(c.stripe.leases)
			})
		}
	}
	if w.losses > 0 {
		next := *w
		next.losses--
		next.counts, next.allowed, next.isLossy = map[string]int64{}, next.allowed+checkedRequests, true
		nextWorlds = append(nextWorlds, next)
	}
	if w.now < checkedEnd*checkedTick {
		nextWorlds = append(nextWorlds, c.afterTick(w))
	}
	return nextWorlds
}

func (c *leaseChecker) afterTick(w *checkedWorld) checkedWorld {
	next := *w
	if next.now += checkedTick; next.now%second == 0 {
		next.admitted, next.allowed, next.isLossy = 0, checkedRequests, false
	}
	return next
}

// unusedPermits returns the permits that are charged in this window, and have admitted no hit.
func (c *leaseChecker) unusedPermits(w *checkedWorld) int64 {
	c.counters.counts, c.counters.now = w.counts, epoch.Add(time.Duration(w.now)*time.Microsecond)
	return c.counters.count(c.limit, "k") - w.admitted
}

// brokenPromise returns the promise that w breaks, or nothing.
func (c *leaseChecker) brokenPromise(w *checkedWorld) string {
	switch unusedPermits := c.unusedPermits(w); {
	case w.admitted > w.allowed:
		return "the window admits more than the limit"
	case !w.isLossy && unusedPermits < 0:
		return "an admitted hit is not charged in its window"
	case !w.isLossy && unusedPermits > c.limit.MaxLeasePermits():
		return "the replicas hold more than the budget"
	}
	return ""
}

// completeTrips lets all trips of a refill, and their answers, arrive at once.
func (c *leaseChecker) completeTrips(_ *checkedWorld, r *checkedReplica, e *lease) {
	for r.hasTrip {
		if !r.hasAnswers {
			r.permits, r.budget = c.limiter.sendTrip(r.trip, r.plannedAt)
		}
		c.passAnswers(r, e, r.permits, r.budget)
	}
}

// canAdmitWholeLimit lets the messages in flight arrive, and starts a new window without faults. It reports whether a replica then
// admits the whole limit.
func (c *leaseChecker) canAdmitWholeLimit(w checkedWorld, i int) bool {
	settle := func() {
		for j := range w.replicas {
			w = c.stepReplica(&w, j, c.completeTrips)
		}
	}
	settle()
	for w = c.afterTick(&w); w.now%second != 0; {
		w = c.afterTick(&w)
	}
	for range checkedRequests + 1 {
		w = c.stepReplica(&w, i, func(n *checkedWorld, _ *checkedReplica, _ *lease) { c.takeHits(n, 1) })
		settle()
	}
	return w.admitted == checkedRequests
}

// stateKey names w. Worlds with equal keys have equal successors.
func (c *leaseChecker) stateKey(w *checkedWorld) string {
	b := make([]byte, 0, 160)
	add := func(numbers ...int64) {
		for _, n := range numbers {
			b = binary.AppendVarint(b, n)
		}
	}
	boolNumber := func(is bool) int64 {
		if is {
			return 1
		}
		return 0
	}
	age := func(time int64) int64 {
		if time == 0 {
			return -1
		}
		return (time - c.start - w.now) / 1000
	}
	windowAge := func(time int64) int64 {
		if time == 0 {
			return -1
		}
		return (time - epoch.UnixMicro() - w.now) / 1000
	}
	replicaKeys := make([]string, len(w.replicas))
	add(w.now, int64(w.faults), int64(w.losses), w.admitted, w.allowed, boolNumber(w.isLossy))
	commonLength := len(b)
	for i := range w.replicas {
		r := &w.replicas[i]
		e := &r.lease
		add(boolNumber(e.limit != nil), e.permits, e.allowance, e.freeBudget, age(e.windowEnd), windowAge(e.windowStart), e.remaining, e.lowPermits)
		add(boolNumber(r.hasTrip))
		if r.hasTrip {
			add(boolNumber(r.hasAnswers), boolNumber(r.trip.epoch == e.epoch), r.trip.permits, r.trip.allowanceChange, windowAge(r.trip.windowStart), int64(r.tripNumber), age(r.plannedAt))
			if r.hasAnswers {
				for _, a := range []*backend.Result{&r.permits, &r.budget} {
					add(boolNumber(a.Allowed), a.Remaining, windowAge(a.WindowStart), a.ResetAfter)
				}
			}
		}
		add(int64(len(r.returns)))
		for _, g := range r.returns {
			add(g.permits, g.allowance, windowAge(g.windowStart))
		}
		replicaKeys[i] = string(b[commonLength:])
		b = b[:commonLength]
	}
	slices.Sort(replicaKeys) // the order of the replicas does not matter
	for _, key := range replicaKeys {
		b = append(b, key...)
	}
	window := epoch.UnixMicro() + w.now - w.now%second
	for _, start := range []int64{window, window - second} {
		for _, key := range []string{"k", Namespace + "k"} {
			lim := c.limit
			if key != "k" {
				lim = c.limit.LeaseBudget()
			}
			add(w.counts[counterName(&backend.Hit{Limit: lim, Key: []byte(key)}, start)])
		}
	}
	return string(b)
}

// visitStates visits at most n worlds. It returns the number of visited worlds, and the first promise that a world breaks.
func (c *leaseChecker) visitStates(n, faults, losses int) (visitedCount int, brokenPromise string) {
	start := checkedWorld{counts: map[string]int64{}, faults: faults, losses: losses, allowed: checkedRequests}
	for range 2 { // the first replica has its first permits
		start = c.stepReplica(&start, 0, func(n *checkedWorld, _ *checkedReplica, _ *lease) { c.takeHits(n, 1) })
		start = c.stepReplica(&start, 0, c.completeTrips)
	}
	seenStates := map[string]bool{c.stateKey(&start): true}
	for queue := []checkedWorld{start}; len(queue) > 0 && len(seenStates) < n; queue = queue[1:] {
		w := &queue[0]
		if visitedCount++; visitedCount%500 == 0 && c.hasNoMutant() && !c.canAdmitWholeLimit(*w, visitedCount/500%2) {
			return visitedCount, "a new window admits less than the limit"
		}
		for _, f := range c.successors(w) {
			if brokenPromise = c.brokenPromise(&f); brokenPromise != "" {
				return visitedCount, brokenPromise
			}
			if key := c.stateKey(&f); !seenStates[key] {
				seenStates[key] = true
				queue = append(queue, f)
			}
		}
	}
	return visitedCount, ""
}

func TestCheckerFindsNoOrderOfEventsThatBreaksAPromise(t *testing.T) {
	for name, test := range map[string]struct{ faults, losses int }{
		"no faults":                  {0, 0},
		"two faults":                 {2, 0},
		"a fault and a loss of data": {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLeaseChecker(t, leaseMutant{})
			visitedCount, brokenPromise := c.visitStates(*maxWorlds, test.faults, test.losses)
			assert.Empty(t, brokenPromise)
			t.Logf("%d worlds", visitedCount)
		})
	}
}

// maxWorlds is the number of worlds that a check remembers.
var maxWorlds = flag.Int("worlds", 12_000, "worlds that the checker remembers")

func TestCheckerFindsMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		mutant leaseMutant
		faults int
		want   string
	}{
		"permits of a lost answer count as given back": {
			leaseMutant{afterTrip: func(e *lease, t *trip, permits *backend.Result) {
				if t.permits > 0 && permits.Err != nil {
					e.allowance += t.permits
				}
			}}, 1, "the replicas hold more than the budget",
		},
		"permits stay in the next window": {
			leaseMutant{afterStep: func(e *lease) {
				if e.windowEnd > 0 {
					e.windowEnd = 1 << 60
				}
			}}, 1, "an admitted hit is not charged in its window",
		},
		"permits of a lost return leave the budget": {
			leaseMutant{afterLostReturn: func(c *leaseChecker, g *permitReturn) {
				h := g.budgetHit(-g.permits)
				c.counters.take(&h)
			}}, 1, "the replicas hold more than the budget",
		},
	} {
		t.Run(name, func(t *testing.T) {
			visitedCount, brokenPromise := newLeaseChecker(t, test.mutant).visitStates(*maxWorlds, test.faults, 0)
			assert.Equal(t, test.want, brokenPromise)
			t.Logf("%d worlds", visitedCount)
		})
	}
}
