package live

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Fleet describes all replicas, as one replica or rls top sees them.
type Fleet struct {
	Replicas []Replica `json:"replicas"`       // the replica that answers, then the others sorted by name
	More     int       `json:"more,omitempty"` // the number of replicas that Replicas leaves out

	// Reported says that the replicas report themselves in Redis. Without reports, Replicas has only the replica that
	// answers.
	Reported bool `json:"reported"`

	// UnknownSince is the time since which the reports of other replicas can't be read. Replicas then has only the
	// replica that answers. UnknownSince is nil if the reports can be read.
	UnknownSince *time.Time `json:"unknown_since,omitempty"`

	// Notes says in words what is not well: replicas that are lost or differ. State.Details has the notes too.
	Notes []string `json:"notes"`
}

// Replica describes a replica.
type Replica struct {
	Name        string                  `json:"name"`
	Answers     bool                    `json:"answers,omitempty"` // this replica made the snapshot
	Lost        bool                    `json:"lost,omitempty"`    // the replica has stopped reporting itself
	Version     string                  `json:"version,omitempty"`
	Limits      string                  `json:"limits,omitempty"` // the hash of the limits in force; empty without limits
	Figures     *changes.ReplicaFigures `json:"figures"`          // null if the figures are unknown
	SeenSeconds float64                 `json:"seen_seconds"`     // the time since the last report of the replica
}

const (
	maxReplicas  = 100 // bounds the replicas in a Fleet
	maxGroups    = 3   // bounds the groups of replicas in a note
	maxNames     = 3   // bounds the names of replicas in a group
	maxNameBytes = 60  // bounds the length of the name of a replica or of a group
)

// reportDelay is the longest time until a replica knows new limits of all other replicas: a replica reports itself every
// five seconds, and reads the reports of the others as often.
const reportDelay = 10 * time.Second

// NewFleet returns the fleet of replicas, which must be in the order of Fleet.Replicas. The notes begin with problems.
func NewFleet(replicas []Replica, moreReplicas int, problems ...string) Fleet {
	return newFleet(replicas, moreReplicas, true, problems...)
}

func newFleet(replicas []Replica, moreReplicas int, comparesLimits bool, problems ...string) Fleet {
	fleet := Fleet{Notes: append([]string{}, problems...)}
	var lostNames []string
	versions, limits := map[string][]string{}, map[string][]string{} // the values are the names of replicas
	for _, r := range replicas {
		if r.Lost {
			lostNames = append(lostNames, r.Name)
			continue
		}
		version := cmp.Or(r.Version, "unknown version")
		versions[version] = append(versions[version], r.Name)
		limits[r.LimitsHash()] = append(limits[r.LimitsHash()], r.Name)
	}
	if len(limits) > 1 && comparesLimits {
		fleet.Notes = append(fleet.Notes, "Replicas have different limits: "+groupsText(limits))
	}
	if len(versions) > 1 {
		fleet.Notes = append(fleet.Notes, "Replicas have different versions of rls: "+groupsText(versions))
	}
	if len(lostNames) > 0 {
		fleet.Notes = append(fleet.Notes, fmt.Sprintf("%s lost, because the last report is older than 15 s: %s", Count(len(lostNames), "replica"), namesText(lostNames)))
	}
	fleet.Replicas = append([]Replica{}, replicas[:min(len(replicas), maxReplicas)]...)
	fleet.More = len(replicas) - len(fleet.Replicas) + moreReplicas
	return fleet
}

// SetFleet replaces the fleet of s, and the notes in its state.
func (s *Snapshot) SetFleet(fleet Fleet) {
	otherDetails := slices.DeleteFunc(slices.Clone(s.State.Details), func(detail string) bool { return slices.Contains(s.Fleet.Notes, detail) })
	s.State.Details = append(slices.Clone(fleet.Notes), otherDetails...)
	if len(fleet.Notes) > 0 {
		s.State.Level = worseLevel(s.State.Level, Warning)
	}
	s.Fleet = fleet
}

