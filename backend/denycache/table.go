package denycache

import (
	"sync"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// entry is a remembered denial: one cache line. Times are in microseconds since
// 1970; an entry whose until is 0 is free.
type entry struct {
	id        fingerprint.ID
	since     int64
	until     int64 // when the denied hits can pass
	reset     int64
	remaining int64
	least     int64 // the fewest hits that are denied; 0: peeks too
	max       uint32
	capacity  uint32
}

const (
	entryBytes = 64
	ways       = 8 // entries where a denial can be
	maxShards  = 64
)

// table holds the entries, in sets of a fixed number. A full set loses what ends
// first.
type table struct {
	seeds  fingerprint.Seeds
	shards []shard
}

type shard struct {
	mu      sync.Mutex
	sets    [][ways]entry
	returns uint32 // counts hits given back
	_       [24]byte
}

func newTable(bytes int) *table {
	sets := max(bytes/(entryBytes*ways), 8)
	t := &table{seeds: fingerprint.NewSeeds(), shards: make([]shard, min(sets/8, maxShards))}
	for i := range t.shards {
		t.shards[i].sets = make([][ways]entry, sets/len(t.shards))
	}
	return t
}

// lock finds where id can be, locked.
func (t *table) lock(id fingerprint.ID) (*shard, *[ways]entry) {
	s := &t.shards[id.Lo%uint64(len(t.shards))]
	set := &s.sets[id.Hi%uint64(len(s.sets))]
	s.mu.Lock()
	return s, set
}

// find tells whether h is known to be denied at now, and how. It also returns how
// often hits were given back so far, for remember.
func (t *table) find(id fingerprint.ID, h *backend.Hit, now int64) (limit.Result, bool, uint32) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	for i := range set {
		if e := &set[i]; e.id == id && e.denies(h, now) {
			return e.result(h, now), true, s.returns
		}
	}
	return limit.Result{}, false, s.returns
}

// denies is false after the denial's time, where the clock was set back before it,
// for fewer hits than were denied, and once the limit is raised.
func (e *entry) denies(h *backend.Hit, now int64) bool {
	n := h.N
	if !h.Limit.Algorithm.ResetsAtOnce() {
		n = max(n, 1) // a peek asks for one
	}
	return e.since <= now && now < e.until && n >= e.least &&
		h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity)
}

func (e *entry) result(h *backend.Hit, now int64) limit.Result {
	r := limit.Result{Remaining: e.remaining, ResetAfter: e.reset - now, RetryAfter: e.until - now}
	if h.N > h.Limit.Capacity() {
		r.RetryAfter = limit.Never
	}
	return r
}

// remember keeps the denial r of h, unless hits were given back since find said
// returns.
func (t *table) remember(id fingerprint.ID, returns uint32, h *backend.Hit, r limit.Result, now int64) {
	atOnce := h.Limit.Algorithm.ResetsAtOnce()
	if r.RetryAfter <= 0 || h.Limit.ChargeDenied && !atOnce {
		return
	}
	least := max(h.N, 1)
	if atOnce { // nothing passes earlier than all does
		least = max(r.Remaining+1, 0)
	}
	s, set := t.lock(id)
	defer s.mu.Unlock()
	if s.returns != returns {
		return
	}
	place := &set[0]
	for i := range set {
		if e := &set[i]; e.id == id {
			place = e
			break
		} else if e.until < place.until {
			place = e
		}
	}
	*place = entry{
		id: id, since: now, until: now + r.RetryAfter, reset: now + r.ResetAfter, remaining: r.Remaining,
		least: least, max: uint32(h.Limit.Max()), capacity: uint32(h.Limit.Capacity()),
	}
}

// forgetAll drops all that is known.
func (t *table) forgetAll() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.returns++
		clear(s.sets)
		s.mu.Unlock()
	}
}

// forget drops what is known of id.
func (t *table) forget(id fingerprint.ID) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	s.returns++
	for i := range set {
		if set[i].id == id {
			set[i] = entry{}
		}
	}
}
