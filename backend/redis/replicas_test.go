package redis_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

func TestWaitsForReplicas(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	host, port, _ := strings.Cut(s.Addr, ":")
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	master, copied := s.Client(t), replica.Client(t)
	s.AwaitReplica(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, WaitReplicas: 1, Timeout: testTimeout}), perDay(t, 1000)
	for i := range 100 {
		key := fmt.Sprint("key", i)
		require.NoError(t, take(l, hit(key, lim, 1))[0].Err)
		require.NotEmpty(t, copied.Get(t.Context(), windowName("v2:fw86400:"+key, lim)).Val(), "answered before the replica had it")
	}
	require.NoError(t, master.ScriptFlush(t.Context()).Err())
	require.NoError(t, take(l, hit("key", lim, 1))[0].Err)

	replica.Kill()
	start := time.Now()
	got := take(l, hit("key", lim, 1))[0]
	require.NoError(t, got.Err, "what is charged is charged")
	assert.Equal(t, int64(998), got.Remaining)
	assert.Less(t, time.Since(start), testTimeout/2)
}
