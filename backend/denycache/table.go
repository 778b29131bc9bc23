package denycache

import (
	"math"
	"sync"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// entry is a remembered denial. It fills one cache line. Times are in microseconds since
// 1970. An entry is free if its end is 0.
type entry struct {
	id        fingerprint.ID
	start     int64 // time since which the counter has denied
	askAt     int64 // time from which a call asks the next Limiter again; at most end
	end       int64 // time at which the denied hits can pass
	resetTime int64 // time at which everything spent is forgotten
	remaining int32
	minHits   uint32 // smallest number of hits that is denied; 0 denies peeks as well
	max       uint32 // Max of the limit
	capacity  uint32 // Capacity of the limit
}

const (
	firstDenialTime = 1_000_000 // microseconds for which the first denial of a counter is remembered
	entryBytes      = 64
	setSize         = 8 // entries of a set
	maxShards       = 64
)

// table is a set-associative cache of denials. A new entry in a full set evicts the entry that ends first.
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

func (t *table) lock(id fingerprint.ID) (*shard, *[setSize]entry) {
	s := &t.shards[id.Lo%uint64(len(t.shards))]
	set := &s.sets[id.Hi%uint64(len(s.sets))]
	s.mu.Lock()
	return s, set
}

// find looks for the entry of id at now. If the entry denies h, find sets r to the denial.
func (t *table) find(id fingerprint.ID, h *backend.Hit, now int64, r *limit.Result) (l lookup) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	l = lookup{id: id, generation: s.generation}
	e := placeFor(set, id)
	l.hasEntry = e.id == id
	if l.isDenied = l.hasEntry && e.denies(h, now); l.isDenied {
		*r = e.result(h, now)
	}
	return l
}

// denies reports whether e answers h at now. e does not answer if the denial has ended, if the clock was set back
// before the denial, if h has fewer hits than were denied, or if the limit was raised.
func (e *entry) denies(h *backend.Hit, now int64) bool {
	n := h.N
	if !h.Limit.Algorithm.ResetsAtOnce() {
		n = max(n, 1) // a peek is denied if one hit is
	}
	return e.start <= now && now < e.askAt && n >= int64(e.minHits) &&
		h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity)
}

func (e *entry) result(h *backend.Hit, now int64) limit.Result {
	r := limit.Result{Remaining: int64(min(e.remaining, 0)), ResetAfter: e.resetTime - now, RetryAfter: e.end - now}
	if h.N > h.Limit.Capacity() {
		r.RetryAfter = limit.Never
	}
	return r
}

// add remembers the denial r of h, unless the shard was invalidated since the lookup.
func (t *table) add(l *lookup, h *backend.Hit, r limit.Result, now int64) {
	resetsAtOnce := h.Limit.Algorithm.ResetsAtOnce()
	wait := r.RetryAfter
	if wait == limit.Never && resetsAtOnce { // fewer hits can pass once the window has ended
		wait = r.ResetAfter
	}
	minHits := max(h.N, 1)
	if resetsAtOnce { // every number above Remaining is denied until the window ends
		minHits = max(r.Remaining+1, 0)
	}
	if wait <= 0 || h.Limit.ChargeDenied && !resetsAtOnce || minHits > math.MaxUint32 || r.Remaining > math.MaxInt32 {
		return
	}
	n := entry{
		id: l.id, start: now, end: now + wait, resetTime: now + r.ResetAfter, remaining: int32(max(r.Remaining, math.MinInt32)),
		minHits: uint32(minHits), max: uint32(h.Limit.Max()), capacity: uint32(h.Limit.Capacity()),
	}
	s, set := t.lock(l.id)
	defer s.mu.Unlock()
	if s.generation != l.generation {
		return
	}
	place := placeFor(set, l.id)
	if place.id == l.id && place.start <= now && now < place.end && place.minHits <= n.minHits {
		n.start = place.start
	}
	n.askAt = min(n.end, now+max(now-n.start, firstDenialTime))
	*place = n
}

// placeFor returns the place for an entry of id: that of its old entry, or else of the entry that ends first.
func placeFor(set *[setSize]entry, id fingerprint.ID) *entry {
	place := &set[0]
	for i := range set {
		if e := &set[i]; e.id == id {
			return e
		} else if e.end < place.end {
			place = e
		}
	}
	return place
}

func (t *table) invalidateAll() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.generation++
		clear(s.sets)
		s.mu.Unlock()
	}
}

// invalidate drops the entry of id, and a denial that another Take is about to add.
func (t *table) invalidate(id fingerprint.ID) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	s.generation++
	if e := placeFor(set, id); e.id == id {
		*e = entry{}
	}
}
