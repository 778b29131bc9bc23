package redis

import (
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// lastCounts remembers the last answer of Redis about each counter, so that the fallback can continue from there. A full
// bucket forgets the counter with the lowest level.
type lastCounts struct {
	mu      sync.Mutex
	buckets []countBucket // the length is a power of two; nil if the table remembers nothing
}

type countBucket [4]lastCount

// lastCount is the last answer about a counter. In an empty lastCount, end is 0. Times are in microseconds since 1970.
type lastCount struct {
	hash  uint64 // the ttlTable.hash of the counter's name
	time  int64  // when the answer came; for an algorithm with ResetsAtOnce, the start of the window
	end   int64  // from this time on, the counter has nothing spent
	spent uint32 // hits; at most the capacity
	level uint32 // spent / capacity, in thousandths
}

// maxLastCounts is the number of counters in all tables of one Redis. The tables take 2 MB.
const maxLastCounts = 1 << 16

// newLastCounts returns the buckets of a table for at least size counters.
func newLastCounts(size int) []countBucket {
	return make([]countBucket, powerOfTwo(size/len(countBucket{})))
}

// remember keeps the answer to the last hit on each counter of b.
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
		if h.part.now != 0 {
			now = h.part.now
		}
		spent := min(max(l.Spent(r.Result), 0), l.Capacity())
		n := lastCount{hash: c.hash, time: now, end: now + r.ResetAfter, spent: uint32(spent), level: uint32(spent * 1000 / l.Capacity())}
		if l.Algorithm.ResetsAtOnce() {
			n.time = l.WindowStart(n.end)
		}
		t.set(n, now)
	}
}

// set keeps n. If the bucket has an earlier answer about the same counter, n replaces this answer. Otherwise n replaces
// an answer that has ended, or the answer with the lowest level. If n has the lowest level, set drops n. The caller
// holds t.mu.
func (t *lastCounts) set(n lastCount, now int64) {
	bucket := t.bucket(n.hash)
	lowestAnswer := &bucket[0]
	for i := range bucket {
		e := &bucket[i]
		if e.hash == n.hash {
			*e = n
			return
		}
		if e.end <= now {
			e.level, e.end = 0, 0
		}
		if e.level < lowestAnswer.level {
			lowestAnswer = e
		}
	}
	if lowestAnswer.end == 0 || lowestAnswer.level <= n.level {
		*lowestAnswer = n
	}
}

func (t *lastCounts) bucket(hash uint64) *countBucket {
	return &t.buckets[hash&uint64(len(t.buckets)-1)]
}

// take returns and forgets the answer about the counter with this hash. ok is false if the answer has ended at now.
func (t *lastCounts) take(hash uint64, now int64) (c lastCount, ok bool) {
	if t.buckets == nil {
		return c, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	bucket := t.bucket(hash)
	for i := range bucket {
		if e := &bucket[i]; e.hash == hash && e.end > now {
			c, *e = *e, lastCount{}
			return c, true
		}
	}
	return c, false
}

// TakeLastCount returns and forgets the last answer of Redis about the counter of h. spent is the count in the answer.
// since is the time of the answer, or the start of the window for an algorithm with ResetsAtOnce. ok is false without an
// answer, or if the window of the answer has ended at now.
func (l *Limiter) TakeLastCount(now time.Time, h *backend.Hit) (spent int64, since time.Time, ok bool) {
	q := l.queues[l.ShardOf(h)]
	var space [maxKey]byte
	name := q.keyspace.appendCounter(space[:0], h, now)
	c, ok := q.counts.take(q.keysWithTTL.hash(name), now.UnixMicro())
	return int64(c.spent), time.UnixMicro(c.time), ok
}

// appendCounter appends the name that the counter of h has at now.
func (k keyspace) appendCounter(b []byte, h *backend.Hit, now time.Time) []byte {
	b = k.append(b, h.Limit, h.Key)
	if h.Limit.Algorithm.CountsByWindow() {
		start, _ := h.Limit.WindowAt(now.UnixMicro())
		b = h.Limit.AppendWindow(b, start)
	}
	return b
}
