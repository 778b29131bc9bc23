package redis

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Shards returns the number of shards. A shard is a set of counters that fail together:
// a partition of the main Redis, or of the Redis for limits per second.
func (l *Limiter) Shards() int {
	n := 0
	for _, p := range l.pools() {
		n += len(p.queues)
	}
	return n
}

// ShardOf returns the shard of h, from 0.
func (l *Limiter) ShardOf(h *backend.Hit) int {
	p := l.poolOf(h.Limit)
	shard := p.partition(h.Key)
	if p != l.main {
		shard += len(l.main.queues)
	}
	return shard
}

// probeKey is the key that Probe charges in each shard.
const probeKey = "rls:probe"

// Probe charges a counter of its own in a shard. It returns nil if Redis charges the counter
// within the timeout.
func (l *Limiter) Probe(ctx context.Context, shard int) error {
	p := l.main
	if shard >= len(p.queues) {
		p, shard = l.perSecond, shard-len(p.queues)
	}
	now := time.Now()
	r := l.newRequest(now, now, l.options.Timeout)
	h := backend.Probe(probeKey)
	r.addTo(p, shard, l, 0, &h, h.N)
	r.send()
	if err := r.wait(ctx); err != nil {
		r.cancel(l)
		return err
	}
	err := r.calls[0].answers[0].Err
	l.recycle(r)
	return err
}
