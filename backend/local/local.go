// Package local is a backend.Limiter in the memory of this process. It is exact, and its memory is bounded for any
// number of keys.
//
// A counter is identified by the 128-bit fingerprint of its name. A stripe is a part of the counters: a hash table behind
// a mutex. If the counters reach the memory bound, a stripe evicts an expired counter, or a counter with few spent hits.
// After an eviction, the limit can admit the spent hits of this counter again.
package local

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/limit"
)

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 1_000_000

// The bounds on the number of stripes. Random keys fill stripes evenly only if each stripe has many keys. With too many
// keys, the growth or the sweep of a stripe would take longer than a millisecond.
const (
	defaultStripes   = 256
	minKeysPerStripe = 256
	maxKeysPerStripe = 4096
	maxStripes       = 1 << 14
)

// Options are the settings of a Limiter. A zero value means the default.
type Options struct {
	// MaxKeys is the maximum number of counters; default DefaultMaxKeys. A counter takes about 80 bytes. Four log
	// entries of a sliding_log counter count as one counter. Each stripe may have an equal number of counters.
	MaxKeys int
}

// Limiter is a backend.Limiter in this process. It never answers with an error.
type Limiter struct {
	seeds   fingerprint.Seeds
	stripes []stripe
	memory  memoryBound
	resets  resetList     // the resets by prefix
	sweeps  atomic.Uint64 // the number of calls of Sweep
}

// New returns an empty Limiter. The caller should call Run, which frees expired counters.
func New(o Options) *Limiter {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	count := stripeCount(o.MaxKeys)
	l := &Limiter{
		seeds:   fingerprint.NewSeeds(),
		stripes: make([]stripe, count),
		memory:  memoryBound{maxKeys: int64(o.MaxKeys), stripeCount: int64(count)},
	}
	for i := range l.stripes {
		l.stripes[i].memory = &l.memory
	}
	return l
}

// stripeCount returns the number of stripes, a power of two.
func stripeCount(maxKeys int) int {
	count := defaultStripes
	for count > 1 && maxKeys/count < minKeysPerStripe {
		count /= 2
	}
	for count < maxStripes && maxKeys/count > maxKeysPerStripe {
		count *= 2
	}
	return count
}

// Take implements backend.Limiter.
func (l *Limiter) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	micros := now.UnixMicro()
	l.applyResets(hits)
	if backend.HasGroup(hits) {
		l.takeAllOrNone(micros, hits, results)
		return
	}
	for i := range hits {
		h := &hits[i]
		id := l.seeds.ID(h.Key, h.Limit.Tag())
		results[i] = backend.Result{Result: l.stripeOf(id).lockAndTake(id, h, micros)}
	}
}

// Keys returns the number of counters, including expired counters that are not swept yet.
func (l *Limiter) Keys() (n int) {
	l.forEachStripe(func(s *stripe) { n += s.size })
	return n
}

func (l *Limiter) forEachStripe(f func(*stripe)) {
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		f(s)
		s.mu.Unlock()
	}
}

// Bytes returns the memory of the counters. The memory of logs is an estimate.
func (l *Limiter) Bytes() int64 {
	bytes := int64(len(l.stripes)) * int64(unsafe.Sizeof(stripe{}))
	l.forEachStripe(func(s *stripe) { bytes += s.bytes() })
	return bytes + l.memory.logWeight.Load()*entriesPerKey*bytesPerLogEntry
}

// bytesPerLogEntry is the estimated memory of a log entry: 16 bytes, and as much unused capacity.
const bytesPerLogEntry = 32

// Evictions returns how many counters were evicted before they had expired.
func (l *Limiter) Evictions() int64 { return l.memory.evictions.Load() }

func (l *Limiter) stripeOf(id fingerprint.ID) *stripe { return &l.stripes[l.stripeIndex(id)] }

func (l *Limiter) stripeIndex(id fingerprint.ID) int { return int(id.Hi) & (len(l.stripes) - 1) }

// SpendAtLeast raises the spent hits of a counter to n. If n hits or more are spent, it changes nothing. n is at most
// the capacity of lim.
func (l *Limiter) SpendAtLeast(now time.Time, key []byte, lim *limit.Limit, n int64) {
	l.applyResets([]backend.Hit{{Key: key, Limit: lim}})
	id := l.seeds.ID(key, lim.Tag())
	s := l.stripeOf(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	micros := now.UnixMicro()
	if missingHits := n - lim.Spent(s.take(id, lim, counterChange{now: micros})); missingHits > 0 {
		s.take(id, lim, counterChange{now: micros, n: missingHits})
	}
}

// Run sweeps one stripe after the other until ctx ends. It sweeps each stripe once in each interval.
func (l *Limiter) Run(ctx context.Context, interval time.Duration) {
	for wait.Sleep(ctx, interval/time.Duration(len(l.stripes))) {
		l.Sweep(time.Now())
	}
}

// Sweep forgets the counters of the next stripe that have expired at now, and frees unused memory.
func (l *Limiter) Sweep(now time.Time) {
	s := &l.stripes[(l.sweeps.Add(1)-1)%uint64(len(l.stripes))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.UnixMicro())
}

func (s *stripe) sweep(now int64) {
	// The loop goes backwards, because forget moves the last entry to the index of the forgotten entry.
	for index := s.size - 1; index >= 0; index-- {
		if s.entryAt(index).expiry <= now {
			s.forget(index)
		}
	}
	for maxKeys := s.memory.keysPerStripe(); s.size > maxKeys; {
		s.evict(fingerprint.ID{}, now)
	}
	s.freeBlocks(0)
	if s.size == 0 {
		s.table = table{}
	} else if n := s.size + s.size/4; len(s.cells) > maxCellsPerEntry*(n+minSpareEntries) {
		s.resizeCells(n)
	}
}

// maxCellsPerEntry bounds the cells for each entry. If a table has more cells after a sweep, the sweep frees cells.
const maxCellsPerEntry = 6
