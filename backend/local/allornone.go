package local

import (
	"slices"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
)

// takeAllOrNone charges the hits one after the other. If an all-or-none hit is denied, it refunds the others. It
// holds the mutexes of their stripes, so nobody sees the charges.
//
// Two traces stay. A Shadow hit that follows on the same counter has seen the charge, and may be denied once more
// than necessary. A long log may count earlier hits up to a tick longer.
func (l *Limiter) takeAllOrNone(now int64, hits []backend.Hit, results []backend.Result) {
	var idBuf [16]fingerprint.ID
	ids := idBuf[:0]
	for i := range hits {
		ids = append(ids, l.seeds.ID(hits[i].Key, hits[i].Limit.Tag()))
	}
	var lockedBuf [16]int
	locked := l.lock(ids, lockedBuf[:0])
	defer l.unlock(locked)

	denied := false
	var oldExpiries []int64 // of the holds that the hits renew; nil if no hit has a named hold
	for i := range hits {
		h, s := &hits[i], l.stripeOf(ids[i])
		inGroup := h.InGroup()
		if inGroup && h.HoldID != "" && h.Limit.Algorithm.HasHolds() {
			if oldExpiries == nil {
				oldExpiries = make([]int64, len(hits))
			}
			if peek := s.take(ids[i], h.Limit, counterChange{now: now, hold: h.HoldID}); peek.Held {
				oldExpiries[i] = now + peek.ResetAfter
			}
		}
		r := s.take(ids[i], h.Limit, counterChange{now: now, n: h.N, hold: h.HoldID, chargeDenied: h.Limit.ChargeDenied && !inGroup})
		results[i] = backend.Result{Result: r}
		denied = denied || h.DeniesGroup(&results[i])
	}
	if !denied {
		return
	}
	for i := range slices.Backward(hits) { // two hits can renew one hold
		if h := &hits[i]; h.InGroup() && results[i].Allowed {
			undo := counterChange{now: now, n: h.N, hold: h.HoldID, undo: true}
			if oldExpiries != nil {
				undo.oldExpiry = oldExpiries[i]
			}
			l.stripeOf(ids[i]).take(ids[i], h.Limit, undo)
		}
	}
	for i := range hits {
		if h := &hits[i]; h.InGroup() {
			peek := l.stripeOf(ids[i]).take(ids[i], h.Limit, counterChange{now: now, hold: h.HoldID})
			results[i].Remaining, results[i].ResetAfter = peek.Remaining, peek.ResetAfter
		}
	}
}

// lock locks the stripes of ids, each once and in a fixed order. It appends their indexes to buf and returns them.
func (l *Limiter) lock(ids []fingerprint.ID, buf []int) []int {
	for _, id := range ids {
		buf = append(buf, l.stripeIndex(id))
	}
	slices.Sort(buf)
	buf = slices.Compact(buf)
	for _, i := range buf {
		l.stripes[i].mu.Lock()
	}
	return buf
}

func (l *Limiter) unlock(locked []int) {
	for _, i := range locked {
		l.stripes[i].mu.Unlock()
	}
}
