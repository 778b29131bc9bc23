package limit

import (
	"cmp"
	"errors"
	"fmt"
)

// The bounds of leases.
const (
	DefaultLeaseWaste = 0.01 // a LeaseWaste of 0 in a Spec means DefaultLeaseWaste
	MaxLeaseWaste     = 0.5  // the largest LeaseWaste
	MinLeasePermits   = 2    // a limit with fewer MaxLeasePermits gets no lease
)

// CanLease reports whether a limit of this spec can have a lease.
func (s *Spec) CanLease() bool {
	return s.Algorithm.AllowsLeases() && s.Scope != Instance && s.Timezone == "" && s.Unit != Millisecond
}

// WasteShare returns LeaseWaste, or DefaultLeaseWaste if LeaseWaste is 0.
func (s *Spec) WasteShare() float64 {
	return cmp.Or(s.LeaseWaste, DefaultLeaseWaste)
}

func (s *Spec) checkLease() (errs []error) {
	switch {
	case !s.Lease:
	case !s.Algorithm.AllowsLeases():
		errs = append(errs, fmt.Errorf("lease is only for algorithms %s and %s, not %s", FixedWindow, TokenBucket, s.Algorithm))
	case s.Scope == Instance:
		errs = append(errs, fmt.Errorf("lease is only for scope %s, because a counter with scope %s needs no Redis", Region, s.Scope))
	case s.Timezone != "":
		errs = append(errs, errors.New("lease is only for limits without timezone"))
	case s.Unit == Millisecond:
		errs = append(errs, errors.New("lease is only for windows of a second or more, without unit millisecond"))
	}
	if s.LeaseWaste != 0 && !s.Lease {
		errs = append(errs, errors.New("lease_waste has no meaning without lease: true"))
	}
	if w := s.LeaseWaste; !(w >= 0 && w <= MaxLeaseWaste) {
		errs = append(errs, fmt.Errorf("lease_waste %v must be above 0 and at most %v", w, MaxLeaseWaste))
	}
	return errs
}

// MaxLeasePermits returns the most permits of l that all replicas together may hold, or 0 if l has no lease. The Capacity of
// a token bucket is the Burst minus these permits. So if the bucket is full and the replicas hold all permits, no more
// than the Burst can pass at once.
func (l *Limit) MaxLeasePermits() int64 { return l.maxLeasePermits }

// burstPermits returns the difference between the Burst and the Capacity.
func (l *Limit) burstPermits() int64 {
	if l.Algorithm.UsesBurst() {
		return l.maxLeasePermits
	}
	return 0
}

func (s *Spec) maxLeasePermitsOf(capacity int64) int64 {
	permits := int64(float64(capacity)*s.WasteShare() + rounding)
	if !s.Lease || permits < MinLeasePermits {
		return 0
	}
	return permits
}

// LeaseBudget returns the limit on the permits of l that all replicas hold: MaxLeasePermits in each window.
func (l *Limit) LeaseBudget() *Limit {
	budget, _ := New(Spec{Requests: uint32(l.MaxLeasePermits()), Unit: l.Unit, Multiplier: l.Multiplier}) // New can't fail, because l has the same window
	return budget
}

// RefilledTokens returns the number of tokens that a bucket of l regains in this time, rounded down.
func (l *Limit) RefilledTokens(micros int64) int64 {
	tokens, _ := mulAddDiv(max(micros, 0), l.max, 0, l.period)
	return min(tokens, MaxHits)
}
