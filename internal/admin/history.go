package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// History is the answer of GET /admin/history.
type History struct {
	Changes      []Change `json:"changes"` // the newest first
	OlderChanges int      `json:"more"`    // number of older changes that the history has
}

// Change is a change in the history.
type Change struct {
	Version int64 `json:"version"`
	changes.Origin
	Fields []FieldChange `json:"changes"`
}

// FieldChange is a field that a change has written. OldValue or NewValue is empty if the field had or has no value.
type FieldChange struct {
	Kind     override.Kind   `json:"kind"`
	Target   string          `json:"target"`
	OldValue json.RawMessage `json:"old,omitempty"`
	NewValue json.RawMessage `json:"new,omitempty"`
}

func newChange(entry *changes.Entry, mayUseField func(field string) bool) Change {
	change := Change{Version: entry.Version, Origin: entry.Origin, Fields: []FieldChange{}}
	for _, w := range entry.Fields {
		if mayUseField(w.Field) {
			kind, target := override.SplitField(w.Field)
			change.Fields = append(change.Fields, FieldChange{kind, target, storedJSON(w.OldValue), storedJSON(w.NewValue)})
		}
	}
	return change
}

const defaultHistoryCount = 20

func (h *handler) getHistory(call *call) answer {
	history, err := h.history(call)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	allChanges := h.limitsChanges(call)
	for i := range history {
		allChanges = append(allChanges, newChange(&history[i], call.caller.mayUseField))
	}
	slices.SortStableFunc(allChanges, func(a, b Change) int { return b.ChangedAt.Compare(a.ChangedAt) })
	shownHistory := History{Changes: []Change{}}
	for _, change := range allChanges {
		if call.query.Has("target") {
			change.Fields = slices.DeleteFunc(change.Fields, func(w FieldChange) bool { return asTarget(w.Target) != asTarget(call.target()) })
		}
		switch {
		case len(change.Fields) == 0:
		case len(shownHistory.Changes) == int(call.count):
			shownHistory.OlderChanges++
		default:
			shownHistory.Changes = append(shownHistory.Changes, change)
		}
	}
	return okAnswer(shownHistory)
}

// asTarget returns the target of a path such as shop > tenant=acme. It returns a target unchanged.
func asTarget(path string) string { return strings.ReplaceAll(path, " > ", "|") }

// KindLimits is the Kind of a FieldChange of limits that come from a file or another source.
const KindLimits override.Kind = "limits"

const maxLimitsFields = 100

// limitsChanges returns the differences between the last versions of the limits, the newest first. Without Redis,
// it returns nothing.
func (h *handler) limitsChanges(call *call) (limitsChanges []Change) {
	if h.options.LimitsVersions == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(call.Context(), storeTimeout)
	defer cancel()
	versions, _ := h.options.LimitsVersions(ctx) // after an error, the history still shows the other changes
	storedLimits := func(version changes.LimitsVersion, path string) json.RawMessage {
		if version.Limits[path] == "" {
			return nil
		}
		text, _ := json.Marshal(version.Limits[path]) // Marshal of a string returns no error
		return text
	}
	for i := 0; i+1 < len(versions); i++ {
		version, previousVersion := versions[i], versions[i+1]
		change := Change{Origin: changes.Origin{ChangedAt: version.LoadedAt, Author: version.Source, Action: "load"}, Fields: []FieldChange{}}
		if version.Limits == nil || previousVersion.Limits == nil {
			change.Reason, change.Fields = "too many limits to compare", []FieldChange{{Kind: KindLimits}}
		}
		paths := map[string]string{}
		maps.Copy(paths, previousVersion.Limits)
		maps.Copy(paths, version.Limits)
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			domain, _, _ := strings.Cut(path, " > ")
			if change.Reason == "" && version.Limits[path] != previousVersion.Limits[path] && len(change.Fields) < maxLimitsFields && call.caller.mayUseField(url.PathEscape(domain)) {
				change.Fields = append(change.Fields, FieldChange{KindLimits, path, storedLimits(previousVersion, path), storedLimits(version, path)})
			}
		}
		limitsChanges = append(limitsChanges, change)
	}
	return limitsChanges
}

func (h *handler) history(call *call) ([]changes.Entry, error) {
	ctx, cancel := context.WithTimeout(call.Context(), storeTimeout)
	defer cancel()
	return h.options.Overrides.History(ctx)
}

// Rollback is the answer of POST /admin/rollback.
type Rollback struct {
	Version         int64 `json:"version,omitempty"` // the version of the rollback itself
	RestoredVersion int64 `json:"restored"`          // the version whose limits are in force again
	DryRun          bool  `json:"dry_run,omitempty"`

	Note          string     `json:"note,omitempty"` // says that the rollback does not undo the newest change
	UndoneChanges []Change   `json:"undone"`         // the changes after RestoredVersion, the newest first; only fields that the caller may use
	Fields        []Override `json:"fields"`         // the fields that the rollback has written
}

