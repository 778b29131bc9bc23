package local

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// maxResets bounds the remembered resets by prefix. Each hit is compared with all these resets.
const maxResets = 64

// resetList has the resets by prefix. A table has only the fingerprints of names, so a reset can't find its counters.
// Instead, the next hit on a counter resets the counter if the list has a newer reset with a matching prefix.
type resetList struct {
	mu   sync.Mutex                    // the caller of list.Store holds it
	list atomic.Pointer[[]prefixReset] // nil before the first reset
}

type prefixReset struct {
	prefix backend.KeyPrefix
	number uint32 // the first reset of the process has number 1
	end    int64  // the time at which all counters before the reset have expired, in microseconds since 1970
}

// ResetPrefix implements backend.PrefixResetter. It can't count the counters, so the result has a Counters of -1.
func (l *Limiter) ResetPrefix(_ context.Context, p backend.KeyPrefix, _ int, dryRun bool) (backend.PrefixReset, error) {
	r := backend.PrefixReset{Counters: -1}
	if dryRun {
		return r, nil
	}
	l.resets.mu.Lock()
	defer l.resets.mu.Unlock()
	now := time.Now().UnixMicro()
	var resets []prefixReset
	if oldList := l.resets.list.Load(); oldList != nil {
		resets = slices.DeleteFunc(slices.Clone(*oldList), func(r prefixReset) bool { return r.end <= now || r.prefix == p })
	}
	if len(resets) == maxResets {
		firstEnd := slices.MinFunc(resets, func(a, b prefixReset) int { return int(a.end - b.end) }).end
		return r, fmt.Errorf("got more than %d resets by prefix, want fewer until the oldest counters end in %v; reset single counters, or a shorter prefix",
			maxResets, time.Duration(firstEnd-now)*time.Microsecond)
	}
	resets = append(resets, prefixReset{prefix: p, number: l.memory.lastReset.Add(1), end: l.lastExpiry()})
	l.resets.list.Store(&resets)
	return r, nil
}

// lastExpiry returns the time at which all current counters have expired, in microseconds since 1970.
func (l *Limiter) lastExpiry() (expiry int64) {
	l.forEachStripe(func(s *stripe) {
		for index := range s.size {
			expiry = max(expiry, s.entryAt(index).expiry)
		}
	})
	return expiry
}

func (l *Limiter) applyResets(hits []backend.Hit) {
	resets := l.resets.list.Load()
	if resets == nil {
		return
	}
	for i := range hits {
		h := &hits[i]
		for _, r := range *resets {
			if r.prefix.Matches(string(h.Key)) {
				l.resetOldCounter(h, r.number)
			}
		}
	}
}

func (l *Limiter) resetOldCounter(h *backend.Hit, number uint32) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.stripeOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if index := s.find(id); index >= 0 && s.entryAt(index).lastReset < number {
		s.forget(index)
	}
}
