package limit

import "math/big"

// A model computes what is spent from the whole history of charges, in exact fractions.
type model struct {
	l    *Limit
	hits []charged
}

type charged struct{ at, n int64 }

// spent returns the exact number of spent hits. It does not round to ticks, as slidingWindow
// does.
func (m *model) spent(now int64) *big.Rat {
	p := m.l.period
	switch m.l.Algorithm {
	case FixedWindow:
		return m.sum(func(h charged) *big.Rat { return share(h.at/p == now/p) })
	case FirstHitWindow:
		var start, count int64
		for _, h := range m.hits {
			if count == 0 || h.at >= start+p {
				start, count = h.at, 0
			}
			count += h.n
		}
		return new(big.Rat).Mul(share(now < start+p), big.NewRat(count, 1))
	case SlidingWindow:
		return m.sum(func(h charged) *big.Rat {
			if h.at/p == now/p-1 {
				return big.NewRat(p-now%p, p)
			}
			return share(h.at/p == now/p)
		})
	case SlidingLog:
		return m.sum(func(h charged) *big.Rat { return share(h.at+p > now) })
	default: // token bucket: drain between hits
		level, last := new(big.Rat), int64(0)
		drain := func(until int64) {
			level.Sub(level, new(big.Rat).Mul(big.NewRat(m.l.max, p), big.NewRat(until-last, 1)))
			if level.Sign() < 0 {
				level.SetInt64(0)
			}
			last = until
		}
		for _, h := range m.hits {
			drain(h.at)
			level.Add(level, big.NewRat(h.n, 1))
		}
		drain(now)
		return level
	}
}

func (m *model) sum(weight func(charged) *big.Rat) *big.Rat {
	total := new(big.Rat)
	for _, h := range m.hits {
		total.Add(total, new(big.Rat).Mul(weight(h), big.NewRat(h.n, 1)))
	}
	return total
}

func share(counts bool) *big.Rat {
	if counts {
		return big.NewRat(1, 1)
	}
	return new(big.Rat)
}

// ceil returns r rounded up to a whole number.
func ceil(r *big.Rat) int64 {
	q, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q.Int64()
}
