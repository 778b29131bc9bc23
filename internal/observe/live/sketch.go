package live

import (
	"cmp"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
)

// sketch finds the keys with the most hits and the keys with the most denied hits of the last
// minutes in bounded memory. Each key has one entry, so its figures are the same in both
// rankings. A ranking is a table of the space-saving algorithm. If the ranking is full, a new key
// replaces the key with the lowest count. The count of the new key starts at this lowest count,
// so it can be too high by this number. A key can be missing only if its count is below the sum
// of all counts divided by the number of keys in the ranking. Old counts decay.
//
// A sketch isn't safe for concurrent use.
type sketch struct {
	entries  []entry          // an entry without a place in a ranking is free
	free     []int32          // indexes of free entries
	places   map[uint64]int32 // indexes of entries, by hash
	rankings [2]ranking
	spans    window // the spans of entry.pastHits
}

// The rankings of a sketch.
const (
	byHits = iota
	byDenied
)

// ranking has the keys of a sketch with the highest counts.
type ranking struct {
	maxKeys int
	heap    []int32 // indexes of entries, as a heap with the lowest count first
	total   float64 // the sum of all counts, also of keys that have left the ranking
}

// entry is a key in a sketch.
type entry struct {
	hash  uint64
	ranks [2]rank

	// newHits are the hits since the last advance, and pastHits the hits of the spans before.
	newHits  keyHits
	pastHits [windowSeconds]keyHits

	key   []byte // cut after maxKeyBytes
	rule  *descriptors.Rule
	limit *descriptors.RateLimit

	isDomainUnknown bool // the key has no rule, because its domain has no limits

	// spent and capacity belong to limit. They have the highest use since the last advance.
	// Without a hit since then, hasUse is false, and the old values stay.
	spent    int64
	capacity int64 // 0 if spent is unknown
	hasUse   bool
}

// rank is the place of a key in a ranking.
type rank struct {
	count, overcount float64 // decayed; the real count is at least count - overcount
	heapPlace        int32   // index in the heap, or noPlace
}

const noPlace = -1

// keyHits are hits on a key. Denied hits are also in all.
type keyHits struct{ all, denied float32 }

// maxKeyBytes is the part of a key that a sketch keeps.
const maxKeyBytes = 400

// newSketch returns a sketch with maxKeys keys in each ranking.
func newSketch(maxKeys int) *sketch {
	maxEntries := 2*maxKeys + 1 // add makes an entry before it frees another entry
	s := &sketch{entries: make([]entry, 0, maxEntries), places: make(map[uint64]int32, maxEntries)}
	for i := range s.rankings {
		s.rankings[i] = ranking{maxKeys: maxKeys, heap: make([]int32, 0, maxKeys)}
	}
	return s
}

// add counts the hits of ev on its key.
func (s *sketch) add(ev *event, key []byte) {
	place, isKnown := s.places[ev.hash]
	if !isKnown {
		place = s.newPlace(ev.hash)
		s.entries[place].key = append(s.entries[place].key[:0], key...)
	}
	e := &s.entries[place]
	e.newHits.all += float32(ev.hits)
	e.newHits.denied += float32(ev.denied)
	if use := useOf(ev.spent, ev.capacity); !e.hasUse || use > useOf(e.spent, e.capacity) {
		e.rule, e.limit, e.isDomainUnknown, e.spent, e.capacity, e.hasUse = ev.rule, ev.limit, ev.isDomainUnknown, ev.spent, ev.capacity, true
	}
	s.count(byHits, place, ev.hits)
	if ev.denied > 0 {
		s.count(byDenied, place, ev.denied)
	}
}

// newPlace returns the index of a new entry in s.entries.
func (s *sketch) newPlace(hash uint64) int32 {
	var place int32
	if last := len(s.free) - 1; last >= 0 {
		place = s.free[last]
		s.free = s.free[:last]
	} else {
		place = int32(len(s.entries))
		s.entries = append(s.entries, entry{})
	}
	s.entries[place] = entry{hash: hash, key: s.entries[place].key, ranks: [2]rank{{heapPlace: noPlace}, {heapPlace: noPlace}}}
	s.places[hash] = place
	return place
}

// count adds n to the count of an entry in a ranking. A new entry of a full ranking takes over the
// place with the lowest count.
func (s *sketch) count(ranking int, place int32, n float64) {
	r := &s.rankings[ranking]
	r.total += n
	own := &s.entries[place].ranks[ranking]
	own.count += n
	switch {
	case own.heapPlace != noPlace:
		s.siftDown(ranking, own.heapPlace)
	case len(r.heap) < r.maxKeys:
		r.heap = append(r.heap, place)
		own.heapPlace = int32(len(r.heap) - 1)
		s.siftUp(ranking, own.heapPlace)
	default:
		lowest := r.heap[0]
		count := s.entries[lowest].ranks[ranking].count
		s.leave(ranking, lowest)
		r.heap[0], *own = place, rank{count: count + n, overcount: count}
		s.siftDown(ranking, 0)
	}
}

// leave removes an entry from a ranking. An entry that is in no ranking becomes free.
func (s *sketch) leave(ranking int, place int32) {
	e := &s.entries[place]
	e.ranks[ranking] = rank{heapPlace: noPlace}
	if e.ranks[byHits].heapPlace == noPlace && e.ranks[byDenied].heapPlace == noPlace {
		delete(s.places, e.hash)
		s.free = append(s.free, place)
		e.rule, e.limit = nil, nil // they can be freed
	}
}

