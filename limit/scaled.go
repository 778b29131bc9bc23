package limit

// slack is more than a product of a number and a ratio is off, as 100 × 0.29 is.
const slack = 1e-6

// Scaled is l at a share of its rate and capacity, rounded down, but at least 1
// where l grants any. ratio is over 0 and up to 1.
func (l *Limit) Scaled(ratio float64) *Limit {
	share := func(n int64) uint32 {
		if n == 0 {
			return 0
		}
		return uint32(max(int64(float64(n)*ratio+slack), 1))
	}
	s := l.Spec
	s.Requests = share(l.max)
	if s.Burst > 0 {
		s.Burst = share(l.capacity)
	}
	scaled, err := New(s)
	if err != nil { // rounding can only make a bucket slower to fill than is allowed
		s.Burst = 0
		scaled, _ = New(s)
	}
	return scaled
}

// Charging is l with denied hits charged.
func (l *Limit) Charging() *Limit {
	if l.ChargeDenied {
		return l
	}
	c := *l
	c.ChargeDenied = true
	return &c
}
