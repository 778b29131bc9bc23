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
	many := []Replica{replica("new", "v2", "h")}
	for i := range 5 {
		many = append(many, replica(fmt.Sprintf("old-%d", i), "v1", "h"))
	}
	for name, c := range map[string]struct {
		replicas []Replica
		want     []string
	}{
		"one replica":      {[]Replica{replica("a", "v1", "h")}, []string{}},
		"equal replicas":   {[]Replica{replica("a", "v1", "h"), replica("b", "v1", "h")}, []string{}},
		"different limits": {[]Replica{replica("b", "v1", "0123456789"), replica("a", "v1", "0123456789"), replica("c", "v1", "")}, []string{"Replicas have different limits: 01234567 in a, b; no limits in c"}},
		"many replicas":    {many, []string{"Replicas have different versions of rls: v1 in old-0, old-1, old-2, and 2 more; v2 in new"}},
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
			assert.Equal(t, c.want, NewFleet(c.replicas, 0).Notes)
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
		r := newRig(t, func(o *Options) {
			o.Name, o.Version = "b", "v1"
			o.Limits = func() Limits { return Limits{Since: &limitsSince} }
			o.Reports = func() changes.Reports { return reports }
		})
		hash := r.store.Load().Hash()
		for range 20 { // half of the calls are denied
			r.call("tenant=acme")
		}
		r.redis.Blips = 3
		r.cpuTime = 500 * time.Millisecond
		r.tick(1)
		snapshot := func() *Snapshot {
			time.Sleep(2 * snapshotTTL)
			return r.Snapshot()
		}

		s := snapshot()
		require.Len(t, s.Fleet.Replicas, 1, "before the first read")
		assert.Zero(t, s.State.Replicas)
		own := s.Fleet.Replicas[0]
		assert.True(t, own.Answers)
		assert.Equal(t, hash, own.Limits)
		assert.Equal(t, &changes.ReplicaFigures{Calls: 10, Denied: 5, CPU: 0.25, Blips: 3}, own.Figures)

		figures := &changes.ReplicaFigures{Calls: 7}
		reports = changes.Reports{ReadAt: time.Now(), More: 1, Replicas: []changes.Replica{
			{Name: "a", Build: "v1", Limits: hash, Figures: figures, TimeSinceReport: time.Second},
			{Name: "b", Build: "v1", Limits: "before", TimeSinceReport: 2 * time.Second}, // an older report of this replica
			{Name: "c", Build: "v1", Limits: "other", TimeSinceReport: 13 * time.Second},
		}}
		s = snapshot()
		assert.Equal(t, 4, s.State.Replicas)
		assert.Contains(t, s.State.Headline, "4 replicas seen")
		assert.Equal(t, []string{"b", "a", "c"}, []string{s.Fleet.Replicas[0].Name, s.Fleet.Replicas[1].Name, s.Fleet.Replicas[2].Name})
		assert.Equal(t, Replica{Name: "a", Version: "v1", Limits: hash, Figures: figures, SeenSeconds: 2}, s.Fleet.Replicas[1])
		assert.Equal(t, Warning, s.State.Level)
		assert.Contains(t, s.State.Details, "Replicas have different limits: "+hash[:8]+" in a, b; other in c")
		limitsSince = time.Now()
		assert.NotContains(t, fmt.Sprint(snapshot().State), "different limits", "the reports can be older than the limits")
		limitsSince = limitsSince.Add(-reportDelay)

		time.Sleep(time.Second)
		s = snapshot()
		assert.Equal(t, 3, s.State.Replicas)
		assert.Equal(t, "lost, 17 s ago", s.Fleet.Replicas[2].SeenText())
		assert.Contains(t, s.State.Details, "1 replica lost, because the last report is older than 15 s: c")

		reports.Err, reports.FailedAt = errors.New("i/o timeout"), time.Now()
		s = snapshot()
		assert.Zero(t, s.State.Replicas)
		require.Len(t, s.Fleet.Replicas, 1)
		assert.Equal(t, reports.FailedAt, *s.Fleet.UnknownSince)
		assert.Contains(t, s.State.Details, "Other replicas unknown since "+clockText(reports.FailedAt, time.Now())+": i/o timeout")
	})
}

func TestFleetWithoutReportsIsOneReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, func(o *Options) { o.Name, o.Redis = "a", nil })
		assert.Nil(t, r.ReplicaFigures(), "in the first second")
		r.tick(1)
		s := r.Snapshot()
		require.Len(t, s.Fleet.Replicas, 1)
		assert.False(t, s.Fleet.Reported)
		assert.NotNil(t, s.Fleet.Replicas[0].Figures)
		assert.Equal(t, &changes.ReplicaFigures{}, r.ReplicaFigures())
	})
}
