package lease

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Durations are in microseconds. A time is the number of microseconds since the call of New.
const (
	second       = 1_000_000
	maxHorizon   = second  // a lease has at most as many permits as hits are expected in this time
	rateInterval = 20_000  // the shortest time for a measurement of the rate of a counter
	retryPause   = 50_000  // the pause after a failed trip
	budgetPause  = 250_000 // the pause after a trip that found no free permits in the budget
	changePause  = second  // the pause after a reload that changed the limit

	// minDemand is the least number of expected hits in maxHorizon for which a lease takes permits, because a trip
	// costs about as much as minDemand hits. A measurement that is shorter than maxHorizon needs this many hits too.
	minDemand = 8

	// remainingDivisor bounds the permits of a lease to an eighth of the hits that remain in the shared counter.
	// So the replicas share the last hits of a window.
	remainingDivisor = 8

	minTripPermits = 2 // the least number of permits that a trip takes
)

// account names the shared counter of a lease and the counter of its budget. Its methods return hits on these counters.
type account struct {
	key, budgetKey []byte
	limit          *limit.Limit
	budget         *limit.Limit // the limit of the budget's counter; nil before the first trip
	windowStart    int64        // the start of the allowance's window, in microseconds since 1970 on the clock of Redis; 0 if unknown
}

func (a *account) permitHit(n int64) backend.Hit {
	return backend.Hit{Key: a.key, Limit: a.limit, N: n, WindowStart: a.windowStart, Shadow: true}
}

func (a *account) budgetHit(n int64) backend.Hit {
	return backend.Hit{Key: a.budgetKey, Limit: a.budget, N: n, WindowStart: a.windowStart, Shadow: true}
}

type lease struct {
	account
	// epoch is the number of calls of dropPermits. A reservation or a trip stores the epoch in which it began. If the lease
	// has a later epoch, the permits were dropped.
	epoch uint32

	permits         int64 // the permits that no hit has reserved
	reservedPermits int64 // the permits that hits have reserved until the decision about their call
	allowance       int64 // the most permits that this replica may have
	freeBudget      int64 // the part of the budget that no replica had taken at the last answer, or unknownBudget

	windowEnd int64 // when the window ends and the permits expire; it can be too early, but not too late; 0 if unknown

	remaining  int64 // the Remaining of the shared counter in its last answer
	answeredAt int64 // the time of the last answer
	resetAt    int64 // the time at which the shared counter has no spent hits

	isRefilling     bool  // a refill is running
	retryAt         int64 // the earliest time of the next trip
	refillThreshold int64 // the number of permits at which the lease takes more permits
	lastHitAt       int64 // the time of the last hit

	rateHits  int64   // the number of hits since rateStart
	rateStart int64   // the time at which the measurement of the rate began
	rate      float64 // the last measured rate, in hits per microsecond
}

// unknownBudget is the freeBudget before the first answer in a window.
const unknownBudget = -1

func newLease(h *backend.Hit, now int64) *lease {
	budgetKey := append([]byte(Namespace), h.Key...)
	return &lease{
		account:    account{key: budgetKey[len(Namespace):], budgetKey: budgetKey, limit: h.Limit},
		freeBudget: unknownBudget, lastHitAt: now, rateStart: now,
	}
}

// countDemand counts n hits at now. If the measurement is long enough, countDemand also sets the rate.
func (e *lease) countDemand(now, n int64) {
	e.lastHitAt = max(e.lastHitAt, now)
	if span := now - e.rateStart; span >= maxHorizon || span >= rateInterval && e.rateHits >= minDemand {
		rate := float64(e.rateHits) / float64(span)
		if span < maxHorizon && e.rate > 0 {
			rate = (rate + e.rate) / 2 // a short measurement is not exact
		}
		e.rate, e.rateHits, e.rateStart = rate, 0, now
	}
	e.rateHits += n
}

// hasEnded reports whether the window of the lease may have ended at now.
func (e *lease) hasEnded(now int64) bool { return e.windowEnd > 0 && now >= e.windowEnd }

