package redis_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// slowConn is a connection whose round trips take at least slowTrip.
type slowConn struct{ net.Conn }

const slowTrip = 50 * time.Millisecond

func (c slowConn) Write(p []byte) (int, error) {
	time.Sleep(slowTrip)
	return c.Conn.Write(p)
}

func dialSlowly(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return slowConn{conn}, err
}

// The options allow far more batches in flight than the pool has connections. If batches waited for
// connections, most batches would wait longer than the timeout.
func TestSmallPoolIsNoFailureOfRedis(t *testing.T) {
	t.Parallel()
	singleServer := redistest.Start(t)
	cluster := redistest.StartCluster(t, 1, false)
	for name, o := range map[string]redis.Options{
		"single":  {Main: redis.Server{URL: singleServer.Addr, PoolSize: 1}, MaxInflightBatches: 40, MaxBatchSize: 1},
		"cluster": {Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL(), PoolSize: 1}, Partitions: 40, MaxBatchSize: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Timeout, o.Dial = 20*slowTrip, dialSlowly
			l, lim := open(t, o), perDay(t, 100)
			awaitRecovery(t, l, lim)
			var answeredHits atomic.Int64
			var callers sync.WaitGroup
			for i := range 60 {
				callers.Go(func() {
					for range 2 {
						switch err := take(l, hit(fmt.Sprint("key", i), lim, 1))[0].Err; {
						case err == nil:
							answeredHits.Add(1)
						case !backend.IsNotSent(err) && backend.ReasonOf(err) != backend.ReasonOverload:
							assert.NoError(t, err, "this error would open the breaker")
						}
					}
				})
			}
			callers.Wait()
			assert.Greater(t, answeredHits.Load(), int64(10))
		})
	}
}
