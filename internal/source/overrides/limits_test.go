package overrides_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

func TestVersionsOfLimitsAreKeptOnceForAllReplicas(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	newStore := func() *replica {
		return newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
	}
	add := func(store *replica, limit string) {
		v := changes.LimitsVersion{LoadedAt: time.Unix(1, 0).UTC(), Source: "file", Limits: map[string]string{"shop > tenant": limit}}
		require.NoError(t, store.AddLimitsVersion(t.Context(), v, nil))
	}
	firstStore, secondStore := newStore(), newStore()
	add(firstStore, "100 per minute")
	add(secondStore, "100 per minute")
	add(secondStore, "0 per minute")
	add(firstStore, "0 per minute")
	add(newStore(), "0 per minute") // after a restart
	versions, err := secondStore.LimitsVersions(t.Context())
	require.NoError(t, err)
	require.Len(t, versions, 2)
	assert.Equal(t, "0 per minute", versions[0].Limits["shop > tenant"])
	assert.Equal(t, "100 per minute", versions[1].Limits["shop > tenant"])

	add(firstStore, strings.Repeat("x", 300<<10))
	for i := range changes.MaxLimitsVersions {
		versions, err = firstStore.LimitsVersions(t.Context())
		require.NoError(t, err)
		if i == 0 {
			assert.Nil(t, versions[0].Limits, "a large version has no limits")
		}
		add(firstStore, fmt.Sprint(i))
	}
	versions, err = firstStore.LimitsVersions(t.Context())
	require.NoError(t, err)
	assert.Len(t, versions, changes.MaxLimitsVersions)
}

func TestChangeAfterALossOfRedisStoresTheOldVersionToo(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	store := newReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix})
	version := func(limit string) changes.LimitsVersion {
		return changes.LimitsVersion{LoadedAt: time.Unix(1, 0).UTC(), Source: "file", Limits: map[string]string{"shop > tenant": limit}}
	}
	oldVersion := version("100 per minute")
	for range 2 { // two replicas
		require.NoError(t, store.AddLimitsVersion(t.Context(), version("0 per minute"), &oldVersion))
	}
	versions, err := store.LimitsVersions(t.Context())
	require.NoError(t, err)
	require.Len(t, versions, 2)
	assert.Equal(t, "0 per minute", versions[0].Limits["shop > tenant"])
	assert.Equal(t, "100 per minute", versions[1].Limits["shop > tenant"])

	require.NoError(t, store.AddLimitsVersion(t.Context(), version("7 per minute"), &oldVersion))
	versions, err = store.LimitsVersions(t.Context())
	require.NoError(t, err)
	assert.Len(t, versions, 3, "the list exists, so it gets only the new version")
}
