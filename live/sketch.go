package live

import (
	"cmp"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
)

// sketch finds the keys with the highest counts of the last minutes in bounded memory. It is
// the space-saving algorithm. If the sketch is full, a new key replaces the key with the
// lowest count. The count of the new key starts at this lowest count, so it can be too high
// by this number. A key can be missing only if its count is below the sum of all counts
// divided by the number of entries. Old counts decay.
//
// A sketch isn't safe for concurrent use.
type sketch struct {
	entries []entry
	heap    []int32          // indexes of entries, as a heap with the lowest count first
	places  map[uint64]int32 // indexes of entries, by hash
	total   float64          // the sum of all counts, with the keys that have no entry
}

// entry is a key in a sketch.
type entry struct {
	hash             uint64
	count, overcount float64 // decayed; the real count is at least count - overcount
	newHits          float64 // hits since the last advance
	newDenied        float64 // denied hits since the last advance

	// rate and deniedRate are hits per second, mostly of the last seconds.
	rate, deniedRate float64

	key   []byte // cut after maxKeyBytes
	rule  *descriptors.Rule
	limit *descriptors.RateLimit

	// spent and capacity belong to limit. They have the highest use since the last advance.
	// Without a hit since then, hasUse is false, and the old values stay.
	spent    int64
	capacity int64 // 0 if spent is unknown
	hasUse   bool

	heapPlace int32 // index in heap
}

// maxKeyBytes is the part of a key that a sketch keeps.
const maxKeyBytes = 400

func newSketch(entries int) *sketch {
	return &sketch{
		entries: make([]entry, 0, entries), heap: make([]int32, 0, entries), places: make(map[uint64]int32, entries),
	}
}

// add counts n hits of the key of ev.
func (s *sketch) add(ev *event, key []byte, n float64) {
	s.total += n
	place, isKnown := s.places[ev.hash]
	if !isKnown {
		place = s.newPlace(ev.hash)
		s.entries[place].key = append(s.entries[place].key[:0], key...)
	}
	e := &s.entries[place]
	e.count += n
	e.newHits += n
	if ev.denied {
		e.newDenied += n
	}
	if use := useOf(ev.spent, ev.capacity); !e.hasUse || use > useOf(e.spent, e.capacity) {
		e.rule, e.limit, e.spent, e.capacity, e.hasUse = ev.rule, ev.limit, ev.spent, ev.capacity, true
	}
	s.siftDown(e.heapPlace)
}

// newPlace returns the place of a new entry, which may take over the entry with the lowest
// count.
func (s *sketch) newPlace(hash uint64) int32 {
	if len(s.entries) < cap(s.entries) {
		place := int32(len(s.entries))
		s.entries = append(s.entries, entry{hash: hash, heapPlace: place})
		s.heap = append(s.heap, place)
		s.places[hash] = place
		s.siftUp(place)
		return place
	}
	place := s.heap[0]
	lowest := &s.entries[place]
	delete(s.places, lowest.hash)
	s.places[hash] = place
	*lowest = entry{hash: hash, count: lowest.count, overcount: lowest.count, key: lowest.key}
	return place
}

// countAt returns the count of an entry by its place in the heap.
func (s *sketch) countAt(heapPlace int32) float64 { return s.entries[s.heap[heapPlace]].count }

// siftUp moves an entry towards the root of the heap.
func (s *sketch) siftUp(heapPlace int32) {
	for heapPlace > 0 {
		parent := (heapPlace - 1) / 2
		if s.countAt(parent) <= s.countAt(heapPlace) {
			return
		}
		s.swap(heapPlace, parent)
		heapPlace = parent
	}
}

// siftDown moves an entry away from the root of the heap.
func (s *sketch) siftDown(heapPlace int32) {
	for {
		lowest := heapPlace
		for child := 2*heapPlace + 1; child <= 2*heapPlace+2; child++ {
			if int(child) < len(s.heap) && s.countAt(child) < s.countAt(lowest) {
				lowest = child
			}
		}
		if lowest == heapPlace {
			return
		}
		s.swap(heapPlace, lowest)
		heapPlace = lowest
	}
}

func (s *sketch) swap(a, b int32) {
	s.heap[a], s.heap[b] = s.heap[b], s.heap[a]
	s.entries[s.heap[a]].heapPlace, s.entries[s.heap[b]].heapPlace = a, b
}

// Half-lives in seconds.
const (
	countHalfLife = 60 // of counts
	rateHalfLife  = 2  // of the weight of older hits in a rate
)

var rateDecay = math.Exp2(-1.0 / rateHalfLife)

// advance lets counts decay, adds the new hits to the rates, and removes forgotten entries.
// seconds is the time since the last advance, about one second.
func (s *sketch) advance(seconds float64) {
	if seconds <= 0 {
		return
	}
	countDecay := math.Exp2(-seconds / countHalfLife)
	s.total *= countDecay
	hasForgotten := false
	for i := range s.entries {
		e := &s.entries[i]
		e.count *= countDecay
		e.overcount *= countDecay
		e.rate = e.rate*rateDecay + e.newHits/seconds*(1-rateDecay)
		e.deniedRate = e.deniedRate*rateDecay + e.newDenied/seconds*(1-rateDecay)
		e.newHits, e.newDenied, e.hasUse = 0, 0, false
		hasForgotten = hasForgotten || e.count < minCount
	}
	if hasForgotten {
		s.removeForgotten()
	}
}

// minCount is the count below which an entry is forgotten. A single hit stays for six
// minutes.
const minCount = 1.0 / 64

// removeForgotten removes the entries with counts below minCount.
func (s *sketch) removeForgotten() {
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool { return e.count < minCount })
	slices.SortFunc(s.entries, func(a, b entry) int { return cmp.Compare(a.count, b.count) }) // a sorted list is a heap
	s.heap = s.heap[:0]
	clear(s.places)
	for i := range s.entries {
		place := int32(i)
		s.entries[i].heapPlace, s.places[s.entries[i].hash] = place, place
		s.heap = append(s.heap, place)
	}
}

// top returns up to n entries that accept reports true for. A nil accept accepts all entries.
// The entries have the highest lower bounds of their counts, the highest first. The result
// shares no memory with s.
func (s *sketch) top(n int, accept func(*entry) bool) []entry {
	byBound := func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.count-b.overcount, a.count-a.overcount), cmp.Compare(a.hash, b.hash))
	}
	best := make([]entry, 0, n+1)
	for i := range s.entries {
		e := &s.entries[i]
		if e.count <= e.overcount || len(best) == n && byBound(*e, best[n-1]) > 0 || accept != nil && !accept(e) {
			continue
		}
		place, _ := slices.BinarySearchFunc(best, *e, byBound)
		best = slices.Insert(best, place, *e)
		best = best[:min(len(best), n)]
	}
	for i := range best {
		best[i].key = slices.Clone(best[i].key)
	}
	return best
}
