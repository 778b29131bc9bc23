package limit

import "math/big"

// model computes the spent hits from all earlier charges, in exact fractions.
type model struct {
	limit *Limit
	hits  []charge
}

type charge struct{ time, n int64 }

// spentHits returns the exact number of spent hits. It does not round to ticks, as slidingWindow
// does.
func (m *model) spentHits(now int64) *big.Rat {
	period := m.limit.period
	switch m.limit.Algorithm {
	case FixedWindow:
		return m.sum(func(h charge) *big.Rat { return weight(h.time/period == now/period) })
	case FirstHitWindow:
		var start, count int64
		for _, h := range m.hits {
			if count == 0 || h.time >= start+period {
				start, count = h.time, 0
			}
			count += h.n
		}
		return new(big.Rat).Mul(weight(now < start+period), big.NewRat(count, 1))
	case SlidingWindow:
		return m.sum(func(h charge) *big.Rat {
			if h.time/period == now/period-1 {
				return big.NewRat(period-now%period, period)
			}
			return weight(h.time/period == now/period)
		})
	case SlidingLog, Concurrency:
		return m.sum(func(h charge) *big.Rat { return weight(h.time+period > now) })
	default: // a token bucket refills between hits; level is the number of spent tokens
		level, lastTime := new(big.Rat), int64(0)
		refill := func(until int64) {
			level.Sub(level, new(big.Rat).Mul(big.NewRat(m.limit.max, period), big.NewRat(until-lastTime, 1)))
			if level.Sign() < 0 {
				level.SetInt64(0)
			}
			lastTime = until
		}
		for _, h := range m.hits {
			refill(h.time)
			level.Add(level, big.NewRat(h.n, 1))
		}
		refill(now)
		return level
	}
}

func (m *model) sum(weightOf func(charge) *big.Rat) *big.Rat {
	total := new(big.Rat)
	for _, h := range m.hits {
		total.Add(total, new(big.Rat).Mul(weightOf(h), big.NewRat(h.n, 1)))
	}
	return total
}

// weight returns 1 for a hit that counts, and 0 for another hit.
func weight(counts bool) *big.Rat {
	if counts {
		return big.NewRat(1, 1)
	}
	return new(big.Rat)
}

// ceil returns r rounded up to a whole number.
func ceil(r *big.Rat) int64 {
	q, remainder := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if remainder.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}
