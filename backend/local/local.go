// Package local is a backend.Limiter in the memory of this process. It is exact, and its
// memory is bounded for any number of keys.
//
// A counter is stored under a 128-bit fingerprint of its name. The counters are spread over
// shards, and each shard is a hash table behind a mutex. If the memory budget is used up, a
// shard evicts an expired counter, or else a counter with little spent. Hits that are
// forgotten in this way can be admitted beyond their limit.
package local

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
)

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 1_000_000

// The number of shards. There are so many that two cores rarely use the same shard. Each
// shard is so large that random keys fill all shards evenly, and so small that growing or
// sweeping a shard takes less than a millisecond.
const (
	defaultShards   = 256
	minKeysPerShard = 256
	maxKeysPerShard = 4096
	maxShards       = 1 << 14
)

// Options of a Limiter. The zero value means the defaults.
type Options struct {
	// MaxKeys bounds the counters; default DefaultMaxKeys. A counter takes about 80
	// bytes, whatever the length of its key. Four log entries of a sliding_log counter
	// weigh as much as a key. The bound is split evenly over shards, so a shard may
	// evict keys while a few percent of the bound are free.
	MaxKeys int

	// AllOrNone charges the all-or-none hits of a Take together: if one is denied, none
	// is charged, even if its limit charges denied hits. Each hit is answered as if it
	// were alone, with what remains for it without the charges.
	AllOrNone bool
}

// Limiter is a backend.Limiter in this process. It never answers with an error, and waits
// only for mutexes.
type Limiter struct {
	seeds     fingerprint.Seeds
	shards    []shard
	budget    memoryBudget
	resets    resetList
	allOrNone bool
	swept     atomic.Uint64 // calls of Sweep
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns an empty Limiter. The caller should let Run free expired counters.
func New(o Options) *Limiter {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	n := shardsFor(o.MaxKeys)
	l := &Limiter{
		seeds:     fingerprint.NewSeeds(),
		shards:    make([]shard, n),
		budget:    memoryBudget{maxKeys: int64(o.MaxKeys), shards: int64(n)},
		allOrNone: o.AllOrNone,
	}
	for i := range l.shards {
		l.shards[i].budget = &l.budget
	}
	return l
}

// shardsFor returns the number of shards, a power of two.
func shardsFor(maxKeys int) int {
	n := defaultShards
	for n > 1 && maxKeys/n < minKeysPerShard {
		n /= 2
	}
	for n < maxShards && maxKeys/n > maxKeysPerShard {
		n *= 2
	}
	return n
}

// Take implements backend.Limiter.
func (l *Limiter) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	micros := now.UnixMicro()
	l.applyResets(hits)
	if l.allOrNone {
		l.takeAllOrNone(micros, hits, results)
		return
	}
	for i := range hits {
		h := &hits[i]
		id := l.seeds.ID(h.Key, h.Limit.Tag())
		results[i] = backend.Result{Result: l.shardOf(id).lockAndTake(id, h, micros)}
	}
}

// Keys returns the number of counters, including expired counters that are not swept yet.
func (l *Limiter) Keys() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += s.size
		s.mu.Unlock()
	}
	return n
}

// Bytes returns the memory of the counters. The memory of logs is an estimate.
func (l *Limiter) Bytes() int64 {
	n := int64(len(l.shards)) * int64(unsafe.Sizeof(shard{}))
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += s.bytes()
		s.mu.Unlock()
	}
	return n + l.budget.logs.Load()*entriesPerKey*bytesPerLogEntry
}

// bytesPerLogEntry is the memory of a log entry with its share of the log's spare capacity.
const bytesPerLogEntry = 32

// Evictions returns how many counters were evicted before they had expired. If the number
// grows, MaxKeys is too small for the traffic.
func (l *Limiter) Evictions() int64 { return l.budget.evictions.Load() }

func (l *Limiter) shardOf(id fingerprint.ID) *shard { return &l.shards[l.shardIndex(id)] }

func (l *Limiter) shardIndex(id fingerprint.ID) int { return int(id.Hi) & (len(l.shards) - 1) }
