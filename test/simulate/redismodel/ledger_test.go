package redismodel_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
)

// The model sells hits to regions as Redis does. The windows have a length of a year, so the few microseconds between the
// two orders change nothing.
func TestModelSellsLikeRedis(t *testing.T) {
	model := redismodel.New()
	t.Cleanup(model.Close)
	dialModel := func(context.Context, string, string) (net.Conn, error) {
		clientEnd, serverEnd := net.Pipe()
		go serve(serverEnd, model)
		return clientEnd, nil
	}
	var ledgers []redis.Ledger
	for _, options := range []redis.Options{
		{Main: redis.Server{URL: redistest.Start(t).Addr}, Timeout: 10 * time.Second},
		{Main: redis.Server{URL: "model:6379"}, Timeout: 10 * time.Second, Dial: dialModel},
	} {
		client, err := redis.New(options)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		ledgers = append(ledgers, redis.Ledger{Limiter: client})
	}
	rapid.Check(t, func(t *rapid.T) {
		spec := limit.Spec{Requests: 1000, Unit: limit.Year, Scope: limit.Global, Algorithm: rapid.SampledFrom([]limit.Algorithm{limit.FixedWindow, limit.SlidingWindow}).Draw(t, "algorithm")}
		l, err := limit.New(spec)
		require.NoError(t, err)
		share := l.RegionShare(limit.Regions{Count: 3, Floor: 0.1, Waste: 0.25})
		start, end := share.Purchases.WindowAt(time.Now().UnixMicro())
		order := backend.Order{Key: []byte("k"), Limit: l, Share: share}
		for _, ledger := range ledgers {
			for _, windowStart := range []int64{start, start - (end - start), end} {
				o := order
				o.WindowStart, o.WindowEnd = windowStart, windowStart+end-start
				require.NoError(t, ledger.Reset(t.Context(), &o))
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "orders") {
			o := order
			windows := rapid.Int64Range(-1, 1).Draw(t, "window")
			o.WindowStart, o.WindowEnd = start+windows*(end-start), end+windows*(end-start)
			o.Region = rapid.SampledFrom([]string{"eu", "us", "asia"}).Draw(t, "region")
			o.Want, o.Least = rapid.Int64Range(0, 400).Draw(t, "want"), rapid.Int64Range(0, 20).Draw(t, "least")
			o.Unused, o.Rate = rapid.Int64Range(0, 300).Draw(t, "unused"), float64(rapid.IntRange(1, 1000).Draw(t, "rate"))
			want, got := o, o
			ledgers[0].Buy(t.Context(), []*backend.Order{&want})
			ledgers[1].Buy(t.Context(), []*backend.Order{&got})
			require.NoError(t, got.Err)
			require.Equal(t, want, got)
		}
	})
}
