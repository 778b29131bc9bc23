package admin

import (
	"context"
	"net/http"
	"time"

	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Status is the answer of GET /admin/status.
type Status struct {
	Version    int64      `json:"version"`     // of the last change that any replica knows
	Replicas   []Replica  `json:"replicas"`    // sorted by name
	Switches   []Override `json:"switches"`    // in force or not
	ShadowMode []Override `json:"shadow_mode"` // at most one, in force or not
}

// Replica is a replica as it has reported itself.
type Replica struct {
	changes.Replica
	SeenSeconds float64      `json:"seen_seconds"` // since its last report
	State       ReplicaState `json:"state"`
}

// ReplicaState compares a replica with the others.
type ReplicaState string

// The states of replicas.
const (
	Current     ReplicaState = "current"
	Behind      ReplicaState = "behind"       // a change has not arrived yet
	OtherLimits ReplicaState = "other limits" // other limits files, or another problem
	Lost        ReplicaState = "lost"         // no report for lostAfter
)

// lostAfter is the time after which a replica without a report counts as lost.
const lostAfter = 15 * time.Second

func (h *handler) getStatus(c *call) answer {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	replicas, err := h.options.Overrides.Replicas(ctx)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "status not read: %s", err)
	}
	l := h.listFields(c)
	return ok(newStatus(replicas, &l))
}

// newStatus compares replicas. Among the replicas of the last version, the limits that most
// replicas have are the right ones.
func newStatus(replicas []changes.Replica, l *List) Status {
	s := Status{Replicas: []Replica{}, Switches: l.Switches, ShadowMode: l.ShadowMode}
	for _, r := range replicas {
		s.Version = max(s.Version, r.Version)
	}
	replicasByLimits, usualLimits := map[string]int{}, ""
	for _, r := range replicas {
		if r.Version == s.Version && r.SeenAgo <= lostAfter {
			if replicasByLimits[r.Limits]++; usualLimits == "" || replicasByLimits[r.Limits] > replicasByLimits[usualLimits] {
				usualLimits = r.Limits
			}
		}
	}
	for _, r := range replicas {
		state := Current
		switch {
		case r.SeenAgo > lostAfter:
			state = Lost
		case r.Version < s.Version:
			state = Behind
		case r.Limits != usualLimits:
			state = OtherLimits
		}
		s.Replicas = append(s.Replicas, Replica{r, r.SeenAgo.Seconds(), state})
	}
	return s
}
