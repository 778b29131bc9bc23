package limit

// rounding is added to a product before it is rounded down, because 100 × 0.29 is 28.999… in floating point.
const rounding = 1e-6

// Scaled returns l with its rate and capacity multiplied by ratio and rounded down, but at least 1 unless l admits
// nothing. ratio is above 0 and at most 1. l keeps the last result, so a call with the same ratio allocates nothing.
func (l *Limit) Scaled(ratio float64) *Limit {
	if scaled := l.lastScaledLimit.Load(); scaled != nil && scaled.ratio == ratio {
		return scaled
	}
	multiply := func(n int64) uint32 {
		if n == 0 {
			return 0
		}
		return uint32(max(int64(float64(n)*ratio+rounding), 1))
	}
	s := l.Spec
	s.Lease, s.LeaseWaste = false, 0 // the scaled limit is for one replica
	s.Requests = multiply(l.max)
	if s.Burst > 0 {
		s.Burst = multiply(l.capacity + l.burstPermits())
	}
	scaled, err := New(s)
	if err != nil { // because of rounding, the bucket would fill too slowly
		s.Burst = 0
		scaled, _ = New(s)
	}
	scaled.tag, scaled.ratio = l.tag, ratio
	l.lastScaledLimit.Store(scaled)
	return scaled
}

// WithChargeDenied returns a limit that differs from l at most in ChargeDenied. Only the first call allocates.
func (l *Limit) WithChargeDenied(chargeDenied bool) *Limit {
	if l.ChargeDenied == chargeDenied {
		return l
	}
	if variant := l.otherChargeVariant.Load(); variant != nil {
		return variant
	}
	s := l.Spec
	s.ChargeDenied = chargeDenied
	variant, _ := New(s) // New can't fail, because no bound depends on ChargeDenied
	variant.tag = l.tag
	l.otherChargeVariant.Store(variant)
	return variant
}
