package local

import (
	"slices"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
)

// takeAllOrNone charges the hits one after the other, and if one was denied takes
// the charges back. All shards involved are locked meanwhile, so nobody sees them.
//
// To give hits back at the time they were charged undoes exactly what charging
// them did, as they were allowed: no bound was met. What it can't undo is what a
// Shadow hit after them on the same counter has seen; that is denied once more
// than it had to be.
func (l *Limiter) takeAllOrNone(now int64, hits []backend.Hit, results []backend.Result) {
	var idSpace [16]fingerprint.ID
	ids := idSpace[:0]
	for i := range hits {
		ids = append(ids, l.seeds.Of(hits[i].Key, hits[i].Limit.Tag()))
	}
	var lockSpace [16]int
	locked := l.lock(ids, lockSpace[:0])
	defer l.unlock(locked)

	denied := false
	for i := range hits {
		h, s := &hits[i], l.shardOf(ids[i])
		if !h.AllOrNone() {
			results[i] = backend.Result{Result: s.take(ids[i], h.Limit, now, h.N, h.Limit.ChargeDenied)}
			continue
		}
		r := s.take(ids[i], h.Limit, now, h.N, false)
		results[i] = backend.Result{Result: r}
		denied = denied || !r.Allowed
	}
	if !denied {
		return
	}
	for i := range hits {
		if h := &hits[i]; h.AllOrNone() && results[i].Allowed {
			l.shardOf(ids[i]).take(ids[i], h.Limit, now, -h.N, false)
		}
	}
	for i := range hits {
		if h := &hits[i]; h.AllOrNone() {
			left := l.shardOf(ids[i]).take(ids[i], h.Limit, now, 0, false)
			results[i].Remaining, results[i].ResetAfter = left.Remaining, left.ResetAfter
		}
	}
}

// lock locks the shards of ids, each once, in their order, so that no two callers
// can wait for each other. It returns their indexes, appended to buf.
func (l *Limiter) lock(ids []fingerprint.ID, buf []int) []int {
	for _, id := range ids {
		buf = append(buf, l.shardIndex(id))
	}
	slices.Sort(buf)
	buf = slices.Compact(buf)
	for _, i := range buf {
		l.shards[i].mu.Lock()
	}
	return buf
}

func (l *Limiter) unlock(locked []int) {
	for _, i := range locked {
		l.shards[i].mu.Unlock()
	}
}
