package limit

import "fmt"

const (
	// DefaultLeaseWaste is the LeaseWaste of limits that have none.
	DefaultLeaseWaste = 0.01

	// MaxLeaseWaste is the maximum of LeaseWaste.
	MaxLeaseWaste = 0.5

	// MinLeasePermits is the least LeasePermits with which a lease has an effect.
	MinLeasePermits = 2
)

// CanLease reports whether a limit of this spec can have a lease. A lease needs an algorithm
// with Leases and a counter that replicas share.
func (s *Spec) CanLease() bool { return s.Algorithm.Leases() && s.Scope == Global }

// WasteShare returns LeaseWaste, or the default.
func (s *Spec) WasteShare() float64 {
	if s.LeaseWaste == 0 {
		return DefaultLeaseWaste
	}
	return s.LeaseWaste
}

// checkLease returns an error for each wrong field of the lease.
func (s *Spec) checkLease() (errs []error) {
	switch {
	case s.Lease && !s.Algorithm.Leases():
		errs = append(errs, fmt.Errorf("lease is only for algorithms %s and %s, not %s", FixedWindow, TokenBucket, s.Algorithm))
	case s.Lease && s.Scope != Global:
		errs = append(errs, fmt.Errorf("lease is only for scope %s, because a counter with scope %s needs no Redis", Global, s.Scope))
	}
	if s.LeaseWaste != 0 && !s.Lease {
		errs = append(errs, fmt.Errorf("lease_waste has no meaning without lease: true"))
	}
	if w := s.LeaseWaste; !(w >= 0 && w <= MaxLeaseWaste) {
		errs = append(errs, fmt.Errorf("lease_waste %v must be above 0 and at most %v", w, MaxLeaseWaste))
	}
	return errs
}

// LeasePermits returns the most permits of l that all replicas together may hold unused. It is
// 0 if l has no lease.
func (l *Limit) LeasePermits() int64 {
	if !l.Lease {
		return 0
	}
	return int64(float64(l.capacity)*l.WasteShare() + rounding)
}

// LeaseBudget returns a limit with the window of l that admits LeasePermits hits. A counter of
// this limit counts the permits that replicas may hold.
func (l *Limit) LeaseBudget() *Limit {
	budget, _ := New(Spec{Requests: uint32(l.LeasePermits()), Unit: l.Unit, Multiplier: l.Multiplier}) // can't fail: l has the same window
	return budget
}
