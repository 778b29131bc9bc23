package lease

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Times and spans are microseconds. Times count from New.
const (
	second = 1_000_000

	// maxHorizon is the time for which a lease has permits if nothing else bounds them.
	maxHorizon = second

	// rateInterval is the shortest time over which the rate of a counter is measured.
	rateInterval = 20_000

	// minDemand is the number of hits from which a rate is measured before maxHorizon is over,
	// and the number of expected hits from which a lease is worth its trips: a trip for
	// permits costs about as much as so many hits.
	minDemand = 8

	// retryPause is the pause after a failed trip.
	retryPause = 50_000

	// budgetPause is the pause after the budget had no allowance to give.
	budgetPause = 250_000

	// changePause is the pause after a change of the limit.
	changePause = second

	// nearShare bounds a lease: at most 1/nearShare of the remaining hits. So the replicas share
	// the last hits of a window, and the very last hits are charged one by one.
	nearShare = 8

	// minTripPermits is the number of permits below which a lease is not worth a trip.
	minTripPermits = 2
)

// lease is the state of one counter in this replica.
type lease struct {
	key         []byte
	budgetKey   []byte
	limit       *limit.Limit
	permitLimit *limit.Limit // limit without charges of denied hits; nil before the first trip
	budget      *limit.Limit // nil before the first trip
	epoch       uint32       // number of times that all permits were dropped

	permits    int64
	reserved   int64 // permits of hits that Next is deciding
	allowance  int64
	freeBudget int64 // of the last answer; unknownBudget without an answer in this window

	// The window of the allowance. The permits end with this window, so that the budget of the
	// next window starts without any.
	windowEnd int64 // earliest time of the end; 0 if the window is not known
	window    int64 // start, in microseconds since 1970 by the clock of Redis

	remaining int64 // of the shared counter at the last answer
	answerAt  int64 // time of the last answer
	resetAt   int64 // time at which the shared counter has nothing spent

	isBusy   bool // a refill is under way
	retryAt  int64
	lowMark  int64 // a lease with as many permits or fewer takes more
	lastUsed int64

	demand    int64 // hits since rateStart
	rateStart int64
	rate      float64 // hits in a microsecond
}

const unknownBudget = -1

func newLease(h *backend.Hit, now int64) *lease {
	e := &lease{limit: h.Limit, freeBudget: unknownBudget, lastUsed: now, rateStart: now}
	e.budgetKey = append([]byte(Namespace), h.Key...)
	e.key = e.budgetKey[len(Namespace):]
	return e
}

// countDemand counts n hits at now for the rate.
func (e *lease) countDemand(now, n int64) {
	e.lastUsed = max(e.lastUsed, now)
	if span := now - e.rateStart; span >= maxHorizon || span >= rateInterval && e.demand >= minDemand {
		rate := float64(e.demand) / float64(span)
		if span < maxHorizon && e.rate > 0 {
			rate = (rate + e.rate) / 2
		}
		e.rate, e.demand, e.rateStart = rate, 0, now
	}
	e.demand += n
}

// hasEnded reports whether the window of the lease may have ended at now.
func (e *lease) hasEnded(now int64) bool { return e.windowEnd > 0 && now >= e.windowEnd }

// drop drops all permits and the allowance. It returns the number of permits.
func (e *lease) drop() (permits int64) {
	permits = e.permits
	e.epoch++
	e.permits, e.reserved, e.allowance = 0, 0, 0
	e.freeBudget, e.windowEnd, e.window = unknownBudget, 0, 0
	return permits
}

// heldPermits returns the permits that e has, also those that are reserved.
func (e *lease) heldPermits() int64 { return e.permits + e.reserved }

// observe records an answer of the shared counter at now.
func (e *lease) observe(now int64, r *limit.Result) {
	e.remaining, e.answerAt, e.resetAt = r.Remaining, now, now+r.ResetAfter
}

// answer returns the answer to a hit that permits admit.
func (e *lease) answer(now int64) limit.Result {
	return limit.Result{Allowed: true, Remaining: max(e.remaining, 0) + e.permits, ResetAfter: max(e.resetAt-now, 0)}
}

// addPermits adds the permits to r, the answer of the shared counter to h.
func (e *lease) addPermits(h *backend.Hit, r *limit.Result) {
	r.Remaining += e.permits
	if h.N == 0 && !r.Allowed && e.permits > 0 && !e.limit.Algorithm.ResetsAtOnce() {
		r.Allowed, r.RetryAfter = true, 0
	}
}

// trip has the hits that a refill sends to Source at once.
type trip struct {
	key, budgetKey []byte
	limit, budget  *limit.Limit
	window         int64  // 0 if it is not known
	epoch          uint32 // of the lease
	permits        int64  // to take
	change         int64  // of the allowance; negative to give back
}

// asksBudget reports whether t changes the allowance or reads the budget. A trip for permits
// reads the budget, because other replicas may need a part of the allowance.
func (t *trip) asksBudget() bool { return t.change != 0 || t.permits > 0 }

// plan returns the next trip at now, and whether a trip is useful.
func (e *lease) plan(now int64) (t trip, ok bool) {
	if e.isBusy || now < e.retryAt {
		return t, false
	}
	want := e.wantedPermits(now)
	if want < minTripPermits || e.demandIn(maxHorizon) < min(minDemand, e.limit.LeasePermits()) {
		return t, false
	}
	if e.budget == nil {
		e.permitLimit, e.budget = e.limit.NotCharging(), e.limit.LeaseBudget()
	}
	t = trip{key: e.key, budgetKey: e.budgetKey, limit: e.permitLimit, budget: e.budget, window: e.window, epoch: e.epoch}
	if e.freeBudget == unknownBudget {
		t.change = min(want, (e.budget.Max()+2)/3) // later trips ask for more
		return t, true
	}
	// Each replica leaves a quarter of the free budget to others. So the allowances of
	// replicas with the same demand become equal, and a new replica finds a free part.
	allowance := max(min(e.demandIn(maxHorizon), (e.allowance+e.freeBudget)*3/4), e.heldPermits(), 1)
	target := min(want, allowance, e.allowance)
	if target >= minTripPermits && e.heldPermits() <= target/4 {
		t.permits = target - e.heldPermits()
	}
	if change := allowance - e.allowance; change >= max(e.allowance/8, 1) || -change > e.allowance/8 {
		t.change = change
	}
	return t, t.permits > 0 || t.change > 0 && e.allowance < minTripPermits
}

// wantedPermits returns the permits that e should have at now: those for the time until the window
// ends or for maxHorizon, but few when the counter is near its limit.
func (e *lease) wantedPermits(now int64) int64 {
	horizon := int64(maxHorizon)
	if e.windowEnd > 0 {
		horizon = min(horizon, e.windowEnd-now)
	}
	remaining := e.remaining
	if !e.limit.Algorithm.CountsWindows() {
		remaining = min(remaining+e.limit.Refilled(now-e.answerAt), e.limit.Capacity())
	}
	return min(e.demandIn(horizon), remaining/nearShare)
}

// demandIn returns the hits that are expected in a time, but at most the budget.
func (e *lease) demandIn(micros int64) int64 {
	return int64(min(e.rate*float64(micros), float64(e.limit.LeasePermits())))
}
