package local

import (
	"slices"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
)

// takeAllOrNone charges the hits one after the other. If a hit denies the group, takeAllOrNone refunds the other hits of
// the group. It holds the mutexes of all their stripes meanwhile, so other callers never see the refunded charges.
//
// A refunded charge has two effects. A later Shadow hit on the same counter has seen the charge, and may be denied
// because of it. In a long log, the charge may have joined earlier hits, which then count up to a tick longer.
func (l *Limiter) takeAllOrNone(now int64, hits []backend.Hit, results []backend.Result) {
	var idSpace [16]fingerprint.ID
	ids := idSpace[:0]
	for i := range hits {
		ids = append(ids, l.seeds.ID(hits[i].Key, hits[i].Limit.Tag()))
	}
	var lockSpace [16]int
	lockedStripes := l.lock(ids, lockSpace[:0])
	defer l.unlock(lockedStripes)

	isDenied := false
	var oldExpiries []int64 // the old expiries of renewed holds; nil if no hit has a named hold
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
		isDenied = isDenied || h.DeniesGroup(&results[i])
	}
	if !isDenied {
		return
	}
	for i := range slices.Backward(hits) { // backwards, because two hits can renew one hold
		if h := &hits[i]; h.InGroup() && results[i].Allowed {
			refund := counterChange{now: now, n: h.N, hold: h.HoldID, isUndo: true}
			if oldExpiries != nil {
				refund.oldExpiry = oldExpiries[i]
			}
			l.stripeOf(ids[i]).take(ids[i], h.Limit, refund)
		}
	}
	for i := range hits {
		if h := &hits[i]; h.InGroup() {
			peek := l.stripeOf(ids[i]).take(ids[i], h.Limit, counterChange{now: now, hold: h.HoldID})
			results[i].Remaining, results[i].ResetAfter = peek.Remaining, peek.ResetAfter
		}
	}
}

// lock locks each stripe of ids once. It appends the indexes of these stripes to buf, and returns buf. The order of the
// indexes is the order of locking, so that two calls never wait for each other.
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

func (l *Limiter) unlock(lockedStripes []int) {
	for _, i := range lockedStripes {
		l.stripes[i].mu.Unlock()
	}
}
