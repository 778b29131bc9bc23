package faults

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

// replica is one process of several that share a Redis.
type replica struct {
	*fallback.Limiter
	admitted atomic.Int64
	byReason [len(backend.Reasons) + 1]atomic.Int64
}

func startReplica(t *testing.T, o redis.Options) (*replica, *redis.Limiter) {
	client, err := redis.New(o)
	require.NoError(t, err)
	r := &replica{Limiter: fallback.New(fallback.Options{
		Primary: client, Secondary: local.New(local.Options{}), Ratio: ratio,
		Shards: client.Shards(), ShardOf: client.ShardOf, Probe: client.Probe,
		LastCount: client.TakeLastCount, Observer: &outageCounter{},
	})}
	t.Cleanup(func() { r.Close(); _ = client.Close() })
	return r, client
}

// call sends a hit on the first tight key.
func (r *replica) call() {
	hits, results := []backend.Hit{{Key: tightKey(0), Limit: tight, N: 1}}, make([]backend.Result, 1)
	r.Take(context.Background(), time.Now(), hits, results)
	r.byReason[results[0].Reason].Add(1)
	if results[0].Allowed {
		r.admitted.Add(1)
	}
}

// startCallers starts callers that pause after each call. The returned function stops them.
func (r *replica) startCallers(count int, pause time.Duration) (stop func()) {
	stopped := make(chan struct{})
	var running sync.WaitGroup
	for range count {
		running.Go(func() {
			for {
				r.call()
				select {
				case <-stopped:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	return func() { close(stopped); running.Wait() }
}

// maxOvershoot is how many hits beyond the limit a test allows: hits that the replicas admit
// in the short time before they know that the limit is spent.
const maxOvershoot = 60

// The share of the limit that a replica may admit without Redis is the same for one stall and
// for sixty stalls. The metrics know each hit beyond the limit.
func TestShortStallsDoNotAddUp(t *testing.T) {
	for name, newStall := range map[string]func(t *testing.T) (address string, begin, end func()){
		"frozen": func(t *testing.T) (string, func(), func()) {
			s := redistest.Start(t)
			return s.Addr, s.Pause, s.Resume
		},
		"delayed by the network": func(t *testing.T) (string, func(), func()) {
			s := redistest.Start(t)
			p := startProxy(t, "127.0.0.1:0", s.Addr)
			return p.Listen, func() { p.addToxic("latency", 1, `"latency": 60`) }, p.removeToxics
		},
	} {
		t.Run(name, func(t *testing.T) {
			const stallTime, pause = 60 * time.Millisecond, 60 * time.Millisecond
			stalls := 60
			if !*full {
				stalls = 20
			}
			address, begin, end := newStall(t)
			var replicas []*replica
			var stops []func()
			for range 3 {
				r, _ := startReplica(t, redis.Options{Main: single(address), Timeout: budget})
				replicas, stops = append(replicas, r), append(stops, r.startCallers(4, 10*time.Millisecond))
			}
			for range stalls {
				time.Sleep(pause)
				begin()
				time.Sleep(stallTime)
				end()
			}
			for _, stop := range stops {
				stop()
			}
			var admitted, late, overloaded, excess int64
			for _, r := range replicas {
				admitted += r.admitted.Load()
				late += r.byReason[backend.ReasonLate].Load()
				overloaded += r.byReason[backend.ReasonOverload].Load()
				excess += r.Status().MaxExcessHits
			}
			t.Logf("admitted %d of %d; most beyond the limit by the metrics %d; decisions: late %d, overload %d", admitted, tightMax, excess, late, overloaded)
			assert.Greater(t, late, int64(stalls), "the stalls make answers late")
			assert.LessOrEqual(t, admitted, tightMax+excess)
			assert.LessOrEqual(t, admitted, int64(tightMax+maxOvershoot), "one outage may admit %v more", 3*localShare)
		})
	}
}

// Hits without room in the queue are decided here, and Redis learns of them.
func TestFullQueueDoesNotAddUp(t *testing.T) {
	s := redistest.Start(t)
	r, _ := startReplica(t, redis.Options{Main: single(s.Addr), Timeout: budget, MaxQueueSize: 1})
	stop := r.startCallers(8, 0)
	time.Sleep(time.Second)
	stop()
	admitted, excess, overloaded := r.admitted.Load(), r.Status().MaxExcessHits, r.byReason[backend.ReasonOverload].Load()
	t.Logf("admitted %d of %d; most beyond the limit by the metrics %d; decisions by overload %d", admitted, tightMax, excess, overloaded)
	assert.Greater(t, overloaded, int64(tightMax), "the queue is full most of the time")
	assert.LessOrEqual(t, admitted, tightMax+excess)
	assert.LessOrEqual(t, admitted, int64(tightMax+localShare), "an outage may admit %v more", localShare)
}
