package redis_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestResetByPrefixResetsOnlyCountersWithThePrefix(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	testResetByPrefix(t, redis.Options{Main: redis.Server{URL: s.Addr}, KeyPrefix: "p[1]*:"})
}

func TestResetByPrefixSearchesAllMastersOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	testResetByPrefix(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, KeyPrefix: "p:"})
}

// testResetByPrefix checks which counters ResetPrefix resets.
func testResetByPrefix(t *testing.T, o redis.Options) {
	o.Timeout = testTimeout
	l, err := redis.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	longKey := strings.Repeat("x", 300)
	keys := []string{"shop|tenant=a", "shop|tenant=a|path=/@1", "shop|tenant=a|path=" + longKey, "shop|tenant=acme", "shop|tenant=b", "bank|tenant=a", "shop|tenant=" + longKey}
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("shop|user=%d", i))
	}
	limits := []*limit.Limit{
		newLimit(t, limit.Spec{Requests: 100, Unit: limit.Day, ChargeDenied: true}),
		newLimit(t, limit.Spec{Requests: 100, Unit: limit.Day, Algorithm: limit.TokenBucket}),
		newLimit(t, limit.Spec{Requests: 100, Unit: limit.Day, Algorithm: limit.SlidingLog}),
	}
	spend := func() {
		for _, key := range keys {
			for _, lim := range limits {
				require.NoError(t, take(l, hit(key, lim, 7))[0].Err)
			}
		}
	}
	spend()
	readSpentKeys := func() (found []string) {
		for _, key := range keys {
			for _, lim := range limits {
				r := take(l, hit(key, lim, 0))[0]
				require.NoError(t, r.Err)
				if r.Remaining < 100 {
					found = append(found, key)
					break
				}
			}
		}
		return found
	}
	keysWithoutPrefix := func(prefix string) (found []string) {
		for _, key := range keys {
			if key != prefix && !strings.HasPrefix(key, prefix+"|") {
				found = append(found, key)
			}
		}
		return found
	}
	tenant := backend.KeyPrefix{Start: "shop|tenant=a"}
	r, err := l.ResetPrefix(t.Context(), tenant, 100, true)
	require.NoError(t, err)
	assert.Equal(t, backend.PrefixReset{Counters: 9}, r)
	assert.Equal(t, keys, readSpentKeys(), "a dry run resets nothing")

	_, err = l.ResetPrefix(t.Context(), tenant, 8, false)
	require.ErrorIs(t, err, backend.ErrTooManyCounters)
	assert.Equal(t, keys, readSpentKeys(), "too many counters are not reset")

	r, err = l.ResetPrefix(t.Context(), tenant, 9, false)
	require.NoError(t, err)
	assert.Equal(t, 9, r.Counters)
	assert.Equal(t, keysWithoutPrefix("shop|tenant=a"), readSpentKeys())

	r, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop|tenant=" + longKey}, 9, false)
	require.NoError(t, err)
	assert.Equal(t, backend.PrefixReset{UnclearCounters: 3}, r, "a shortened name does not show the prefix")

	_, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop|", EndsAnywhere: true}, 1000, false)
	require.NoError(t, err)
	assert.Equal(t, []string{"bank|tenant=a"}, readSpentKeys())
	spend()
	assert.Equal(t, keys, readSpentKeys(), "reset counters count again")
}

func TestResetByPrefixNeedsTheRightToScan(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights)
	l, err := redis.New(redis.Options{Main: redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, KeyPrefix: "myprefix:", Timeout: testTimeout})
	require.NoError(t, err)
	defer l.Close()
	_, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop|"}, 10, true)
	assert.ErrorContains(t, err, "+scan")
	setUser(t, s.Client(t), rights+rulesFor(redis.RightOfPrefixes))
	_, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop|"}, 10, true)
	assert.NoError(t, err)

	require.NoError(t, take(l, hit("shop|a", perDay(t, 5), 1))[0].Err)
	setUser(t, s.Client(t), rights+rulesFor(redis.RightOfPrefixes)+" -del")
	_, err = l.ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop"}, 10, false)
	assert.ErrorContains(t, err, "delete keys of")
}