// countAt returns the count of an entry by its place in the heap of a ranking.
func (s *sketch) countAt(ranking int, heapPlace int32) float64 {
	return s.entries[s.rankings[ranking].heap[heapPlace]].ranks[ranking].count
}

// siftUp moves an entry towards the root of a heap.
func (s *sketch) siftUp(ranking int, heapPlace int32) {
	for heapPlace > 0 {
		parent := (heapPlace - 1) / 2
		if s.countAt(ranking, parent) <= s.countAt(ranking, heapPlace) {
			return
		}
		s.swap(ranking, heapPlace, parent)
		heapPlace = parent
	}
}

// siftDown moves an entry away from the root of a heap.
func (s *sketch) siftDown(ranking int, heapPlace int32) {
	size := len(s.rankings[ranking].heap)
	for {
		lowest := heapPlace
		for child := 2*heapPlace + 1; child <= 2*heapPlace+2; child++ {
			if int(child) < size && s.countAt(ranking, child) < s.countAt(ranking, lowest) {
				lowest = child
			}
		}
		if lowest == heapPlace {
			return
		}
		s.swap(ranking, heapPlace, lowest)
		heapPlace = lowest
	}
}

func (s *sketch) swap(ranking int, a, b int32) {
	heap := s.rankings[ranking].heap
	heap[a], heap[b] = heap[b], heap[a]
	s.entries[heap[a]].ranks[ranking].heapPlace, s.entries[heap[b]].ranks[ranking].heapPlace = a, b
}

// countHalfLife is the half-life of counts in seconds.
const countHalfLife = 60

// advance lets counts decay, ends the span of the new hits, and removes forgotten keys. seconds is
// the time since the last advance.
func (s *sketch) advance(seconds float64) {
	if seconds <= 0 {
		return
	}
	isNewSpan := s.spans.add(seconds)
	for i := range s.entries {
		e := &s.entries[i]
		if isNewSpan {
			copy(e.pastHits[1:], e.pastHits[:])
			e.pastHits[0] = keyHits{}
		}
		e.pastHits[0].all += e.newHits.all
		e.pastHits[0].denied += e.newHits.denied
		e.newHits, e.hasUse = keyHits{}, false
	}
	decay := math.Exp2(-seconds / countHalfLife)
	for i := range s.rankings {
		s.decay(i, decay)
	}
}

// minCount is the count below which an entry is forgotten. A single hit stays for six
// minutes.
const minCount = 1.0 / 64

// decay multiplies the counts of a ranking by a factor. Entries with counts below minCount leave the
// ranking.
func (s *sketch) decay(ranking int, factor float64) {
	r := &s.rankings[ranking]
	r.total *= factor
	kept := r.heap[:0]
	for _, place := range r.heap {
		own := &s.entries[place].ranks[ranking]
		own.count *= factor
		own.overcount *= factor
		if own.count < minCount {
			s.leave(ranking, place)
			continue
		}
		kept = append(kept, place)
	}
	if len(kept) == len(r.heap) {
		return // the order is the same
	}
	r.heap = kept
	slices.SortFunc(r.heap, func(a, b int32) int { // a sorted list is a heap
		return cmp.Compare(s.entries[a].ranks[ranking].count, s.entries[b].ranks[ranking].count)
	})
	for i, place := range r.heap {
		s.entries[place].ranks[ranking].heapPlace = int32(i)
	}
}

// rates returns the hits and the denied hits per second of an entry in the last seconds.
func (s *sketch) rates(e *entry) (all, denied float64) {
	spans, seconds := s.spans.recent()
	if seconds == 0 {
		return 0, 0
	}
	for _, h := range e.pastHits[:spans] {
		all += float64(h.all)
		denied += float64(h.denied)
	}
	return all / seconds, denied / seconds
}

// rankedEntry is an entry and its figures.
type rankedEntry struct {
	entry
	share            float64 // of the hits or denied hits of the last minutes
	rate, deniedRate float64 // see rates
}

// top returns up to n entries of a ranking that accept reports true for. A nil accept accepts all
// entries. The entries have the highest lower bounds of their counts, the highest first. The
// result shares no memory with s.
func (s *sketch) top(ranking, n int, accept func(*entry) bool) []rankedEntry {
	bound := func(e *entry) float64 { return e.ranks[ranking].count - e.ranks[ranking].overcount }
	byBound := func(a, b entry) int { return cmp.Or(cmp.Compare(bound(&b), bound(&a)), cmp.Compare(a.hash, b.hash)) }
	best := make([]entry, 0, n+1)
	for _, entryPlace := range s.rankings[ranking].heap {
		e := &s.entries[entryPlace]
		if bound(e) <= 0 || len(best) == n && byBound(*e, best[n-1]) > 0 || accept != nil && !accept(e) {
			continue
		}
		place, _ := slices.BinarySearchFunc(best, *e, byBound)
		best = slices.Insert(best, place, *e)
		best = best[:min(len(best), n)]
	}
	top := make([]rankedEntry, len(best))
	for i := range best {
		t := &top[i]
		t.entry, t.share = best[i], bound(&best[i])/s.rankings[ranking].total
		t.rate, t.deniedRate = s.rates(&t.entry)
		t.key = slices.Clone(t.key)
	}
	return top
}
