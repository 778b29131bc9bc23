package redis

import (
	"cmp"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// lastCounts remembers the last answer of Redis about each counter, so that the fallback can continue from there. It is a
// table of buckets with four counters each. A full bucket forgets the counter that has spent the smallest part of its limit.
type lastCounts struct {
	mu      sync.Mutex
	buckets []countBucket // the length is a power of two; nil if nothing is remembered
}

type countBucket [4]lastCount

// lastCount is the last answer about a counter. In an empty lastCount, end is 0. Times are in microseconds since 1970.
type lastCount struct {
	hash  uint64 // the ttlTable.hash of the counter's name
	time  int64  // the time of the answer; for an algorithm with ResetsAtWindowEnd, the start of the window
	end   int64  // the time at which the counter has no spent hits
	spent uint32 // the spent hits; at most the capacity
	level uint32 // spent / capacity, in thousandths
}

// maxLastCounts is the number of counters in all lastCounts of one Redis. They take 2 MB.
const maxLastCounts = 1 << 16

func newCountBuckets(size int) []countBucket {
	return make([]countBucket, nextPowerOfTwo(size/len(countBucket{})))
}

func (t *lastCounts) remember(b *batch) {
	if t.buckets == nil {
		return
	}
	now := time.Now().UnixMicro()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range b.counters.list {
		h := c.hits[len(c.hits)-1]
		r, l := h.answer.Result, h.Limit
		if r.Err != nil || l.Capacity() == 0 {
			continue
		}
		answeredAt := cmp.Or(h.part.now, now) // by the clock of Redis, if a command of this part has told it
		spent := min(max(l.Spent(r.Result), 0), l.Capacity())
		newCount := lastCount{hash: c.hash, time: answeredAt, end: answeredAt + r.ResetAfter, spent: uint32(spent), level: uint32(spent * 1000 / l.Capacity())}
		if l.Algorithm.ResetsAtWindowEnd() {
			newCount.time = l.WindowStart(newCount.end)
		}
		t.set(newCount, answeredAt)
	}
}

// set stores newCount. If the bucket has a lastCount of the same counter, newCount replaces it. Otherwise newCount
// replaces a lastCount that has ended, or the lastCount with the lowest level. If newCount itself has the lowest level,
// set does not store newCount. The caller holds t.mu.
func (t *lastCounts) set(newCount lastCount, now int64) {
	bucket := t.bucket(newCount.hash)
	lowestCount := &bucket[0]
	for i := range bucket {
		c := &bucket[i]
		if c.hash == newCount.hash {
			*c = newCount
			return
		}
		if c.end <= now {
			c.level, c.end = 0, 0
		}
		if c.level < lowestCount.level {
			lowestCount = c
		}
	}
	if lowestCount.end == 0 || lowestCount.level <= newCount.level {
		*lowestCount = newCount
	}
}

func (t *lastCounts) bucket(hash uint64) *countBucket {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

// take returns and forgets the lastCount of the counter with this hash. ok is false if there is no lastCount, or if it has ended.
func (t *lastCounts) take(hash uint64, now int64) (c lastCount, ok bool) {
	if t.buckets == nil {
		return c, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	bucket := t.bucket(hash)
	for i := range bucket {
		if bucket[i].hash == hash && bucket[i].end > now {
			c, bucket[i] = bucket[i], lastCount{}
			return c, true
		}
	}
	return c, false
}

// TakeLastCount returns and forgets the spent hits in the last answer of Redis about the counter of h. startTime is the
// time of the answer, or the start of the window for an algorithm with ResetsAtWindowEnd. ok is false if the table has no
// answer, or if the counter has no spent hits at now.
func (l *Limiter) TakeLastCount(now time.Time, h *backend.Hit) (spent int64, startTime time.Time, ok bool) {
	q := l.queues[l.ShardOf(h)]
	var space [maxNameBytes]byte
	name := q.keyspace.appendCounter(space[:0], h, now)
	c, ok := q.lastCounts.take(q.keysWithTTL.hash(name), now.UnixMicro())
	return int64(c.spent), time.UnixMicro(c.time), ok
}

func (k keyspace) appendCounter(b []byte, h *backend.Hit, now time.Time) []byte {
	b = k.append(b, h.Limit, h.Key)
	if h.Limit.Algorithm.CountsByWindow() {
		start, _ := h.Limit.WindowAt(now.UnixMicro())
		b = h.Limit.AppendWindow(b, start)
	}
	return b
}
