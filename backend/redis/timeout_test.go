package redis_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// slowNetwork is a network to a distant Redis. Its connections delay their writes.
type slowNetwork struct {
	roundTrip atomic.Int64 // nanoseconds
	nextDelay atomic.Int64 // nanoseconds; only the next write has this delay
}

type distantConn struct {
	net.Conn
	slowNetwork *slowNetwork
}

func (c distantConn) Write(p []byte) (int, error) {
	time.Sleep(time.Duration(c.slowNetwork.roundTrip.Load() + c.slowNetwork.nextDelay.Swap(0)))
	return c.Conn.Write(p)
}

func (n *slowNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	return distantConn{conn, n}, err
}

// openNearRedis returns a Limiter with AutoTimeout. It has measured only short round trips.
func openNearRedis(t *testing.T) (*redis.Limiter, *slowNetwork) {
	network := &slowNetwork{}
	l := open(t, redis.Options{Main: redis.Server{URL: redistest.Start(t).Addr}, AutoTimeout: true, Dial: network.dial})
	for range 4 {
		l.MeasureRoundTrip(t.Context())
	}
	require.Equal(t, 50*time.Millisecond, l.Timeout())
	return l, network
}

func TestTimeoutGrowsWithTheRoundTripOfAProbe(t *testing.T) {
	t.Parallel()
	l, network := openNearRedis(t)
	network.roundTrip.Store(int64(60 * time.Millisecond))
	require.NoError(t, l.Probe(t.Context(), 0))
	assert.GreaterOrEqual(t, l.Timeout(), 180*time.Millisecond)
	polltest.Until(t, 30*time.Second, func() bool { return take(l, hit("a", perDay(t, 9), 1))[0].Err == nil }, "a call has time for the round trip")

	network.roundTrip.Store(0)
	l.MeasureRoundTrip(t.Context())
	assert.Less(t, l.Timeout(), 180*time.Millisecond)
}

func TestOneSlowProbeDoesNotRaiseTheTimeout(t *testing.T) {
	t.Parallel()
	l, network := openNearRedis(t)
	network.nextDelay.Store(int64(100 * time.Millisecond))
	require.NoError(t, l.Probe(t.Context(), 0))
	assert.Less(t, l.Timeout(), 180*time.Millisecond)
}

// If some calls are in time, the breaker stays closed, and no probe adapts the timeout. Calls must adapt it.
func TestTimeoutGrowsWithTheRoundTripOfCalls(t *testing.T) {
	t.Parallel()
	l, network := openNearRedis(t)
	network.roundTrip.Store(int64(60 * time.Millisecond))
	l.MeasureRoundTrip(t.Context())
	require.Equal(t, 50*time.Millisecond, l.Timeout())
	for i := 0; i < 40 && l.Timeout() < 180*time.Millisecond; i++ {
		take(l, hit(fmt.Sprint(i), perDay(t, 9), 1))
	}
	assert.GreaterOrEqual(t, l.Timeout(), 180*time.Millisecond)
}