// dropPermits drops the permits and the allowance. It returns the number of permits that no hit had reserved.
func (e *lease) dropPermits() (permits int64) {
	permits = e.permits
	e.epoch++
	e.permits, e.reservedPermits, e.allowance = 0, 0, 0
	e.freeBudget, e.windowEnd, e.windowStart = unknownBudget, 0, 0
	return permits
}

func (e *lease) allPermits() int64 { return e.permits + e.reservedPermits }

func (e *lease) recordAnswer(now int64, r *limit.Result) {
	e.remaining, e.answeredAt, e.resetAt = r.Remaining, now, now+r.ResetAfter
}

func (e *lease) answer(now int64) limit.Result {
	return limit.Result{Allowed: true, Remaining: max(e.remaining, 0) + e.permits, ResetAfter: max(e.resetAt-now, 0)}
}

// addPermits adds the permits to r, which is the answer of the shared counter to h. If the lease has a permit, addPermits
// also allows a denied peek, unless the counter forgets all hits of a window at its end (ResetsAtWindowEnd).
func (e *lease) addPermits(h *backend.Hit, r *limit.Result) {
	r.Remaining += e.permits
	if h.N == 0 && !r.Allowed && e.permits > 0 && !e.limit.Algorithm.ResetsAtWindowEnd() {
		r.Allowed, r.RetryAfter = true, 0
	}
}

// trip describes one trip of a refill. If the trip takes permits, it has a hit on the shared counter. Each trip has a hit
// on the budget, which changes the allowance and reads the free budget.
type trip struct {
	account                // the account of the lease, with a limit that charges no denied hits
	epoch           uint32 // the epoch of the lease before the trip
	permits         int64  // the permits to take; 0 means no hit on the shared counter
	allowanceChange int64  // a negative change gives back a part of the allowance
}

// planTrip returns the next trip at now. ok is false if e needs no trip at the moment.
func (e *lease) planTrip(now int64) (t trip, ok bool) {
	if e.isRefilling || now < e.retryAt {
		return t, false
	}
	wantedPermits := e.wantedPermits(now)
	if wantedPermits < minTripPermits || e.expectedHits(maxHorizon) < min(minDemand, e.limit.MaxLeasePermits()) {
		return t, false
	}
	if e.budget == nil {
		e.budget = e.limit.LeaseBudget()
	}
	t = trip{account: e.account, epoch: e.epoch}
	t.limit = e.limit.WithChargeDenied(false)
	if e.freeBudget == unknownBudget {
		t.allowanceChange = min(wantedPermits, (e.budget.Max()+2)/3) // a third of the budget; later trips ask for more
		return t, true
	}
	// Each replica leaves a quarter of the free budget to others, so a new replica finds a free part.
	newAllowance := max(min(e.expectedHits(maxHorizon), (e.allowance+e.freeBudget)*3/4), e.allPermits(), 1)
	targetPermits := min(wantedPermits, newAllowance, e.allowance)
	if targetPermits >= minTripPermits && e.allPermits() <= targetPermits/4 {
		t.permits = targetPermits - e.allPermits()
	}
	if change := newAllowance - e.allowance; change >= max(e.allowance/8, 1) || -change > e.allowance/8 {
		t.allowanceChange = change
	}
	return t, t.permits > 0 || t.allowanceChange > 0 && e.allowance < minTripPermits
}

// wantedPermits returns the number of permits that e should have at now: the number of expected hits until the end of the
// window, or in maxHorizon if the window ends later.
func (e *lease) wantedPermits(now int64) int64 {
	horizon := int64(maxHorizon)
	if e.windowEnd > 0 {
		horizon = min(horizon, e.windowEnd-now)
	}
	remaining := e.remaining
	if !e.limit.Algorithm.CountsByWindow() {
		remaining = min(remaining+e.limit.RefilledTokens(now-e.answeredAt), e.limit.Capacity())
	}
	return min(e.expectedHits(horizon), remaining/remainingDivisor)
}

// expectedHits returns the number of expected hits in this number of microseconds. The result is at most MaxLeasePermits.
func (e *lease) expectedHits(micros int64) int64 {
	return int64(min(e.rate*float64(micros), float64(e.limit.MaxLeasePermits())))
}
