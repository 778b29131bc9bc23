package denycache

import (
	"sync"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// entry is a remembered denial. It fills one cache line. Times are in microseconds since
// 1970. An entry is free if its end is 0.
type entry struct {
	id        fingerprint.ID
	start     int64 // time of the denial
	end       int64 // time at which the denied hits can pass
	resetTime int64 // time at which everything spent is forgotten
	remaining int64
	minHits   int64  // smallest number of hits that is denied; 0 denies peeks as well
	max       uint32 // Max of the limit
	capacity  uint32 // Capacity of the limit
}

const (
	entryBytes = 64
	setSize    = 8 // entries of a set
	maxShards  = 64
)

// table is a set-associative cache of denials. Each id has one set of entries. A new
// entry in a full set evicts the entry that ends first.
type table struct {
	seeds  fingerprint.Seeds
	shards []shard
}

type shard struct {
	mu         sync.Mutex
	sets       [][setSize]entry
	generation uint32   // number of invalidations
	_          [24]byte // keeps shards in separate cache lines
}

func newTable(bytes int) *table {
	sets := max(bytes/(entryBytes*setSize), 8)
	t := &table{seeds: fingerprint.NewSeeds(), shards: make([]shard, min(sets/8, maxShards))}
	for i := range t.shards {
		t.shards[i].sets = make([][setSize]entry, sets/len(t.shards))
	}
	return t
}

// lock locks the shard of id and returns it with the set of id.
func (t *table) lock(id fingerprint.ID) (*shard, *[setSize]entry) {
	s := &t.shards[id.Lo%uint64(len(t.shards))]
	set := &s.sets[id.Hi%uint64(len(s.sets))]
	s.mu.Lock()
	return s, set
}

// find returns the remembered denial that answers h at now, whether there is one, and the
// generation for add.
func (t *table) find(id fingerprint.ID, h *backend.Hit, now int64) (limit.Result, bool, uint32) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	for i := range set {
		if e := &set[i]; e.id == id && e.denies(h, now) {
			return e.result(h, now), true, s.generation
		}
	}
	return limit.Result{}, false, s.generation
}

// denies reports whether e answers h at now. e does not answer if the denial has ended, if
// the clock was set back before the denial, if h has fewer hits than were denied, or if the
// limit was raised.
func (e *entry) denies(h *backend.Hit, now int64) bool {
	n := h.N
	if !h.Limit.Algorithm.ResetsAtOnce() {
		n = max(n, 1) // a peek is denied if one hit is
	}
	return e.start <= now && now < e.end && n >= e.minHits &&
		h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity)
}

func (e *entry) result(h *backend.Hit, now int64) limit.Result {
	r := limit.Result{Remaining: e.remaining, ResetAfter: e.resetTime - now, RetryAfter: e.end - now}
	if h.N > h.Limit.Capacity() {
		r.RetryAfter = limit.Never
	}
	return r
}

// add remembers the denial r of h, unless the shard was invalidated since find returned
// generation.
func (t *table) add(id fingerprint.ID, generation uint32, h *backend.Hit, r limit.Result, now int64) {
	resetsAtOnce := h.Limit.Algorithm.ResetsAtOnce()
	wait := r.RetryAfter
	if wait == limit.Never && resetsAtOnce { // fewer hits can pass once the window has ended
		wait = r.ResetAfter
	}
	if wait <= 0 || h.Limit.ChargeDenied && !resetsAtOnce {
		return
	}
	minHits := max(h.N, 1)
	if resetsAtOnce { // every number above Remaining is denied until the window ends
		minHits = max(r.Remaining+1, 0)
	}
	s, set := t.lock(id)
	defer s.mu.Unlock()
	if s.generation != generation {
		return
	}
	place := &set[0]
	for i := range set {
		if e := &set[i]; e.id == id {
			place = e
			break
		} else if e.end < place.end {
			place = e
		}
	}
	*place = entry{
		id: id, start: now, end: now + wait, resetTime: now + r.ResetAfter, remaining: r.Remaining,
		minHits: minHits, max: uint32(h.Limit.Max()), capacity: uint32(h.Limit.Capacity()),
	}
}

// invalidateAll drops all entries.
func (t *table) invalidateAll() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.generation++
		clear(s.sets)
		s.mu.Unlock()
	}
}

// invalidate drops the entry of id.
func (t *table) invalidate(id fingerprint.ID) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	s.generation++
	for i := range set {
		if set[i].id == id {
			set[i] = entry{}
		}
	}
}
