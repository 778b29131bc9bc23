package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func openQuotas(t *testing.T, s redis.Server, prefix string) *redis.Quotas {
	t.Helper()
	q, err := redis.NewQuotas(s, prefix, testTimeout)
	require.NoError(t, err)
	t.Cleanup(func() { _ = q.Close() })
	return q
}

func TestRedisKeepsQuotas(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	s := redis.Server{URL: db.Addr}
	backendtest.RunQuotas(t, openQuotas(t, s, db.Prefix), openQuotas(t, s, db.Prefix))
	assert.Greater(t, db.RequireAllExpire(t), 600)
	assert.Contains(t, db.Keys(t), db.Prefix+"v1:quota_state:last")
	assert.Contains(t, db.Keys(t), db.Prefix+"v1:quota_mark")
}

func TestClusterKeepsQuotas(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	for _, s := range c.Masters {
		setUser(t, s.Client(t), rights+clusterRights)
	}
	s := redis.Server{Kind: redis.Cluster, URL: c.URL(), Auth: "rls:secret-1"}
	backendtest.RunQuotas(t, openQuotas(t, s, "myprefix:"), openQuotas(t, s, "myprefix:"))
	for _, master := range c.Masters {
		assert.Greater(t, redistest.RequireAllExpire(t, master), 100, "each master has states and marks")
	}
}

// updateState sets a state, and returns the arguments of Apply.
func updateState(t *testing.T, q *redis.Quotas) (created, now int64, oldState string, err error) {
	change := &backend.QuotaChange{Key: []byte("shop|a=b")}
	change.Apply = func(state []byte, storeCreated, storeNow int64) ([]byte, time.Duration) {
		created, now, oldState = storeCreated, storeNow, string(state)
		return []byte("state"), time.Minute
	}
	q.Update(t.Context(), []*backend.QuotaChange{change})
	return created, now, oldState, change.Err
}

func TestQuotasNoticeLostDataAndOutages(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	setUser(t, s.Client(t), rights)
	q := openQuotas(t, redis.Server{URL: s.Addr, Auth: "rls:secret-1"}, "myprefix:")
	_, firstNow, oldState, err := updateState(t, q)
	require.NoError(t, err)
	assert.Empty(t, oldState)
	created, _, oldState, err := updateState(t, q)
	require.NoError(t, err)
	assert.Equal(t, firstNow, created)
	assert.Equal(t, "state", oldState)

	require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
	created, now, oldState, err := updateState(t, q)
	require.NoError(t, err)
	assert.Equal(t, now, created, "created is the time from which the store has lost no data")
	assert.Empty(t, oldState)

	s.Kill()
	_, _, _, err = updateState(t, q)
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "replied", "the error of the connection")
	s.Restart(t)
	setUser(t, s.Client(t), rights)
	require.Eventually(t, func() bool {
		created, now, _, err = updateState(t, q)
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	assert.Equal(t, now, created)
}

// Each Apply of the change runs after another replica has changed the quota, if conflicts are left.
func TestChangeOfAQuotaIsTriedAgainAfterAConflict(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	replica, otherReplica := openQuotas(t, redis.Server{URL: db.Addr}, db.Prefix), openQuotas(t, redis.Server{URL: db.Addr}, db.Prefix)
	for _, c := range []struct {
		otherChanges, wantConflicts int
		want                        string // a part of the error
	}{
		{0, 0, ""}, {1, 1, ""}, {4, 4, ""}, {5, 5, "other replicas have changed the quota at the same time"},
	} {
		tries := 0
		change := &backend.QuotaChange{Key: []byte("shop|a=b")}
		change.Apply = func([]byte, int64, int64) ([]byte, time.Duration) {
			tries++
			if tries <= c.otherChanges {
				other := &backend.QuotaChange{Key: change.Key}
				other.Apply = func([]byte, int64, int64) ([]byte, time.Duration) {
					return fmt.Append(nil, c.otherChanges, tries), time.Minute
				}
				otherReplica.Update(t.Context(), []*backend.QuotaChange{other})
				assert.NoError(t, other.Err)
			}
			return []byte("mine"), time.Minute
		}
		replica.Update(t.Context(), []*backend.QuotaChange{change})
		assert.Equal(t, c.wantConflicts, change.Conflicts)
		if c.want == "" {
			assert.NoError(t, change.Err)
			assert.Equal(t, "mine", db.Client(t).Get(t.Context(), db.Prefix+"v1:quota_state:shop|a=b").Val())
		} else {
			assert.ErrorContains(t, change.Err, c.want)
		}
	}
}

func TestMarksAreKeptWithoutQuotas(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, false)
	for _, s := range c.Masters {
		setUser(t, s.Client(t), rights+clusterRights)
	}
	q := openQuotas(t, redis.Server{Kind: redis.Cluster, URL: c.URL(), Auth: "rls:secret-1"}, "myprefix:")
	keepMarks(t, q)
	require.Eventually(t, func() bool {
		marks := 0
		for _, master := range c.Masters {
			expiring, lasting := redistest.Keys(t, master)
			assert.Empty(t, lasting)
			marks += len(expiring)
		}
		return marks == 64
	}, 10*time.Second, 20*time.Millisecond)
	timeBefore := time.Now().UnixMicro()
	created, now, _, err := updateState(t, q)
	require.NoError(t, err)
	assert.LessOrEqual(t, created, timeBefore)
	assert.Greater(t, now, created)
}

// keepMarks runs q.KeepMarks until the test ends.
func keepMarks(t *testing.T, q *redis.Quotas) {
	ctx, cancel := context.WithCancel(context.Background())
	var worker sync.WaitGroup
	worker.Go(func() { q.KeepMarks(ctx) })
	t.Cleanup(func() {
		cancel()
		worker.Wait()
	})
}

func TestMarksAreWrittenAfterRedisHasComeBack(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Kill()
	q := openQuotas(t, redis.Server{URL: s.Addr}, "")
	keepMarks(t, q)
	s.Restart(t)
	polltest.Until(t, testTimeout, func() bool {
		expiring, _ := redistest.Keys(t, s)
		return len(expiring) == 1
	}, "the mark is written without a change of a quota")
}

func TestPrefixResetKeepsQuotas(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	s := redis.Server{URL: db.Addr}
	_, _, _, err := updateState(t, openQuotas(t, s, db.Prefix))
	require.NoError(t, err)
	reset, err := open(t, redis.Options{Main: s, KeyPrefix: db.Prefix, Timeout: testTimeout}).ResetPrefix(t.Context(), backend.KeyPrefix{Start: "shop|"}, 10, false)
	require.NoError(t, err)
	assert.Zero(t, reset.Counters)
	assert.Contains(t, db.Keys(t), db.Prefix+"v1:quota_state:shop|a=b")
}
