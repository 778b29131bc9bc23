package redis

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// probes charges a counter of this process in each shard. The counter never falls, unless
// Redis has lost it or the day has ended.
type probes struct {
	hit    backend.Hit
	shards []probedShard
}

type probedShard struct {
	count  atomic.Int64 // the count after the last successful probe; 0 before the first
	isKept atomic.Bool  // see Limiter.KeepsCounters
}

func newProbes(shards int) *probes {
	l, err := limit.New(limit.Spec{Requests: math.MaxUint32, Unit: limit.Day, ChargeDenied: true})
	if err != nil {
		panic(err) // the Spec is constant and valid
	}
	id := make([]byte, 8)
	_, _ = rand.Read(id) // never fails
	return &probes{
		hit:    backend.Hit{Key: []byte("rls:probe:" + hex.EncodeToString(id)), Limit: l, N: 1, Shadow: true},
		shards: make([]probedShard, shards),
	}
}

// maxProbeTime bounds a probe. With a long timeout, a probe of a Redis that hangs would keep
// the hits of calls in the queue.
const maxProbeTime = time.Second

// Probe charges a counter of its own in a shard, because Redis may be able to read and unable
// to write. Probe returns nil if Redis charges the counter within the timeout and within a second.
// With AutoTimeout, Probe waits for up to the largest timeout, and then sets the timeout to fit the
// round trip.
func (l *Limiter) Probe(ctx context.Context, shard int) error {
	now := time.Now()
	r := l.newRequest(now, now, min(l.options.Timeout, maxProbeTime))
	r.add(l.queues[shard], 0, &l.probes.hit, l.probes.hit.N)
	r.send()
	if err := r.wait(ctx); err != nil {
		r.abandon(l)
		return err
	}
	result := r.calls[0].hits[0].answer.Result
	l.recycle(r)
	if result.Err == nil {
		s := &l.probes.shards[shard]
		count := l.probes.hit.Limit.Spent(result.Result)
		previous := s.count.Swap(count)
		s.isKept.Store(previous > 0 && count > previous)
		l.fitTimeout(ctx, l.queues[shard], time.Since(now))
	}
	return result.Err
}

// KeepsCounters reports whether the shard has certainly kept its counters between the last two
// successful probes. It is false if Redis has restarted without its data. It is also false after the
// first probe of a day and of the process, because there is no count to compare with.
func (l *Limiter) KeepsCounters(shard int) bool { return l.probes.shards[shard].isKept.Load() }
