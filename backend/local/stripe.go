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
	sampleSize    = 8 // entries among which evict chooses
	entriesPerKey = 4 // log entries that weigh as much as a key
)

// stripe is a part of the counters behind one mutex.
type stripe struct {
	mu sync.Mutex
	table
	memory *memoryBound

	state limit.State // of the key of the current Take; a local variable would be allocated

	_ [128]byte // keeps the next stripe out of this stripe's cache lines
}

// memoryBound is the bound that all stripes share. Each log lowers the bound of all stripes equally.
type memoryBound struct {
	maxKeys, stripes int64
	logs             atomic.Int64  // weight of all logs, in keys
	resets           atomic.Uint32 // resets by prefix so far
	evictions        atomic.Int64  // unexpired counters evicted so far
}

// keysPerStripe returns how many keys a stripe may hold now: at least one.
func (b *memoryBound) keysPerStripe() int {
	return int(max((b.maxKeys-b.logs.Load())/b.stripes, 1))
}

// logWeight returns the weight of the log of s, in keys.
func logWeight(s *limit.State) int64 {
	return int64(s.Entries()+entriesPerKey-1) / entriesPerKey
}

type counterChange struct {
	now, n       int64
	hold         string // see backend.Hit.HoldID
	chargeDenied bool
	undo         bool  // refunds an admitted charge that was made at the time now
	oldExpiry    int64 // used only with undo; see limit.Limit.Undo
}

func (s *stripe) lockAndTake(id fingerprint.ID, h *backend.Hit, now int64) limit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id, h.Limit, counterChange{now: now, n: h.N, hold: h.HoldID, chargeDenied: h.Limit.ChargeDenied && !h.InGroup()})
}

// take charges the counter of id, which belongs to l. The caller holds the mutex.
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
	case c.undo:
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
	e.expires = max(c.now+r.ResetAfter, state.LastExpiry())
	*state = limit.State{} // so that the log can be freed when its entry is removed
	e.spent = l.Spent(r)
	// This Take added at most one key and one log entry or hold, so two evictions make room for both.
	for i := 0; i < 2 && (isNew || growth > 0) && s.size > s.memory.keysPerStripe(); i++ {
		s.evict(id, c.now)
	}
	return r
}

// evict removes one entry other than currentID from a sample: an expired entry, or else an entry with the least
// spent hits. The sample starts at a random entry and is spread evenly.
func (s *stripe) evict(currentID fingerprint.ID, now int64) {
	n := s.size
	stride := max(n/sampleSize, 1)
	victim := -1
	for i, index := 0, rand.IntN(n); i < min(sampleSize, n); i, index = i+1, (index+stride)%n {
		e := s.at(index)
		switch {
		case e.id == currentID:
		case e.expires <= now:
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
	return e.spent < other.spent || e.spent == other.spent && e.expires < other.expires
}

// forget removes an entry with its log, and takes the weight of the log off memory.logs.
func (s *stripe) forget(index int) {
	if e := s.at(index); e.log != 0 {
		state := s.stateOf(e)
		s.memory.logs.Add(-logWeight(&state))
	}
	s.remove(index)
}
