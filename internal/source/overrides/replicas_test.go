package overrides_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// reportingOptions returns options of a replica that reports itself with this name.
func reportingOptions(t *testing.T, s *redistest.Server, name string) overrides.Options {
	figures := &changes.ReplicaFigures{Calls: 1.5, Denied: 0.5, CPU: 0.25, MemoryBytes: 1000, Blips: 2}
	return overrides.Options{
		Client: connectWithin(t, redis.Server{URL: s.Addr}, time.Second), Prefix: "p:",
		Report: func() changes.Replica { return changes.Replica{Name: name, Limits: "h", Build: "v1", Figures: figures} },
	}
}

func replicaNames(replicas []changes.Replica) (names []string) {
	for _, replica := range replicas {
		names = append(names, replica.Name)
	}
	return names
}

func TestReplicasReadTheReportsOfEachOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := newReplica(t, reportingOptions(t, server, "a"))
	b := newReplica(t, reportingOptions(t, server, "b"))
	assert.Equal(t, changes.Reports{}, a.LastReports(), "before the first read")
	stopA := a.start()
	polltest.Until(t, timeout, func() bool { return len(a.LastReports().Replicas) == 1 })
	b.start()
	polltest.Until(t, timeout, func() bool { return len(a.LastReports().Replicas) == 2 })
	reports := a.LastReports()
	assert.Equal(t, []string{"a", "b"}, replicaNames(reports.Replicas))
	assert.Equal(t, &changes.ReplicaFigures{Calls: 1.5, Denied: 0.5, CPU: 0.25, MemoryBytes: 1000, Blips: 2}, reports.Replicas[1].Figures)
	assert.Zero(t, reports.More)
	assert.NoError(t, reports.Err)

	stopA()
	replicas, err := b.Replicas(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"b"}, replicaNames(replicas), "a replica that ends deletes its report")
}

func TestReportCostsOneCommandInEachInterval(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := reportingOptions(t, server, "a")
	o.Resync = noResync
	replica := newReplica(t, o)
	replica.start()
	polltest.Until(t, timeout, func() bool { return len(replica.LastReports().Replicas) == 1 })
	firstReadAt := replica.LastReports().ReadAt
	client := server.Client(t)
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	polltest.Until(t, timeout, func() bool { return replica.LastReports().ReadAt.After(firstReadAt) })
	stats, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	assert.Contains(t, stats, "cmdstat_evalsha:calls=1,")
	assert.Contains(t, stats, "cmdstat_hset:calls=1,")
}

func TestReportsOfReplicasThatEndedAreDeleted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	now, err := client.Time(t.Context()).Result()
	require.NoError(t, err)
	report := func(name string, age time.Duration) string {
		return fmt.Sprintf(`%d {"name":%q}`, now.Add(-age).Unix(), name)
	}
	require.NoError(t, client.HSet(t.Context(), "p:rls:replicas",
		"lost", report("lost", 50*time.Second), "ended", report("ended", 70*time.Second), "foreign", "text", "empty", "",
		"no JSON", fmt.Sprintf("%d text", now.Unix()), "long", report(strings.Repeat("x", 2000), 0),
	).Err())
	replica := newReplica(t, reportingOptions(t, server, "a"))
	replicas, err := replica.Replicas(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, replicaNames(replicas))
	assert.True(t, replicas[0].IsLost())
	names, err := client.HKeys(t.Context(), "p:rls:replicas").Result()
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"lost", "no JSON", "long"}, names)
}

func TestReportsHaveABound(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	now, err := client.Time(t.Context()).Result()
	require.NoError(t, err)
	for i := range 510 {
		name := fmt.Sprintf("replica-%d", i)
		require.NoError(t, client.HSet(t.Context(), "p:rls:replicas", name, fmt.Sprintf(`%d {"name":%q}`, now.Unix(), name)).Err())
	}
	replica := newReplica(t, reportingOptions(t, server, "a"))
	replica.start()
	polltest.Until(t, timeout, func() bool { return !replica.LastReports().ReadAt.IsZero() })
	assert.Len(t, replica.LastReports().Replicas, 500)
	assert.Equal(t, 11, replica.LastReports().More)
}

func TestFailedReportSaysSinceWhen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	replica := newReplica(t, reportingOptions(t, server, "a"))
	replica.start()
	polltest.Until(t, timeout, func() bool { return len(replica.LastReports().Replicas) == 1 })
	stopTime := time.Now()
	server.Kill()
	polltest.Until(t, timeout, func() bool { return replica.LastReports().Err != nil })
	failedAt := replica.LastReports().FailedAt
	assert.True(t, failedAt.After(stopTime))
	firstErr := replica.LastReports().Err
	polltest.Until(t, timeout, func() bool { return !errors.Is(replica.LastReports().Err, firstErr) }, "another failure")
	assert.Equal(t, failedAt, replica.LastReports().FailedAt, "the time of the first failure stays")

	server.Restart(t)
	polltest.Until(t, timeout, func() bool { return replica.LastReports().Err == nil })
	assert.Equal(t, []string{"a"}, replicaNames(replica.LastReports().Replicas))
}