// groupsText returns the text of groups of replicas, the largest group first. The key of a group is the value that its
// replicas have in common, such as a version.
func groupsText(groups map[string][]string) string {
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(groups[b]), len(groups[a])), strings.Compare(a, b))
	})
	return fields.JoinFirst(keys, maxGroups, "; ", func(key string) string { return cutName(key) + " in " + namesText(groups[key]) })
}

// namesText sorts names and returns the first of them.
func namesText(names []string) string {
	slices.Sort(names)
	return fields.JoinFirst(names, maxNames, ", ", cutName)
}

func cutName(name string) string { return fields.Cut(name, maxNameBytes) }

// LimitsHash returns the start of the hash of the limits in force, or "no limits".
func (r *Replica) LimitsHash() string {
	if r.Limits == "" {
		return "no limits"
	}
	return r.Limits[:min(len(r.Limits), 8)]
}

// SeenText says whether the replica is lost, and how long ago it reported itself.
func (r *Replica) SeenText() string {
	switch {
	case r.Answers:
		return "now"
	case r.Lost:
		return fmt.Sprintf("lost, %.0f s ago", r.SeenSeconds)
	}
	return fmt.Sprintf("%.0f s ago", r.SeenSeconds)
}

// ReplicaFigures returns the figures of this process for its report, or nil in its first second.
func (l *Live) ReplicaFigures() *changes.ReplicaFigures {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replicaFigures()
}

// replicaFigures does the work of ReplicaFigures. The caller holds l.mu.
func (l *Live) replicaFigures() *changes.ReplicaFigures {
	currentFigures := l.history.currentFigures()
	if !currentFigures.Calls.Now.IsKnown() {
		return nil
	}
	figures := &changes.ReplicaFigures{Calls: float64(currentFigures.Calls.Now), CPU: float64(currentFigures.CPU.Now), MemoryBytes: l.options.Process().MemoryBytes}
	if currentFigures.DeniedShare.Now.IsKnown() { // without calls, the share is unknown
		figures.Denied = float64(currentFigures.DeniedShare.Now * currentFigures.Calls.Now)
	}
	figures.Blips = l.redis().Blips
	return figures
}

// fleet returns the fleet, and the number of replicas that are not lost. The number is 0 if it is unknown. The caller
// holds l.mu.
func (l *Live) fleet(now time.Time) (fleet Fleet, aliveReplicas int) {
	ownReplica := Replica{Name: l.options.Name, Answers: true, Version: l.options.Version, Limits: l.limitsState.Limits.Hash, Figures: l.replicaFigures()}
	if l.options.Reports == nil {
		return NewFleet([]Replica{ownReplica}, 0), 0
	}
	since := l.options.Limits().Since
	canCompareLimits := since == nil || now.Sub(*since) >= reportDelay // before, the reports of others can be older than the limits
	fleet, aliveReplicas = reportedFleet(ownReplica, l.options.Reports(), canCompareLimits, now)
	fleet.Reported = true
	return fleet, aliveReplicas
}

func reportedFleet(ownReplica Replica, reports changes.Reports, comparesLimits bool, now time.Time) (fleet Fleet, aliveReplicas int) {
	replicas := []Replica{ownReplica}
	switch {
	case reports.Err != nil:
		fleet = NewFleet(replicas, 0, fmt.Sprintf("Other replicas unknown since %s: %s", clockText(reports.FailedAt, now), reports.Err))
		fleet.UnknownSince = &reports.FailedAt
		return fleet, 0
	case reports.ReadAt.IsZero():
		return NewFleet(replicas, 0), 0
	}
	aliveReplicas = 1 + reports.More
	for _, r := range reports.Replicas {
		if r.Name == ownReplica.Name {
			continue
		}
		r.TimeSinceReport += max(now.Sub(reports.ReadAt), 0)
		if !r.IsLost() {
			aliveReplicas++
		}
		replicas = append(replicas, Replica{Name: r.Name, Lost: r.IsLost(), Version: r.Build, Limits: r.Limits, Figures: r.Figures, SeenSeconds: r.TimeSinceReport.Seconds()})
	}
	return newFleet(replicas, reports.More, comparesLimits), aliveReplicas
}
