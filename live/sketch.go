package live

import (
	"cmp"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
)

// sketch finds the keys with the highest counts of the last minutes in bounded memory. It is
// the space-saving algorithm: a key without an entry takes the entry with the lowest count,
// and inherits this count as its error. So a key is missing only if its count is below the
// sum of all counts divided by the number of entries. Old counts decay.
//
// A sketch isn't safe for concurrent use.
type sketch struct {
	entries []entry
	heap    []int32          // places in entries, a heap: the lowest count first
	places  map[uint64]int32 // in entries, by hash
	total   float64          // the sum of all counts, also of the keys that have no entry
}

// entry is a key in a sketch.
type entry struct {
	hash         uint64
	count, error float64 // decayed; count - error is a lower bound
	second       float64 // hits in the second in progress
	denied       float64 // denied hits in the second in progress

	// rate and deniedRate are hits per second, mostly of the last seconds.
	rate, deniedRate float64

	key   []byte // cut after maxKeyBytes
	rule  *descriptors.Rule
	limit *descriptors.RateLimit

	// spent and capacity belong to limit. They are the highest in the second in progress if
	// hasUse is set, else in the last second with hits.
	spent    int64
	capacity int64 // 0 if spent is unknown
	hasUse   bool

	heapPlace int32 // in heap
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
	place, known := s.places[ev.hash]
	if !known {
		place = s.newPlace(ev.hash)
		s.entries[place].key = append(s.entries[place].key[:0], key...)
	}
	e := &s.entries[place]
	e.count += n
	e.second += n
	if ev.denied {
		e.denied += n
	}
	if use := useOf(ev.spent, ev.capacity); !e.hasUse || use > useOf(e.spent, e.capacity) {
		e.rule, e.limit, e.spent, e.capacity, e.hasUse = ev.rule, ev.limit, ev.spent, ev.capacity, true
	}
	s.down(e.heapPlace)
}

// newPlace returns the place of a new entry, which may take over the entry with the lowest
// count.
func (s *sketch) newPlace(hash uint64) int32 {
	if len(s.entries) < cap(s.entries) {
		place := int32(len(s.entries))
		s.entries = append(s.entries, entry{hash: hash, heapPlace: place})
		s.heap = append(s.heap, place)
		s.places[hash] = place
		s.up(place)
		return place
	}
	place := s.heap[0]
	lowest := &s.entries[place]
	delete(s.places, lowest.hash)
	s.places[hash] = place
	*lowest = entry{hash: hash, count: lowest.count, error: lowest.count, key: lowest.key}
	return place
}

// countAt returns the count of an entry by its place in the heap.
func (s *sketch) countAt(heapPlace int32) float64 { return s.entries[s.heap[heapPlace]].count }

// up moves an entry towards the root of the heap.
func (s *sketch) up(heapPlace int32) {
	for heapPlace > 0 {
		parent := (heapPlace - 1) / 2
		if s.countAt(parent) <= s.countAt(heapPlace) {
			return
		}
		s.swap(heapPlace, parent)
		heapPlace = parent
	}
}

// down moves an entry away from the root of the heap.
func (s *sketch) down(heapPlace int32) {
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
	rateHalfLife  = 2  // of the past in rates
)

var rateKept = math.Exp2(-1.0 / rateHalfLife)

// advance ends a second, which has lasted for that many seconds. Counts decay, and rates
// take in the hits of the second. Forgotten entries leave the sketch.
func (s *sketch) advance(seconds float64) {
	if seconds <= 0 {
		return
	}
	kept := math.Exp2(-seconds / countHalfLife)
	s.total *= kept
	isForgotten := false
	for i := range s.entries {
		e := &s.entries[i]
		e.count *= kept
		e.error *= kept
		e.rate = e.rate*rateKept + e.second/seconds*(1-rateKept)
		e.deniedRate = e.deniedRate*rateKept + e.denied/seconds*(1-rateKept)
		e.second, e.denied, e.hasUse = 0, 0, false
		isForgotten = isForgotten || e.count < minCount
	}
	if isForgotten {
		s.forget()
	}
}

// minCount is the count below which an entry is forgotten. A single hit stays for six
// minutes.
const minCount = 1.0 / 64

// forget removes the entries with counts below minCount.
func (s *sketch) forget() {
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

// top returns up to n entries with the highest lower bounds that chosen accepts, the highest
// first. nil accepts all. The result shares no memory with s.
func (s *sketch) top(n int, chosen func(*entry) bool) []entry {
	byBound := func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.count-b.error, a.count-a.error), cmp.Compare(a.hash, b.hash))
	}
	best := make([]entry, 0, n+1)
	for i := range s.entries {
		e := &s.entries[i]
		if e.count <= e.error || len(best) == n && byBound(*e, best[n-1]) > 0 || chosen != nil && !chosen(e) {
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
