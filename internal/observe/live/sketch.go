package live

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
)

// sketch finds the keys with the highest counts of the last minutes in bounded memory, by the space-saving
// algorithm: in a full sketch, a new key takes the place and the count of the key with the lowest count. So a
// count can be too high, and a key can be missing if its count is below total / maxKeys. Old counts decay.
type sketch struct {
	maxKeys int
	entries map[uint64]*entry // by hash
	heap    entryHeap
	total   float64 // the sum of all counts, also of keys that have left the sketch
	clock   stepClock
}

type entry struct {
	hash             uint64
	count, overcount float64 // decayed; the real count is at least count - overcount
	heapPlace        int     // index in the heap

	newHits, hits, lastHits keyHits // since the last advance, in the step in progress before, and in the step before that

	key   []byte // cut after maxKeyBytes
	rule  *descriptors.Rule
	limit *descriptors.RateLimit

	isDomainUnknown bool // the key has no rule, because its domain has no limits

	// spent and capacity belong to limit. They have the highest use since the last advance.
	// Without a hit since then, hasUse is false, and the old values stay.
	spent    int64
	capacity int64 // 0 if spent is unknown
	hasUse   bool

	denials denials // in the sketch of denied keys
}

// denials describes the last denials of a key. The times are Unix times in microseconds.
type denials struct{ since, last, passesAt int64 }

const (
	neverPasses  = math.MaxInt64 // the passesAt of hits that exceed the capacity
	limitedPause = 10_000_000    // a key stays limited for this time after a denial, in microseconds
)

// areActive reports whether the key is still limited at now.
func (d denials) areActive(now int64) bool {
	return d.since != 0 && (now < d.last+limitedPause || now < d.passesAt && d.passesAt != neverPasses)
}

// add adds a denial at now, after which the hits pass at passesAt. A passesAt of 0 means that the hits have passed.
func (d *denials) add(now, passesAt int64) {
	switch {
	case passesAt == 0:
		d.passesAt = min(d.passesAt, now)
	case d.areActive(now):
		d.last, d.passesAt = now, passesAt
	default:
		*d = denials{since: now, last: now, passesAt: passesAt}
	}
}

// keyHits are hits on a key. Denied hits are also in all.
type keyHits struct{ all, denied float32 }

const maxKeyBytes = 400 // the part of a key that a sketch keeps

// entryHeap has the entry with the lowest count first. It implements heap.Interface.
type entryHeap []*entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].count < h[j].count }

func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapPlace, h[j].heapPlace = i, j
}

func (h *entryHeap) Push(e any) {
	e.(*entry).heapPlace = len(*h)
	*h = append(*h, e.(*entry))
}

func (h *entryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = slices.Delete(*h, last, last+1)
	return e
}

func newSketch(maxKeys int) *sketch {
	return &sketch{maxKeys: maxKeys, entries: make(map[uint64]*entry, maxKeys), heap: make(entryHeap, 0, maxKeys)}
}

// add adds n to the count of a key, and the hits of ev to its hits. If n is 0, a new key stays out.
func (s *sketch) add(ev *event, key []byte, n float64) {
	e := s.entries[ev.hash]
	if e == nil {
		if n == 0 {
			return
		}
		e = s.newEntry(ev.hash, key)
	}
	s.total += n
	e.count += n
	heap.Fix(&s.heap, e.heapPlace)
	e.newHits.all += float32(ev.hits)
	e.newHits.denied += float32(ev.denied)
	e.denials.add(ev.time, ev.passesAt)
	if use := useOf(ev.spent, ev.capacity); !e.hasUse || use > useOf(e.spent, e.capacity) {
		e.rule, e.limit, e.isDomainUnknown, e.spent, e.capacity, e.hasUse = ev.rule, ev.limit, ev.isDomainUnknown, ev.spent, ev.capacity, true
	}
}

// newEntry returns an entry for a new key, in a full sketch in the place of the entry with the lowest count.
func (s *sketch) newEntry(hash uint64, key []byte) *entry {
	var e *entry
	if len(s.heap) < s.maxKeys {
		e = &entry{hash: hash, key: slices.Clone(key)}
		heap.Push(&s.heap, e)
	} else {
		e = s.heap[0]
		delete(s.entries, e.hash)
		*e = entry{hash: hash, key: append(e.key[:0], key...), count: e.count, overcount: e.count}
	}
	s.entries[hash] = e
	return e
}

const countHalfLife = 60 // of counts, in seconds

const minCount = 1.0 / 64 // a lower count is forgotten; a single hit stays for six minutes

// advance lets counts decay for seconds, adds the new hits to their step, and removes forgotten keys.
func (s *sketch) advance(seconds float64) {
	if seconds <= 0 {
		return
	}
	decay := math.Exp2(-seconds / countHalfLife)
	s.total *= decay
	endsStep := s.clock.advance(seconds)
	for _, e := range s.heap {
		e.hits.all += e.newHits.all
		e.hits.denied += e.newHits.denied
		if endsStep {
			e.lastHits, e.hits = e.hits, keyHits{}
		}
		e.newHits, e.hasUse = keyHits{}, false
		e.count *= decay
		e.overcount *= decay
	}
	for len(s.heap) > 0 && s.heap[0].count < minCount {
		delete(s.entries, heap.Pop(&s.heap).(*entry).hash)
	}
}

type rankedEntry struct {
	entry
	share            float64 // of the counts of the last minutes
	rate, deniedRate float64 // hits per second at this moment
}

// top returns up to n entries that accept, if there is one, reports true for. Those with the highest lower bounds
// of their counts come first. The result shares no memory with s.
func (s *sketch) top(n int, accept func(*entry) bool) []rankedEntry {
	bound := func(e *entry) float64 { return e.count - e.overcount }
	var accepted []*entry
	for _, e := range s.heap {
		if bound(e) > 0 && (accept == nil || accept(e)) {
			accepted = append(accepted, e)
		}
	}
	slices.SortFunc(accepted, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(bound(b), bound(a)), cmp.Compare(a.hash, b.hash))
	})
	top := make([]rankedEntry, min(len(accepted), n))
	for i := range top {
		e := accepted[i]
		top[i] = rankedEntry{
			entry: *e, share: bound(e) / s.total,
			rate:       s.clock.perSecond(float64(e.hits.all), float64(e.lastHits.all)),
			deniedRate: s.clock.perSecond(float64(e.hits.denied), float64(e.lastHits.denied)),
		}
		top[i].key = slices.Clone(e.key)
	}
	return top
}
