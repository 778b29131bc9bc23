// Package local is a backend.Limiter in the memory of this process: exact, and
// bounded however many keys come.
//
// A counter is kept under a 128-bit fingerprint of its name, in one of many
// shards, each a table behind a mutex. When there is no more room, a counter
// that has run out goes, else one with little spent: the hits that are forgotten
// with it are the hits that can then be admitted beyond its limit.
package local

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/fingerprint"
)

// DefaultMaxKeys is the bound where Options give none.
const DefaultMaxKeys = 1_000_000

// Shards are many enough that two cores rarely meet in one, yet each large
// enough that random keys fill all about evenly, and small enough that growing
// or sweeping one takes well under a millisecond.
const (
	usualShards  = 256
	smallestFill = 256
	largestFill  = 4096
	mostShards   = 1 << 14
)

// Options are what a Limiter can be told. The zero value is good.
type Options struct {
	// MaxKeys bounds the counters held: about 90 bytes each, whatever the
	// length of their keys. The log of a sliding_log counter takes room from
	// the same bound: four entries (hits at times of their own) weigh as much
	// as a key. The bound is split evenly over shards, so that keys can be
	// dropped when a few percent of it are still free. 0 or less means
	// DefaultMaxKeys.
	MaxKeys int

	// AllOrNone charges the hits of one Take in one step, or none: if one is
	// denied, no other is charged, and neither is it, even where its limit
	// charges denied hits. Only hits that bind (backend.Hit.AllOrNone) deny others
	// and are spared by others. Each is answered as if it were alone, with what
	// remains for it now that nothing is charged.
	AllOrNone bool
}

// Limiter is a backend.Limiter in this process. It never answers with an error,
// and never waits for more than a mutex.
type Limiter struct {
	seeds     fingerprint.Seeds
	shards    []shard
	room      room
	allOrNone bool
	swept     atomic.Uint64 // calls of Sweep
}

var _ backend.Limiter = (*Limiter)(nil)

// New returns an empty Limiter. Let Run go beside it, so that counters that have
// run out don't wait for others to need their room.
func New(o Options) *Limiter {
	if o.MaxKeys <= 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	n := shardsFor(o.MaxKeys)
	l := &Limiter{
		seeds:     fingerprint.NewSeeds(),
		shards:    make([]shard, n),
		room:      room{most: int64(o.MaxKeys), shards: int64(n)},
		allOrNone: o.AllOrNone,
	}
	for i := range l.shards {
		l.shards[i].room = &l.room
	}
	return l
}

// shardsFor is a power of two.
func shardsFor(maxKeys int) int {
	n := usualShards
	for n > 1 && maxKeys/n < smallestFill {
		n /= 2
	}
	for n < mostShards && maxKeys/n > largestFill {
		n *= 2
	}
	return n
}

// Take implements backend.Limiter.
func (l *Limiter) Take(_ context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	at := now.UnixMicro()
	if l.allOrNone {
		l.takeAllOrNone(at, hits, results)
		return
	}
	for i := range hits {
		h := &hits[i]
		id := l.seeds.Of(h.Key, h.Limit.Tag())
		results[i] = backend.Result{Result: l.shardOf(id).lockAndTake(id, h.Limit, at, h.N)}
	}
}

// Len is how many counters are held, those not swept yet among them.
func (l *Limiter) Len() int {
	n := 0
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		n += len(s.entries)
		s.mu.Unlock()
	}
	return n
}

// Dropped is how many counters were dropped for room so far though they had hits
// to remember. If it grows, MaxKeys is too small for the traffic.
func (l *Limiter) Dropped() int64 { return l.room.dropped.Load() }

func (l *Limiter) shardOf(id fingerprint.ID) *shard { return &l.shards[l.shardIndex(id)] }

func (l *Limiter) shardIndex(id fingerprint.ID) int { return int(id.Hi) & (len(l.shards) - 1) }
