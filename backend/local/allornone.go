package local

import (
	"slices"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
)

// takeAllOrNone charges the hits one after the other. If a hit denies the group, takeAllOrNone refunds the other hits of
// the group. It locks the stripes of all hits first, so other callers never see the refunded charges.
//
// A refunded charge can leave two traces. It can deny a later Shadow hit of the same call on the same counter. In a long
// log, it can move the time of earlier hits, so that these hits count up to a tick longer.
func (l *Limiter) takeAllOrNone(now int64, hits []backend.Hit, results []backend.Result) {
	var idSpace [16]fingerprint.ID
	ids := idSpace[:0]
	for i := range hits {
		ids = append(ids, l.seeds.ID(hits[i].Key, hits[i].Limit.Tag()))
	}
	var lockSpace [16]int
	lockedStripes := l.lock(ids, lockSpace[:0])
	defer l.unlock(lockedStripes)

	isGroupDenied := false
	var oldExpiries []int64 // the expiry of each renewed hold before the renewal; nil if no hit has a named hold
	for i := range hits {
		h, s := &hits[i], l.stripeOf(ids[i])
		inGroup := h.IsInGroup()
		if inGroup && h.HoldID != "" && h.Limit.Algorithm.HasHolds() {
			if oldExpiries == nil {
				oldExpiries = make([]int64, len(hits))
			}
			if peek := s.take(ids[i], h.Limit, counterChange{now: now, holdID: h.HoldID}); peek.HoldExists {
				oldExpiries[i] = now + peek.ResetAfter
			}
		}
		r := s.take(ids[i], h.Limit, counterChange{now: now, n: h.N, holdID: h.HoldID, chargeDenied: h.Limit.ChargeDenied && !inGroup})
		results[i] = backend.Result{Result: r}
		isGroupDenied = isGroupDenied || h.DeniesGroup(&results[i])
	}
	if !isGroupDenied {
		return
	}
	for i := range slices.Backward(hits) { // if two hits renewed one hold, the undo of the first hit comes last
		if h := &hits[i]; h.IsInGroup() && results[i].Allowed {
			refund := counterChange{now: now, n: h.N, holdID: h.HoldID, isUndo: true}
			if oldExpiries != nil {
				refund.oldExpiry = oldExpiries[i]
			}
			l.stripeOf(ids[i]).take(ids[i], h.Limit, refund)
		}
	}
	for i := range hits {
		if h := &hits[i]; h.IsInGroup() {
			peek := l.stripeOf(ids[i]).take(ids[i], h.Limit, counterChange{now: now, holdID: h.HoldID})
			results[i].Remaining, results[i].ResetAfter = peek.Remaining, peek.ResetAfter
		}
	}
}

// lock locks each stripe of ids once. It appends the indexes of these stripes to indexes, and returns the result. Each
// call locks the stripes in the order of their indexes, so two calls never wait for each other.
func (l *Limiter) lock(ids []fingerprint.ID, indexes []int) []int {
	for _, id := range ids {
		indexes = append(indexes, l.stripeIndex(id))
	}
	slices.Sort(indexes)
	indexes = slices.Compact(indexes)
	for _, i := range indexes {
		l.stripes[i].mu.Lock()
	}
	return indexes
}

func (l *Limiter) unlock(lockedStripes []int) {
	for _, i := range lockedStripes {
		l.stripes[i].mu.Unlock()
	}
}
