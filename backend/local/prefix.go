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

// maxResets bounds the resets by prefix that are remembered. Each hit is compared with all of them.
const maxResets = 64

// resetList has the resets by prefix. A counter has no name, so a hit finds out whether a reset came after its
// counter was added.
type resetList struct {
	changes sync.Mutex                    // held while the list changes
	list    atomic.Pointer[[]prefixReset] // nil for none
}

type prefixReset struct {
	prefix backend.KeyPrefix
	number uint32 // from 1
	ends   int64  // time from which on no older counter is left, in microseconds
}

var _ backend.PrefixResetter = (*Limiter)(nil)

// ResetPrefix implements backend.PrefixResetter. It can't count the counters.
func (l *Limiter) ResetPrefix(_ context.Context, p backend.KeyPrefix, _ int, dryRun bool) (backend.PrefixReset, error) {
	r := backend.PrefixReset{Counters: -1}
	if dryRun {
		return r, nil
	}
	l.resets.changes.Lock()
	defer l.resets.changes.Unlock()
	now := time.Now().UnixMicro()
	var resets []prefixReset
	if old := l.resets.list.Load(); old != nil {
		resets = slices.DeleteFunc(slices.Clone(*old), func(r prefixReset) bool { return r.ends <= now || r.prefix == p })
	}
	if len(resets) == maxResets {
		first := slices.MinFunc(resets, func(a, b prefixReset) int { return int(a.ends - b.ends) })
		return r, fmt.Errorf("got more than %d resets by prefix, want fewer until the oldest counters end in %v; reset single counters, or a shorter prefix",
			maxResets, time.Duration(first.ends-now)*time.Microsecond)
	}
	resets = append(resets, prefixReset{prefix: p, number: l.memory.resets.Add(1), ends: l.lastExpiry()})
	l.resets.list.Store(&resets)
	return r, nil
}

func (l *Limiter) lastExpiry() (last int64) {
	l.eachStripe(func(s *stripe) {
		for index := range s.size {
			last = max(last, s.at(index).expires)
		}
	})
	return last
}

// applyResets forgets the counters of hits that were reset by prefix.
func (l *Limiter) applyResets(hits []backend.Hit) {
	resets := l.resets.list.Load()
	if resets == nil {
		return
	}
	for i := range hits {
		h := &hits[i]
		for _, r := range *resets {
			if r.prefix.Matches(string(h.Key)) {
				l.forgetBefore(h, r.number)
			}
		}
	}
}

// forgetBefore forgets the counter of h if it was added before the reset of this number.
func (l *Limiter) forgetBefore(h *backend.Hit, number uint32) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := l.stripeOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if index := s.find(id); index >= 0 && s.at(index).resets < number {
		s.forget(index)
	}
}
