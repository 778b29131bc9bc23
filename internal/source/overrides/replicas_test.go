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
	for _, r := range replicas {
		names = append(names, r.Name)
	}
	return names
}

func TestReplicasReadTheReportsOfEachOther(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a := newReplica(t, reportingOptions(t, s, "a"))
	b := newReplica(t, reportingOptions(t, s, "b"))
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
	s := redistest.Start(t)
	o := reportingOptions(t, s, "a")
	o.Resync = noResync
	r := newReplica(t, o)
	r.start()
	polltest.Until(t, timeout, func() bool { return len(r.LastReports().Replicas) == 1 })
	firstReadAt := r.LastReports().ReadAt
	c := s.Client(t)
	require.NoError(t, c.ConfigResetStat(t.Context()).Err())
	polltest.Until(t, timeout, func() bool { return r.LastReports().ReadAt.After(firstReadAt) })
	stats, err := c.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	assert.Contains(t, stats, "cmdstat_evalsha:calls=1,")
	assert.Contains(t, stats, "cmdstat_hset:calls=1,")
}

func TestReportsOfReplicasThatEndedAreDeleted(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	now, err := c.Time(t.Context()).Result()
	require.NoError(t, err)
	report := func(name string, age time.Duration) string {
		return fmt.Sprintf(`%d {"name":%q}`, now.Add(-age).Unix(), name)
	}
	require.NoError(t, c.HSet(t.Context(), "p:rls:replicas",
		"lost", report("lost", 50*time.Second), "ended", report("ended", 70*time.Second), "foreign", "text", "empty", "",
		"no JSON", fmt.Sprintf("%d text", now.Unix()), "long", report(strings.Repeat("x", 2000), 0),
	).Err())
	r := newReplica(t, reportingOptions(t, s, "a"))
	replicas, err := r.Replicas(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"lost"}, replicaNames(replicas))
	assert.True(t, replicas[0].IsLost())
	names, err := c.HKeys(t.Context(), "p:rls:replicas").Result()
	require.NoError(t, err)
	assert.ElementsMatch(t, []string{"lost", "no JSON", "long"}, names)
}

func TestReportsHaveABound(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := s.Client(t)
	now, err := c.Time(t.Context()).Result()
	require.NoError(t, err)
	for i := range 510 {
		name := fmt.Sprintf("replica-%d", i)
		require.NoError(t, c.HSet(t.Context(), "p:rls:replicas", name, fmt.Sprintf(`%d {"name":%q}`, now.Unix(), name)).Err())
	}
	r := newReplica(t, reportingOptions(t, s, "a"))
	r.start()
	polltest.Until(t, timeout, func() bool { return !r.LastReports().ReadAt.IsZero() })
	assert.Len(t, r.LastReports().Replicas, 500)
	assert.Equal(t, 11, r.LastReports().More)
}

func TestFailedReportSaysSinceWhen(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	r := newReplica(t, reportingOptions(t, s, "a"))
	r.start()
	polltest.Until(t, timeout, func() bool { return len(r.LastReports().Replicas) == 1 })
	stopTime := time.Now()
	s.Kill()
	polltest.Until(t, timeout, func() bool { return r.LastReports().Err != nil })
	failedAt := r.LastReports().FailedAt
	assert.True(t, failedAt.After(stopTime))
	firstErr := r.LastReports().Err
	polltest.Until(t, timeout, func() bool { return !errors.Is(r.LastReports().Err, firstErr) }, "another failure")
	assert.Equal(t, failedAt, r.LastReports().FailedAt, "the time of the first failure stays")

	s.Restart(t)
	polltest.Until(t, timeout, func() bool { return r.LastReports().Err == nil })
	assert.Equal(t, []string{"a"}, replicaNames(r.LastReports().Replicas))
}
