package local

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	sampleSize    = 8 // the number of entries that evict compares
	entriesPerKey = 4 // the number of log entries that count as one counter
)

type stripe struct {
	mu sync.Mutex
	table
	memory *memoryBound

	state limit.State // the state that take changes; as a local variable of take, it would be allocated

	_ [128]byte // keeps the next stripe out of this stripe's cache lines
}

// memoryBound bounds the counters of all stripes. The logs count as counters too, and so lower the bound of each stripe.
type memoryBound struct {
	maxKeys, stripeCount int64
	logWeight            atomic.Int64  // the number of counters that all logs count as
	lastReset            atomic.Uint32 // the number of the last reset by prefix
	evictions            atomic.Int64  // the number of evicted counters that had not expired
}

// keysPerStripe returns the current maximum number of counters in a stripe: at least one.
func (b *memoryBound) keysPerStripe() int {
	return int(max((b.maxKeys-b.logWeight.Load())/b.stripeCount, 1))
}

// logWeight returns the number of counters that the log of s counts as. It rounds up.
func logWeight(s *limit.State) int64 {
	return int64(s.EntryCount()+entriesPerKey-1) / entriesPerKey
}

type counterChange struct {
	now          int64  // in microseconds since 1970
	n            int64  // the number of hits
	holdID       string // the id of the hold, or empty
	chargeDenied bool
	isUndo       bool  // the change refunds an admitted charge with the same now
	oldExpiry    int64 // the expiry of a renewed hold before the charge, or 0; only with isUndo
}

func (s *stripe) lockAndTake(id fingerprint.ID, h *backend.Hit, now int64) limit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id, h.Limit, counterChange{now: now, n: h.N, holdID: h.HoldID, chargeDenied: h.Limit.ChargeDenied && !h.IsInGroup()})
}

// take applies c to the counter of id, under the limit l. The caller holds the mutex.
func (s *stripe) take(id fingerprint.ID, l *limit.Limit, c counterChange) limit.Result {
	state := &s.state
	index := s.find(id)
	if index >= 0 {
		*state = s.stateOf(s.entryAt(index))
	} else {
		*state = limit.State{}
	}
	oldWeight := logWeight(state)
	var r limit.Result
	switch {
	case c.isUndo:
		r = l.Undo(state, c.now, c.n, c.holdID, c.oldExpiry)
	case c.holdID != "":
		r = l.TakeHold(state, c.now, c.n, c.holdID)
	default:
		r = l.TakeWithChargeDenied(state, c.now, c.n, c.chargeDenied)
	}
	weightGrowth := logWeight(state) - oldWeight
	if weightGrowth != 0 {
		s.memory.logWeight.Add(weightGrowth)
	}
	if state.IsZero() {
		if index >= 0 {
			s.remove(index)
		}
		return r
	}
	isNew := index < 0
	if isNew {
		index = s.add(id)
	}
	e := s.entryAt(index)
	if isNew {
		e.lastReset = s.memory.lastReset.Load()
	}
	var log *limit.Log
	e.numbers, log = state.Split()
	s.setLog(e, log)
	e.expiry = max(c.now+r.ResetAfter, state.LastExpiry())
	*state = limit.State{} // otherwise state would keep the log after the removal of its entry
	e.spent = l.Spent(r)
	hasGrown := isNew || weightGrowth > 0
	for i := 0; i < maxEvictions && hasGrown && s.size > s.memory.keysPerStripe(); i++ {
		s.evict(id, c.now)
	}
	return r
}

// maxEvictions is the most evictions of one take, which adds at most one counter, and one log entry or one hold.
const maxEvictions = 2

// evict removes an expired entry of a sample, or else the entry with the fewest spent hits in the sample. It never
// removes the entry of currentID. The sample starts at a random entry, and its entries are at equal distances.
func (s *stripe) evict(currentID fingerprint.ID, now int64) {
	distance := max(s.size/sampleSize, 1)
	evictedIndex := -1
	for i, index := 0, rand.IntN(s.size); i < min(sampleSize, s.size); i, index = i+1, (index+distance)%s.size {
		e := s.entryAt(index)
		switch {
		case e.id == currentID:
		case e.expiry <= now:
			s.forget(index)
			return
		case evictedIndex < 0 || e.isEvictedBefore(s.entryAt(evictedIndex)):
			evictedIndex = index
		}
	}
	if evictedIndex >= 0 {
		s.forget(evictedIndex)
		s.memory.evictions.Add(1)
	}
}

func (e *entry) isEvictedBefore(other *entry) bool {
	return e.spent < other.spent || e.spent == other.spent && e.expiry < other.expiry
}

func (s *stripe) forget(index int) {
	if e := s.entryAt(index); e.logNumber != 0 {
		state := s.stateOf(e)
		s.memory.logWeight.Add(-logWeight(&state))
	}
	s.remove(index)
}
