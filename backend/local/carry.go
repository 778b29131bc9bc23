package local

import (
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// carry makes the counter of h have spent what those of the limits before h's, of
// the same key, have spent. It can be done again without harm: by then the counter
// has spent as much.
func (l *Limiter) carry(now int64, h *backend.Hit) {
	var space [4]limit.Past
	spent := int64(0)
	for _, p := range h.Limit.Past(now, space[:0]) {
		id := l.fingerprint(h.Key, p.Tag())
		spent = max(spent, p.Spent(l.shardOf(id).lockAndTake(id, p.Limit, now, 0)))
	}
	if spent == 0 {
		return
	}
	id := l.fingerprint(h.Key, h.Limit.Tag())
	s := l.shardOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if more := min(spent, h.Limit.Capacity()) - h.Limit.Spent(s.take(id, h.Limit, now, 0)); more > 0 {
		s.take(id, h.Limit, now, more) // within the capacity, hence allowed
	}
}
