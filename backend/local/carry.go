package local

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// carry makes the counter of h have spent what those of the limits before h's, of
// the same key, have spent, and gives back to those what h gives back. It is to be
// called before h is taken. To carry over again does no harm: by then the counter
// has spent as much.
func (l *Limiter) carry(now int64, h *backend.Hit) {
	var pastSpace [4]limit.Past
	pasts := h.Limit.Past(now, pastSpace[:0])
	if len(pasts) == 0 {
		return
	}
	own := l.seeds.Of(h.Key, h.Limit.Tag())
	var idSpace [5]fingerprint.ID
	ids := idSpace[:0]
	for _, p := range pasts {
		ids = append(ids, l.seeds.Of(h.Key, p.Tag()))
	}
	var lockSpace [5]int
	locked := l.lock(append(ids, own), lockSpace[:0])
	defer l.unlock(locked)

	var spentSpace [4]int64
	before, most := spentSpace[:0], int64(0)
	for i, p := range pasts {
		before = append(before, p.Spent(l.shardOf(ids[i]).take(ids[i], p.Limit, now, 0)))
		most = max(most, before[i])
	}
	if most == 0 {
		return
	}
	s := l.shardOf(own)
	spent := h.Limit.Spent(s.take(own, h.Limit, now, 0))
	if more := min(most, h.Limit.Capacity()) - spent; more > 0 {
		s.take(own, h.Limit, now, more) // within the capacity, hence allowed
		spent += more
	}
	if h.N >= 0 {
		return
	}
	for i, p := range pasts {
		if n := limit.GivenBack(h.N, spent, before[i]); n > 0 {
			l.shardOf(ids[i]).take(ids[i], p.Limit, now, -n)
		}
	}
}
