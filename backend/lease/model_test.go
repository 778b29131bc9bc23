package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

var epoch = time.Unix(1_795_000_000, 0)

// sharedCounters is a backend.Limiter that stands for Redis. It has its own clock, like Redis. A hit can say with
// Hit.WindowStart which fixed window it charges.
type sharedCounters struct {
	now                time.Time
	counts             map[string]int64        // the counts of windows; the key is a counterName
	buckets            map[string]*limit.State // the other counters; the key is the tag with the key of the hit
	trips              int                     // the number of Takes
	err                error
	chargesBeforeError bool // a Take charges its hits before it fails
}

func newSharedCounters() *sharedCounters {
	return &sharedCounters{now: epoch, counts: map[string]int64{}, buckets: map[string]*limit.State{}}
}

var errDown = fmt.Errorf("down: %w", backend.ErrUnavailable)

// Take implements backend.Limiter.
func (c *sharedCounters) Take(ctx context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
	c.trips++
	for i := range hits {
		if c.err != nil && !c.chargesBeforeError || ctx.Err() != nil {
			results[i] = backend.Result{Err: errors.Join(c.err, ctx.Err())}
			continue
		}
		results[i] = c.take(&hits[i])
		if c.err != nil {
			results[i] = backend.Result{Err: c.err}
		}
	}
}

func (c *sharedCounters) take(h *backend.Hit) backend.Result {
	now := c.now.UnixMicro()
	if !h.Limit.Algorithm.CountsByWindow() {
		name := h.Limit.Tag() + string(h.Key)
		if c.buckets[name] == nil {
			c.buckets[name] = &limit.State{}
		}
		return backend.Result{Source: backend.SourceRedis, Result: h.Limit.Take(c.buckets[name], now, h.N)}
	}
	window := now - now%h.Limit.Period()
	if h.WindowStart != 0 {
		window = h.WindowStart
	}
	name := counterName(h, window)
	r := backend.Result{Source: backend.SourceRedis, WindowStart: window}
	c.counts[name], r.Result = h.Limit.CountHits(c.counts[name], h.N, max(window+h.Limit.Period()-now, 1), h.Limit.ChargeDenied)
	return r
}

func counterName(h *backend.Hit, window int64) string {
	return fmt.Sprintf("%s:%s@%d", h.Limit.Tag(), h.Key, window)
}

// count returns the count of the window that contains c.now.
func (c *sharedCounters) count(lim *limit.Limit, key string) int64 {
	now := c.now.UnixMicro()
	return c.counts[counterName(&backend.Hit{Limit: lim, Key: []byte(key)}, now-now%lim.Period())]
}

// replica is a Limiter whose background functions run when the test calls runBackground.
type replica struct {
	*Limiter
	background []func()
}

func newReplica(c *sharedCounters) *replica {
	r := &replica{Limiter: New(Options{Next: backend.Counters{Limiter: c}, Source: c})}
	r.createdAt = epoch.Add(-time.Hour) // so that the times of the lease and of sharedCounters differ
	r.spawn = func(f func()) { r.background = append(r.background, f) }
	return r
}

// runBackground runs all background functions, and also the functions that they add.
func (r *replica) runBackground() {
	for len(r.background) > 0 {
		f := r.background[0]
		r.background = r.background[1:]
		f()
	}
}

// takeHits takes n hits and returns the answer.
func (r *replica) takeHits(c *sharedCounters, lim *limit.Limit, n int64) backend.Result {
	results := make([]backend.Result, 1)
	r.Take(context.Background(), c.now, []backend.Hit{{Key: []byte("k"), Limit: lim, N: n}}, results)
	return results[0]
}
