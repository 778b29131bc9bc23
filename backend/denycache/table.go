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
	id          fingerprint.ID
	start       int64  // the time of the first denial by the counter
	nextAskTime int64  // the time at which hits go to the next Layer again; at most end
	end         int64  // the time at which the denied hits can pass
	resetTime   int64  // the time at which the counter has no spent hits
	remaining   int32  // the Remaining of the denial
	minHits     uint32 // the smallest number of hits that the entry denies; with 0, it denies peeks too
	max         uint32 // the Max of the limit
	capacity    uint32 // the Capacity of the limit
}

const (
	firstDenialSpan  = 1_000_000 // the time for which the cache remembers the first denial of a counter, in microseconds
	entryBytes       = 64
	setSize          = 8 // entries in a set
	minSetsPerStripe = 8
	maxStripes       = 64
)

// table is a cache of denials. Each id has one set of entries. A new entry in a full set evicts the entry that ends first.
type table struct {
	seeds   fingerprint.Seeds
	stripes []stripe
}

type stripe struct {
	mu         sync.Mutex
	sets       [][setSize]entry
	generation uint32   // the number of calls of invalidate and invalidateAll; see add
	_          [24]byte // keeps stripes in separate cache lines
}

func newTable(bytes int) *table {
	setCount := max(bytes/(entryBytes*setSize), minSetsPerStripe)
	t := &table{seeds: fingerprint.NewSeeds(), stripes: make([]stripe, min(setCount/minSetsPerStripe, maxStripes))}
	for i := range t.stripes {
		t.stripes[i].sets = make([][setSize]entry, setCount/len(t.stripes))
	}
	return t
}

// lock locks the stripe of id, and returns the stripe and the set that can have the entry of id.
func (t *table) lock(id fingerprint.ID) (*stripe, *[setSize]entry) {
	s := &t.stripes[id.Lo%uint64(len(t.stripes))]
	set := &s.sets[id.Hi%uint64(len(s.sets))]
	s.mu.Lock()
	return s, set
}

// find looks for the entry of id at now. If the entry denies h, find sets r to the denial.
func (t *table) find(id fingerprint.ID, h *backend.Hit, now int64, r *limit.Result) (l lookup) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	l = lookup{id: id, generation: s.generation}
	e := findEntry(set, id)
	l.hasEntry = e.id == id
	l.isDenied = l.hasEntry && e.denies(h, now)
	if l.isDenied {
		*r = e.result(h, now)
	}
	return l
}

// denies reports whether e denies h at now. It returns false if the denial has ended, if the clock was set back before
// the denial, if h has fewer hits than e denies, or if the limit was raised.
func (e *entry) denies(h *backend.Hit, now int64) bool {
	n := h.N
	if !h.Limit.Algorithm.ResetsAtWindowEnd() {
		n = max(n, 1) // a peek gets the answer of one hit
	}
	return e.start <= now && now < e.nextAskTime && n >= int64(e.minHits) &&
		h.Limit.Max() <= int64(e.max) && h.Limit.Capacity() <= int64(e.capacity)
}

func (e *entry) result(h *backend.Hit, now int64) limit.Result {
	r := limit.Result{Remaining: int64(min(e.remaining, 0)), ResetAfter: e.resetTime - now, RetryAfter: e.end - now}
	if h.N > h.Limit.Capacity() {
		r.RetryAfter = limit.Never
	}
	return r
}

// add remembers the denial r of h. If an entry of the stripe was invalidated since the lookup, add does nothing, because
// the denial may be older than the refund that invalidated the entry.
func (t *table) add(l *lookup, h *backend.Hit, r limit.Result, now int64) {
	resetsAtWindowEnd := h.Limit.Algorithm.ResetsAtWindowEnd()
	wait := r.RetryAfter
	if wait == limit.Never && resetsAtWindowEnd { // a smaller number of hits can pass after the window
		wait = r.ResetAfter
	}
	minHits := max(h.N, 1)
	if resetsAtWindowEnd { // until the window ends, every number of hits above Remaining is denied
		minHits = max(r.Remaining+1, 0)
	}
	if wait <= 0 || h.Limit.ChargeDenied && !resetsAtWindowEnd || minHits > math.MaxUint32 || r.Remaining > math.MaxInt32 {
		return
	}
	newEntry := entry{
		id: l.id, start: now, end: now + wait, resetTime: now + r.ResetAfter, remaining: int32(max(r.Remaining, math.MinInt32)),
		minHits: uint32(minHits), max: uint32(h.Limit.Max()), capacity: uint32(h.Limit.Capacity()),
	}
	s, set := t.lock(l.id)
	defer s.mu.Unlock()
	if s.generation != l.generation {
		return
	}
	oldEntry := findEntry(set, l.id)
	hasValidDenial := oldEntry.id == l.id && oldEntry.start <= now && now < oldEntry.end
	if hasValidDenial && oldEntry.minHits <= newEntry.minHits {
		newEntry.start = oldEntry.start
	}
	newEntry.nextAskTime = min(newEntry.end, now+max(now-newEntry.start, firstDenialSpan))
	*oldEntry = newEntry
}

// findEntry returns the entry of id. If the set has no such entry, it returns the entry that ends first.
func findEntry(set *[setSize]entry, id fingerprint.ID) *entry {
	firstToEnd := &set[0]
	for i := range set {
		if e := &set[i]; e.id == id {
			return e
		} else if e.end < firstToEnd.end {
			firstToEnd = e
		}
	}
	return firstToEnd
}

func (t *table) invalidateAll() {
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.Lock()
		s.generation++
		clear(s.sets)
		s.mu.Unlock()
	}
}

// invalidate drops the entry of id. If a Take has looked up a key of the stripe before, it adds no denial.
func (t *table) invalidate(id fingerprint.ID) {
	s, set := t.lock(id)
	defer s.mu.Unlock()
	s.generation++
	if e := findEntry(set, id); e.id == id {
		*e = entry{}
	}
}
