package local

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	// sampleSize is the number of entries among which evict chooses.
	sampleSize = 8

	// entriesPerKey is the number of log entries that weigh as much as a key. A log
	// entry takes 16 bytes, and as much again for the log's spare capacity.
	entriesPerKey = 4
)

// shard is a part of the counters behind one mutex.
type shard struct {
	mu sync.Mutex
	table
	budget *memoryBudget

	// state is the state of the key of the current Take. Limit.Take gets a pointer to it, so a
	// local variable would be allocated.
	state limit.State

	_ [128]byte // keeps the next shard out of this shard's cache lines
}

// memoryBudget is the bound that all shards share. Logs are charged to all shards equally,
// so the log of one hot key does not push other keys out of its shard.
type memoryBudget struct {
	maxKeys, shards int64
	logs            atomic.Int64 // weight of all logs, in keys
	resets          atomic.Uint32
	evictions       atomic.Int64
}

// keysPerShard returns how many keys a shard may hold now. It is at least one, even if logs
// use the whole budget.
func (b *memoryBudget) keysPerShard() int {
	return int(max((b.maxKeys-b.logs.Load())/b.shards, 1))
}

// logWeight returns the weight of the log of s, in keys.
func logWeight(s *limit.State) int64 {
	return int64(s.Entries()+entriesPerKey-1) / entriesPerKey
}

// counterChange is a change of one counter.
type counterChange struct {
	now, n       int64
	hold         string // see backend.Hit.HoldID
	chargeDenied bool
	undo         bool  // takes an admitted charge of the same time back
	oldExpiry    int64 // for undo; see limit.Limit.Undo
}

// lockAndTake decides h at now.
func (s *shard) lockAndTake(id fingerprint.ID, h *backend.Hit, now int64) limit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id, h.Limit, counterChange{now: now, n: h.N, hold: h.HoldID, chargeDenied: h.Limit.ChargeDenied})
}

// take charges the counter of id, which belongs to l. The caller holds the mutex.
func (s *shard) take(id fingerprint.ID, l *limit.Limit, c counterChange) limit.Result {
	state := &s.state
	slot := s.find(id)
	if slot >= 0 {
		*state = s.stateOf(s.at(slot))
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
		s.budget.logs.Add(growth)
	}
	if state.IsZero() {
		if slot >= 0 {
			s.remove(slot)
		}
		return r
	}
	added := slot < 0
	if added {
		slot = s.add(id)
	}
	e := s.at(slot)
	if added {
		e.resets = s.budget.resets.Load()
	}
	s.setState(e, state)
	e.expires = max(c.now+r.ResetAfter, state.LastExpiry())
	*state = limit.State{} // frees the log once the entry is removed
	e.spent = l.Spent(r)
	// This Take added at most one key and one log entry or hold, so two evictions are enough for
	// its own growth. If logs in other shards have made the bound smaller, several Takes
	// share the evictions.
	for i := 0; i < 2 && (added || growth > 0) && s.size > s.budget.keysPerShard(); i++ {
		s.evict(id, c.now)
	}
	return r
}

// evict removes one entry other than currentID from a sample. It removes an expired entry, or
// else the entry with the least spent. If several entries have spent
// the least, evict removes the first of them to expire.
//
// The sample is spread evenly over the entries from a random start. So it holds no entry
// twice, and all entries if there are few. A key with more spent than most others is safe.
func (s *shard) evict(currentID fingerprint.ID, now int64) {
	n := s.size
	stride := max(n/sampleSize, 1)
	victim := -1
	for i, slot := 0, rand.IntN(n); i < min(sampleSize, n); i, slot = i+1, (slot+stride)%n {
		e := s.at(slot)
		switch {
		case e.id == currentID:
		case e.expires <= now:
			s.forget(slot)
			return
		case victim < 0 || e.lessSpent(s.at(victim)):
			victim = slot
		}
	}
	if victim >= 0 {
		s.forget(victim)
		s.budget.evictions.Add(1)
	}
}

// lessSpent reports whether e should be evicted before other.
func (e *entry) lessSpent(other *entry) bool {
	return e.spent < other.spent || e.spent == other.spent && e.expires < other.expires
}

// forget removes an entry and the weight of its log.
func (s *shard) forget(slot int) {
	if e := s.at(slot); e.log != 0 {
		state := s.stateOf(e)
		s.budget.logs.Add(-logWeight(&state))
	}
	s.remove(slot)
}
