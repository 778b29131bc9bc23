package limit

// rounding exceeds the error of multiplying a number by a ratio, such as 100 × 0.29.
const rounding = 1e-6

type scaledLimit struct {
	ratio float64
	limit *Limit
}

// Scaled returns l with its rate and capacity multiplied by ratio and rounded down, but at least 1 unless l
// admits nothing. ratio is above 0 and at most 1. l keeps the last result, so repeated calls allocate nothing.
func (l *Limit) Scaled(ratio float64) *Limit {
	if last := l.scaled.Load(); last != nil && last.ratio == ratio {
		return last.limit
	}
	share := func(n int64) uint32 {
		if n == 0 {
			return 0
		}
		return uint32(max(int64(float64(n)*ratio+rounding), 1))
	}
	s := l.Spec
	s.Lease, s.LeaseWaste = false, 0 // a share is for one replica
	s.Requests = share(l.max)
	if s.Burst > 0 {
		s.Burst = share(l.capacity + l.burstPermits())
	}
	scaled, err := New(s)
	if err != nil { // rounding made the bucket fill more slowly than is allowed
		s.Burst = 0
		scaled, _ = New(s)
	}
	l.scaled.Store(&scaledLimit{ratio, scaled})
	return scaled
}

// Charging returns l with denied hits charged.
func (l *Limit) Charging() *Limit { return l.withChargeDenied(true) }

// NotCharging returns l without charges for denied hits.
func (l *Limit) NotCharging() *Limit { return l.withChargeDenied(false) }

func (l *Limit) withChargeDenied(chargeDenied bool) *Limit {
	if l.ChargeDenied == chargeDenied {
		return l
	}
	if last := l.otherCharging.Load(); last != nil {
		return last
	}
	s := l.Spec
	s.ChargeDenied = chargeDenied
	other, _ := New(s) // can't fail: no bound depends on ChargeDenied
	l.otherCharging.Store(other)
	return other
}
