// Package local is a backend.Limiter in the memory of this process. It is exact, and its memory is bounded for any
// number of keys.
//
// A counter is stored under a 128-bit fingerprint of its name. The counters are spread over stripes, and each stripe
// is a hash table behind a mutex. If the memory bound is reached, a stripe evicts an expired counter, or a
// counter that has spent little. The limit of an evicted counter then admits its hits again.
package local

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 1_000_000

// The constants for the number of stripes. A stripe must have many keys, so that random keys fill all stripes evenly.
// But it must not have too many keys, so that its growth and its sweep each take less than a millisecond.
const (
	defaultStripes   = 256
	minKeysPerStripe = 256
	maxKeysPerStripe = 4096
	maxStripes       = 1 << 14
)

// Options are the settings of a Limiter. A zero value means the default.
type Options struct {
	// MaxKeys bounds the counters; default DefaultMaxKeys. A counter takes about 80 bytes. Four log entries of
	// a sliding_log counter count as one counter. Each stripe has an equal part of the bound.
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

var _ backend.Limiter = (*Limiter)(nil)

// New returns an empty Limiter. The caller should call Run, which frees expired counters.
func New(o Options) *Limiter {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	n := stripesFor(o.MaxKeys)
	l := &Limiter{
		seeds:   fingerprint.NewSeeds(),
		stripes: make([]stripe, n),
		memory:  memoryBound{maxKeys: int64(o.MaxKeys), stripes: int64(n)},
	}
	for i := range l.stripes {
		l.stripes[i].memory = &l.memory
	}
	return l
}

// stripesFor returns the number of stripes, a power of two.
func stripesFor(maxKeys int) int {
	n := defaultStripes
	for n > 1 && maxKeys/n < minKeysPerStripe {
		n /= 2
	}
	for n < maxStripes && maxKeys/n > maxKeysPerStripe {
		n *= 2
	}
	return n
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

// forEachStripe locks one stripe after the other, and calls f with it.
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
	n := int64(len(l.stripes)) * int64(unsafe.Sizeof(stripe{}))
	l.forEachStripe(func(s *stripe) { n += s.bytes() })
	return n + l.memory.logs.Load()*entriesPerKey*bytesPerLogEntry
}

// bytesPerLogEntry is the estimated memory of a log entry: 16 bytes, and as much unused capacity.
const bytesPerLogEntry = 32

// Evictions returns how many counters were evicted before they had expired.
func (l *Limiter) Evictions() int64 { return l.memory.evictions.Load() }

func (l *Limiter) stripeOf(id fingerprint.ID) *stripe { return &l.stripes[l.stripeIndex(id)] }

func (l *Limiter) stripeIndex(id fingerprint.ID) int { return int(id.Hi) & (len(l.stripes) - 1) }

// SpendAtLeast raises the spent hits of a counter to n, or changes nothing if more hits are spent. n is at most the
// capacity of lim.
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
	tick := time.NewTicker(max(interval/time.Duration(len(l.stripes)), 1))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			l.Sweep(now)
		}
	}
}

// Sweep forgets the counters of the next stripe that have expired at now, and frees unused memory.
func (l *Limiter) Sweep(now time.Time) {
	s := &l.stripes[(l.sweeps.Add(1)-1)%uint64(len(l.stripes))]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(now.UnixMicro())
}

// sweep is the Sweep of one stripe.
func (s *stripe) sweep(now int64) {
	// The order is backwards, because a removal moves the last entry to the place of the removed entry.
	for index := s.size - 1; index >= 0; index-- {
		if s.at(index).expiry <= now {
			s.forget(index)
		}
	}
	for maxKeys := s.memory.keysPerStripe(); s.size > maxKeys; {
		s.evict(fingerprint.ID{}, now)
	}
	s.freeBlocks(0)
	if s.size == 0 {
		s.table = table{}
	} else if n := s.size + s.size/4; len(s.cells) > 6*n+48 {
		s.resizeCells(n)
	}
}
