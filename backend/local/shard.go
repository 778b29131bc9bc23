package local

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	// sample is how many entries compete for being dropped.
	sample = 8

	// entriesPerKey is how many log entries weigh as much as a key: 16 bytes
	// each, and as much again for a log's room to grow.
	entriesPerKey = 4
)

// shard is a part of the counters behind one lock.
type shard struct {
	mu sync.Mutex
	table
	room *room

	// fresh is the state of a new key. It is zero between Takes. Limit.Take gets a
	// pointer to it, so a local variable would be allocated.
	fresh limit.State

	_ [128]byte // keeps the next shard out of this one's cache lines
}

// room is what all shards share: their bound, and what logs take of it. Logs are
// not held against their own shard, whose keys would have to go for one hot key's
// log, but take an equal share from all.
type room struct {
	most, shards int64
	logs         atomic.Int64 // weight of all logs, in keys
	dropped      atomic.Int64
}

// perShard is how many keys a shard may hold now: always one, even if logs have
// taken all.
func (r *room) perShard() int {
	return int(max((r.most-r.logs.Load())/r.shards, 1))
}

// weight is what s takes beside its entry, in keys.
func weight(s *limit.State) int64 {
	return int64(s.Entries()+entriesPerKey-1) / entriesPerKey
}

func (s *shard) lockAndTake(id fingerprint.ID, l *limit.Limit, now, n int64) limit.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.take(id, l, now, n, l.ChargeDenied)
}

// take is l.Take on the state of id. The caller holds the lock.
func (s *shard) take(id fingerprint.ID, l *limit.Limit, now, n int64, chargeDenied bool) limit.Result {
	state := &s.fresh
	slot := s.find(id)
	if slot >= 0 {
		state = &s.entries[slot].state
	}
	before := weight(state)
	r := l.TakeWith(state, now, n, chargeDenied)
	grown := weight(state) - before
	if grown != 0 {
		s.room.logs.Add(grown)
	}
	if state.IsZero() {
		if slot >= 0 {
			s.remove(slot)
		}
		return r
	}
	added := slot < 0
	if added {
		slot = s.add(id, s.fresh)
		s.fresh = limit.State{}
	}
	e := &s.entries[slot]
	e.expires = now + r.ResetAfter
	e.spent = l.Capacity() - r.Remaining
	if added || grown > 0 {
		s.shed(id, now)
	}
	return r
}

// shed drops entries other than keep while there are too many. One Take adds no
// more than a key and a log entry; so two are enough to keep up with any growth,
// and no Take has to pay for all of another's.
func (s *shard) shed(keep fingerprint.ID, now int64) {
	most := s.room.perShard()
	for i := 0; i < 2 && len(s.entries) > most; i++ {
		s.drop(keep, now)
	}
}

// drop removes one entry, other than keep, of a sample: one that has expired,
// else the one with the least spent, of equals the first to expire.
//
// The sample is spread evenly over the entries from a random start, so that it
// holds no entry twice, and all if there are few. A key with more spent than most
// others is safe in it.
func (s *shard) drop(keep fingerprint.ID, now int64) {
	n := len(s.entries)
	stride := max(n/sample, 1)
	victim := -1
	for i, slot := 0, rand.IntN(n); i < min(sample, n); i, slot = i+1, (slot+stride)%n {
		e := &s.entries[slot]
		switch {
		case e.id == keep:
		case e.expires <= now:
			s.forget(slot)
			return
		case victim < 0 || e.lighter(&s.entries[victim]):
			victim = slot
		}
	}
	if victim >= 0 {
		s.forget(victim)
		s.room.dropped.Add(1)
	}
}

func (e *entry) lighter(than *entry) bool {
	return e.spent < than.spent || e.spent == than.spent && e.expires < than.expires
}

// forget removes an entry and what its log weighs.
func (s *shard) forget(slot int) {
	if w := weight(&s.entries[slot].state); w != 0 {
		s.room.logs.Add(-w)
	}
	s.remove(slot)
}