func (h *handler) rollBack(call *call) answer {
	history, err := h.history(call)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	version, writes, err := planRollback(history, call.version)
	if err != nil {
		return problem(http.StatusConflict, "rollback: %s", err)
	}
	note := ""
	if limitsChanges := h.limitsChanges(call); call.version == noVersion && len(limitsChanges) > 0 && limitsChanges[0].ChangedAt.After(history[0].ChangedAt) {
		note = fmt.Sprintf("the newest change came from %s at %s, and a rollback leaves it in force. To undo it, restore it there",
			map[string]string{"file": "a limits file", "xds": "the xDS server"}[limitsChanges[0].Author], limitsChanges[0].ChangedAt.UTC().Format(time.RFC3339))
		if !call.isDryRun && !call.isForced {
			return problem(http.StatusConflict, "rollback: %s. To undo the last change at run time in its place, give --to %d; --dry-run shows it", note, version)
		}
	}
	for i, write := range writes {
		if refusal := call.fieldRefusal(write.Field); refusal != "" {
			h.audit(call, "rollback", "outcome", "refused", "problem", refusal)
			return problem(http.StatusForbidden, "rollback to version %d: it changes another domain, and %s", version, refusal)
		}
		if call.isForced {
			writes[i].Condition = changes.Condition{}
		}
	}
	rollback := Rollback{RestoredVersion: version, DryRun: call.isDryRun, Note: note, UndoneChanges: []Change{}, Fields: []Override{}}
	for i := range history {
		if history[i].Version <= version {
			break
		}
		if change := newChange(&history[i], call.caller.mayUseField); len(change.Fields) > 0 {
			rollback.UndoneChanges = append(rollback.UndoneChanges, change)
		}
	}
	if !call.isDryRun {
		origin := changes.Origin{Action: changes.Rollback, Reason: call.reason, RestoredVersion: version}
		result, err := h.store(call, changes.Change{Origin: origin, Writes: writes})
		if err != nil {
			return h.answerStoreError(call, "rollback", "", err)
		}
		rollback.Version = result.Version
		h.audit(call, "rollback", "restored", strconv.FormatInt(version, 10), "version", strconv.FormatInt(result.Version, 10), "reason", call.reason)
	}
	for _, write := range writes {
		rollback.Fields = append(rollback.Fields, h.fieldAfterRollback(write, call.isDryRun))
	}
	return okAnswer(rollback)
}

const noVersion = -1

// planRollback returns the version to restore and the writes that restore it. If version is
// noVersion, planRollback chooses the newest version whose limits differ from the limits in force.
func planRollback(history []changes.Entry, version int64) (int64, []changes.Write, error) {
	isExpired := func(value string) bool { return override.NotesOf(value).HasExpired(time.Now()) }
	isChosen := version != noVersion
	if !isChosen && len(history) > 0 {
		version = history[0].Version
	}
	for { // skip versions whose limits are the same as the limits in force
		var err error
		if !isChosen {
			if version, err = changes.PreviousVersion(history, version); err != nil {
				return 0, nil, err
			}
		}
		writes, err := changes.PlanRollback(history, version, isExpired)
		if err == nil && len(writes) == 0 && isChosen {
			err = errors.New("the limits are already the limits of this version")
		}
		if err != nil || len(writes) > 0 {
			return version, writes, err
		}
	}
}

func (h *handler) fieldAfterRollback(write changes.Write, isDryRun bool) Override {
	kind, target := override.SplitField(write.Field)
	state := h.findState(write.Field)
	switch {
	case write.Value == nil && isDryRun && state != nil:
		o := overrideAnswer(state)
		o.State, o.Limits, o.BaseLimits = Deleted, o.BaseLimits, o.Limits
		return o
	case write.Value == nil:
		return Override{Kind: kind, Target: target, State: Deleted}
	case isDryRun || state == nil:
		newState := h.options.Overrides.DryRun(write.Field, *write.Value)
		state = &newState
	}
	return overrideAnswer(state)
}

// Status is the answer of GET /admin/status.
type Status struct {
	Version    int64      `json:"version"`     // the version of the last change that any replica knows
	Replicas   []Replica  `json:"replicas"`    // sorted by name
	Switches   []Override `json:"switches"`    // all switches, in force or not
	ShadowMode []Override `json:"shadow_mode"` // at most one switch, in force or not
}

// Replica is a replica as it has reported itself.
type Replica struct {
	changes.Replica
	SeenSeconds float64      `json:"seen_seconds"` // the time since the last report of the replica
	State       ReplicaState `json:"state"`
}

// ReplicaState compares a replica with all other replicas.
type ReplicaState string

// The states of replicas.
const (
	Current     ReplicaState = "current"
	Behind      ReplicaState = "behind"       // a change has not arrived yet
	OtherLimits ReplicaState = "other limits" // most replicas have limits with another hash
	Lost        ReplicaState = "lost"         // the replica has not reported itself for 15 s
)

func (h *handler) getStatus(call *call) answer {
	ctx, cancel := context.WithTimeout(call.Context(), storeTimeout)
	defer cancel()
	replicas, err := h.options.Overrides.Replicas(ctx)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "status not read: %s", err)
	}
	l := h.listFields(call)
	return okAnswer(newStatus(replicas, &l))
}

// newStatus compares replicas. A replica has OtherLimits if its limits differ from the usual limits. The usual limits are
// the limits of most replicas with the last version.
func newStatus(replicas []changes.Replica, list *List) Status {
	status := Status{Replicas: []Replica{}, Switches: list.Switches, ShadowMode: list.ShadowMode}
	for _, replica := range replicas {
		status.Version = max(status.Version, replica.Version)
	}
	replicasByLimits, usualLimits := map[string]int{}, ""
	for _, replica := range replicas {
		if replica.Version == status.Version && !replica.IsLost() {
			if replicasByLimits[replica.Limits]++; usualLimits == "" || replicasByLimits[replica.Limits] > replicasByLimits[usualLimits] {
				usualLimits = replica.Limits
			}
		}
	}
	for _, replica := range replicas {
		state := Current
		switch {
		case replica.IsLost():
			state = Lost
		case replica.Version < status.Version:
			state = Behind
		case replica.Limits != usualLimits:
			state = OtherLimits
		}
		status.Replicas = append(status.Replicas, Replica{replica, replica.TimeSinceReport.Seconds(), state})
	}
	return status
}
