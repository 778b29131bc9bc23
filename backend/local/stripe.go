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
	sampleSize    = 8 // the entries among which evict chooses
	entriesPerKey = 4 // the log entries that count as one counter
)

// stripe is a part of the counters behind one mutex.
type stripe struct {
	mu sync.Mutex
	table
	memory *memoryBound

	state limit.State // the state that take works on; a local variable would be allocated

	_ [128]byte // keeps the next stripe out of this stripe's cache lines
}

// memoryBound bounds the counters of all stripes. Each log takes the place of some counters, so all stripes may have
// fewer.
type memoryBound struct {
	maxKeys, stripes int64
	logs             atomic.Int64  // the number of counters that all logs count as
	resets           atomic.Uint32 // the number of the last reset by prefix
	evictions        atomic.Int64  // the number of evicted counters that had not expired
}

// keysPerStripe returns how many counters a stripe may have now: at least one.
func (b *memoryBound) keysPerStripe() int {
	return int(max((b.maxKeys-b.logs.Load())/b.stripes, 1))
}

// logWeight returns the number of counters that the log of s counts as. It rounds up.
func logWeight(s *limit.State) int64 {
	return int64(s.Entries()+entriesPerKey-1) / entriesPerKey
}

// counterChange is a charge, a peek or a refund of one counter.
type counterChange struct {
	now, n       int64  // the time in microseconds since 1970, and the number of hits
	hold         string // the id of the hold, or empty
	chargeDenied bool
	isUndo       bool  // the change refunds an admitted charge with the same now
	oldExpiry    int64 // only with isUndo: the expiry that a renewed hold had before the charge, or 0
}

// lockAndTake decides h with the counter of id.
func (s *stripe) lockAndTake(id fingerprint.ID, h *backend.Hit, now int64) limit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id, h.Limit, counterChange{now: now, n: h.N, hold: h.HoldID, chargeDenied: h.Limit.ChargeDenied && !h.InGroup()})
}

// take applies c to the counter of id, under the limit l. The caller holds the mutex.
func (s *stripe) take(id fingerprint.ID, l *limit.Limit, c counterChange) limit.Result {
	state := &s.state
	index := s.find(id)
	if index >= 0 {
		*state = s.stateOf(s.at(index))
	} else {
		*state = limit.State{}
	}
	oldWeight := logWeight(state)
	var r limit.Result
	switch {
	case c.isUndo:
		r = l.Undo(state, c.now, c.n, c.hold, c.oldExpiry)
	case c.hold != "":
		r = l.TakeHold(state, c.now, c.n, c.hold)
	default:
		r = l.TakeWith(state, c.now, c.n, c.chargeDenied)
	}
	growth := logWeight(state) - oldWeight
	if growth != 0 {
		s.memory.logs.Add(growth)
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
	e := s.at(index)
	if isNew {
		e.resets = s.memory.resets.Load()
	}
	s.setState(e, state)
	e.expiry = max(c.now+r.ResetAfter, state.LastExpiry())
	*state = limit.State{} // otherwise state would keep the log after the removal of its entry
	e.spent = l.Spent(r)
	// take has added at most a counter and a log entry or a hold, so two evictions are enough.
	for i := 0; i < 2 && (isNew || growth > 0) && s.size > s.memory.keysPerStripe(); i++ {
		s.evict(id, c.now)
	}
	return r
}

// evict looks at a sample of entries, and removes one of them. It never removes the entry of currentID. It prefers an
// expired entry, and then the entry with the fewest spent hits. The sample starts at a random entry, and its entries are
// at equal distances.
func (s *stripe) evict(currentID fingerprint.ID, now int64) {
	n := s.size
	stride := max(n/sampleSize, 1)
	victim := -1
	for i, index := 0, rand.IntN(n); i < min(sampleSize, n); i, index = i+1, (index+stride)%n {
		e := s.at(index)
		switch {
		case e.id == currentID:
		case e.expiry <= now:
			s.forget(index)
			return
		case victim < 0 || e.isEvictedBefore(s.at(victim)):
			victim = index
		}
	}
	if victim >= 0 {
		s.forget(victim)
		s.memory.evictions.Add(1)
	}
}

func (e *entry) isEvictedBefore(other *entry) bool {
	return e.spent < other.spent || e.spent == other.spent && e.expiry < other.expiry
}

// forget removes an entry with its log, and subtracts the weight of the log from memory.logs.
func (s *stripe) forget(index int) {
	if e := s.at(index); e.log != 0 {
		state := s.stateOf(e)
		s.memory.logs.Add(-logWeight(&state))
	}
	s.remove(index)
}
