package live

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/descriptors"
)

// sketch finds the keys with the highest counts of the last minutes in bounded memory. It uses the space-saving
// algorithm: in a full sketch, a new key takes the place and the count of the key with the lowest count. So a
// count can be too high, and a key can be missing if its count is below total / maxKeys. All counts decay with time,
// so that old hits count less than new hits.
type sketch struct {
	maxKeys int
	entries map[uint64]*entry // the key is the hash
	heap    entryHeap
	total   float64 // the sum of all counts, also of keys that have left the sketch
	clock   stepClock
}

type entry struct {
	hash             uint64
	count, overcount float64 // the real count of the key is from count - overcount to count
	heapIndex        int     // the index of the entry in the heap

	newHits      keyHits // hits since the last advance
	stepHits     keyHits // earlier hits in the current step of clock
	lastStepHits keyHits // hits in the step before

	key   []byte // has at most maxKeyBytes; the rest is cut off
	rule  *descriptors.Rule
	limit *descriptors.RateLimit

	isDomainUnknown bool // the key has no rule, because its domain has no limits
	isShadow        bool // the last denied hits passed because of shadow mode

	// spent and capacity are the counts of limit at the hit with the highest use since the last
	// advance. If the key had no hit since then, hasUse is false, and spent and capacity are older.
	spent    int64
	capacity int64 // 0 if spent is unknown
	hasUse   bool

	denials denials // is set only in the sketch of denied keys
}

// denials has Unix times in microseconds: the first and the last denial since the key became limited, and the time at
// which denied hits pass again.
type denials struct{ firstTime, lastTime, retryTime int64 }

const (
	neverPasses   = math.MaxInt64 // the retryTime of hits that exceed the capacity
	limitedMicros = 10_000_000    // a key stays limited for at least 10 seconds after a denial
)

// areActive reports whether the key is limited at now.
func (d denials) areActive(now int64) bool {
	return d.firstTime != 0 && (now < d.lastTime+limitedMicros || now < d.retryTime && d.retryTime != neverPasses)
}

// recordAnswer records the answer to hits at now. If retryTime is 0, the hits were admitted, so denied hits pass now as well.
// Otherwise the hits were denied, and they pass at retryTime.
func (d *denials) recordAnswer(now, retryTime int64) {
	switch {
	case retryTime == 0:
		d.retryTime = min(d.retryTime, now)
	case d.areActive(now):
		d.lastTime, d.retryTime = now, retryTime
	default:
		*d = denials{firstTime: now, lastTime: now, retryTime: retryTime}
	}
}

// keyHits are hits on a key. Denied hits are also in total. counted is the growth of the count.
type keyHits struct{ total, denied, counted float32 }

const maxKeyBytes = 400 // a sketch cuts longer keys

// entryHeap has the entry with the lowest count first. It implements heap.Interface.
type entryHeap []*entry

func (h entryHeap) Len() int           { return len(h) }
func (h entryHeap) Less(i, j int) bool { return h[i].count < h[j].count }

func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}

