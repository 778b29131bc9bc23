package live

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/source/changes"
)

func TestFleetSaysWhichReplicasDiffer(t *testing.T) {
	replica := func(name, version, limits string) Replica {
		return Replica{Name: name, Version: version, Limits: limits}
	}
	replicas := []Replica{replica("new", "v2", "h")}
	for i := range 5 {
		replicas = append(replicas, replica(fmt.Sprintf("old-%d", i), "v1", "h"))
	}
	for name, test := range map[string]struct {
		replicas []Replica
		want     []string
	}{
		"one replica":      {[]Replica{replica("a", "v1", "h")}, []string{}},
		"equal replicas":   {[]Replica{replica("a", "v1", "h"), replica("b", "v1", "h")}, []string{}},
		"different limits": {[]Replica{replica("b", "v1", "0123456789"), replica("a", "v1", "0123456789"), replica("c", "v1", "")}, []string{"Replicas have different limits: 01234567 in a, b; no limits in c"}},
		"many replicas":    {replicas, []string{"Replicas have different versions of rls: v1 in old-0, old-1, old-2, and 2 more; v2 in new"}},
		"many versions": {
			[]Replica{replica("a", "v1", "h"), replica("b", "v2", "h"), replica("c", "v3", "h"), replica("d", "", "h")},
			[]string{"Replicas have different versions of rls: unknown version in d; v1 in a; v2 in b; and 1 more"},
		},
		"a lost replica does not differ": {
			[]Replica{replica("a", "v1", "h"), {Name: "b", Version: "v2", Limits: "i", Lost: true}},
			[]string{"1 replica lost, because the last report is older than 15 s: b"},
		},
		"long names are cut": {[]Replica{{Name: strings.Repeat("x", 70), Lost: true}}, []string{"1 replica lost, because the last report is older than 15 s: " + strings.Repeat("x", 60) + "…"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, NewFleet(test.replicas, 0).Notes)
		})
	}
}

func TestFleetHasABound(t *testing.T) {
	f := NewFleet(make([]Replica, maxReplicas+3), 4)
	assert.Len(t, f.Replicas, maxReplicas)
	assert.Equal(t, 7, f.More)
}

func TestSetFleetReplacesItsNotesInTheState(t *testing.T) {
	s := Snapshot{State: State{Level: Trouble, Details: []string{"old", "Redis"}}, Fleet: Fleet{Notes: []string{"old"}}}
	s.SetFleet(Fleet{Notes: []string{"new"}})
	assert.Equal(t, []string{"new", "Redis"}, s.State.Details)
	assert.Equal(t, Trouble, s.State.Level)
	s.SetFleet(Fleet{})
	assert.Equal(t, []string{"Redis"}, s.State.Details)
}

func TestSnapshotShowsTheReportsOfReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports changes.Reports
		limitsSince := time.Now().Add(-reportDelay)
		fixture := newFixture(t, func(o *Options) {
			o.Name, o.Version = "b", "v1"
			o.Limits = func() Limits { return Limits{Since: &limitsSince} }
			o.Reports = func() changes.Reports { return reports }
		})
		hash := fixture.store.Load().Hash()
		for range 20 { // half of the calls are denied
			fixture.call("tenant=acme")
		}
		fixture.redis.Blips = 3
		fixture.cpuTime = 500 * time.Millisecond
		fixture.tick(1)
		makeSnapshot := func() *Snapshot {
			time.Sleep(2 * snapshotTTL)
			return fixture.Snapshot()
		}

		snapshot := makeSnapshot()
		require.Len(t, snapshot.Fleet.Replicas, 1, "before the first read")
		assert.Zero(t, snapshot.State.Replicas)
		ownReplica := snapshot.Fleet.Replicas[0]
		assert.True(t, ownReplica.Answers)
		assert.Equal(t, hash, ownReplica.Limits)
		assert.Equal(t, &changes.ReplicaFigures{Calls: 10, Denied: 5, CPU: 0.25, Blips: 3}, ownReplica.Figures)

		figures := &changes.ReplicaFigures{Calls: 7}
		reports = changes.Reports{ReadAt: time.Now(), More: 1, Replicas: []changes.Replica{
			{Name: "a", Build: "v1", Limits: hash, Figures: figures, TimeSinceReport: time.Second},
			{Name: "b", Build: "v1", Limits: "before", TimeSinceReport: 2 * time.Second}, // an older report of this replica
			{Name: "c", Build: "v1", Limits: "other", TimeSinceReport: 13 * time.Second},
		}}
		snapshot = makeSnapshot()
		assert.Equal(t, 4, snapshot.State.Replicas)
		assert.Contains(t, snapshot.State.Headline, "4 replicas seen")
		assert.Equal(t, []string{"b", "a", "c"}, []string{snapshot.Fleet.Replicas[0].Name, snapshot.Fleet.Replicas[1].Name, snapshot.Fleet.Replicas[2].Name})
		assert.Equal(t, Replica{Name: "a", Version: "v1", Limits: hash, Figures: figures, SeenSeconds: 2}, snapshot.Fleet.Replicas[1])
		assert.Equal(t, Warning, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Details, "Replicas have different limits: "+hash[:8]+" in a, b; other in c")
		limitsSince = time.Now()
		assert.NotContains(t, fmt.Sprint(makeSnapshot().State), "different limits", "the reports can be older than the limits")

		time.Sleep(time.Second)
		snapshot = makeSnapshot()
		assert.Equal(t, 3, snapshot.State.Replicas)
		assert.Equal(t, "lost, 17 s ago", snapshot.Fleet.Replicas[2].SeenText())
		assert.Contains(t, snapshot.State.Details, "1 replica lost, because the last report is older than 15 s: c")

		reports.Err, reports.FailedAt = errors.New("i/o timeout"), time.Now()
		snapshot = makeSnapshot()
		assert.Zero(t, snapshot.State.Replicas)
		require.Len(t, snapshot.Fleet.Replicas, 1)
		assert.Equal(t, reports.FailedAt, *snapshot.Fleet.UnknownSince)
		assert.Contains(t, snapshot.State.Details, "Other replicas unknown since "+clockText(reports.FailedAt, time.Now())+": i/o timeout")
	})
}

func TestFleetWithoutReportsIsOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, func(o *Options) { o.Name, o.Redis = "a", nil })
		assert.Nil(t, fixture.ReplicaFigures(), "in the first second")
		fixture.tick(1)
		snapshot := fixture.Snapshot()
		require.Len(t, snapshot.Fleet.Replicas, 1)
		assert.False(t, snapshot.Fleet.Reported)
		assert.NotNil(t, snapshot.Fleet.Replicas[0].Figures)
		assert.Equal(t, &changes.ReplicaFigures{}, fixture.ReplicaFigures())
	})
}
