package overrides_test

import (
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestEachNewSubscriptionReportsMissedResets(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	var reports atomic.Int64
	o := overrides.Options{
		Client: connect(t, redis.Server{URL: server.Addr}), Resync: noResync,
		OnMissedResets: func() { reports.Add(1) },
	}
	replica := startReplica(t, o)
	for n := range int64(3) {
		replica.await(func() bool { return reports.Load() == n+1 })
		awaitSubscriptions(t, "rls:resets", 1, client)
		_, err := client.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
			p.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
			p.Publish(t.Context(), "rls:resets", "shop|ip=1")
			return nil
		})
		require.NoError(t, err)
	}
}