func (h *entryHeap) Push(e any) {
	e.(*entry).heapIndex = len(*h)
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

// add adds n to the count of a key, and the hits of event to the hits of the key. The counts rank the keys. If n is 0, add
// ignores a key that is not in s.
func (s *sketch) add(event *event, key []byte, n float64) {
	entry := s.entries[event.hash]
	if entry == nil {
		if n == 0 {
			return
		}
		entry = s.newEntry(event.hash, key)
	}
	s.total += n
	entry.count += n
	heap.Fix(&s.heap, entry.heapIndex)
	entry.newHits.total += float32(event.hits)
	entry.newHits.denied += float32(event.deniedHits)
	entry.newHits.counted += float32(n)
	if event.deniedHits > 0 {
		entry.isShadow = event.isShadow
	}
	entry.denials.recordAnswer(event.time, event.retryTime)
	if use := useOf(event.spent, event.capacity); !entry.hasUse || use > useOf(entry.spent, entry.capacity) {
		entry.rule, entry.limit, entry.isDomainUnknown, entry.spent, entry.capacity, entry.hasUse = event.rule, event.limit, event.isDomainUnknown, event.spent, event.capacity, true
	}
}

// newEntry adds an entry for a new key. In a full sketch, the new entry replaces the entry with the lowest count.
func (s *sketch) newEntry(hash uint64, key []byte) *entry {
	var createdEntry *entry
	if len(s.heap) < s.maxKeys {
		createdEntry = &entry{hash: hash, key: slices.Clone(key)}
		heap.Push(&s.heap, createdEntry)
	} else {
		createdEntry = s.heap[0]
		delete(s.entries, createdEntry.hash)
		*createdEntry = entry{hash: hash, key: append(createdEntry.key[:0], key...), count: createdEntry.count, overcount: createdEntry.count}
	}
	s.entries[hash] = createdEntry
	return createdEntry
}

const countHalfLife = 60 // a count halves in 60 seconds

// minCount is the lowest count of a key in a sketch. A single hit keeps its key for six minutes: 1/64 is six halvings.
const minCount = 1.0 / 64

// advance moves the clock forward by seconds: counts decay, and new hits become hits of the step in progress. advance
// removes the keys whose count falls below minCount.
func (s *sketch) advance(seconds float64) {
	if seconds <= 0 {
		return
	}
	decay := math.Exp2(-seconds / countHalfLife)
	s.total *= decay
	endsStep := s.clock.advance(seconds)
	for _, entry := range s.heap {
		entry.stepHits.total += entry.newHits.total
		entry.stepHits.denied += entry.newHits.denied
		entry.stepHits.counted += entry.newHits.counted
		if endsStep {
			entry.lastStepHits, entry.stepHits = entry.stepHits, keyHits{}
		}
		entry.newHits, entry.hasUse = keyHits{}, false
		entry.count *= decay
		entry.overcount *= decay
	}
	for len(s.heap) > 0 && s.heap[0].count < minCount {
		delete(s.entries, heap.Pop(&s.heap).(*entry).hash)
	}
}

// rankedEntry is an entry of a list. Its rank is the lower bound of the real count, or floodRank if this is higher.
type rankedEntry struct {
	*entry
	rank             float64
	share            float64 // the count of the key divided by the sum of all counts
	rate, deniedRate float64 // hits per second in the last five seconds
}

// topEntries returns the n entries with the highest ranks, the highest first. If accept is not nil, topEntries returns only
// entries for which accept returns true. The result is a copy.
func (s *sketch) topEntries(n int, accept func(*entry) bool) []rankedEntry {
	var entries []rankedEntry
	for _, e := range s.heap {
		if lowerBound := e.count - e.overcount; lowerBound > 0 && (accept == nil || accept(e)) {
			entries = append(entries, rankedEntry{entry: e, rank: max(lowerBound, s.floodRank(e)), share: lowerBound / s.total})
		}
	}
	slices.SortFunc(entries, func(a, b rankedEntry) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.hash, b.hash))
	})
	entries = entries[:min(len(entries), n)]
	for i := range entries {
		e := &entries[i]
		e.rate = s.clock.ratePerSecond(float64(e.stepHits.total), float64(e.lastStepHits.total))
		e.deniedRate = s.clock.ratePerSecond(float64(e.stepHits.denied), float64(e.lastStepHits.denied))
		copiedEntry := *e.entry
		copiedEntry.key = slices.Clone(e.key)
		e.entry = &copiedEntry
	}
	return entries
}

// floodRank returns the hits of 45 seconds at the current rate of e. In the first seconds of a flood, this number is far
// above the count. At a steady rate, the count is higher.
func (s *sketch) floodRank(e *entry) float64 {
	const seconds = 45
	if s.clock.elapsedSeconds+s.clock.lastStepSeconds == 0 {
		return 0 // the rate is unknown
	}
	return seconds * s.clock.ratePerSecond(float64(e.stepHits.counted), float64(e.lastStepHits.counted))
}
