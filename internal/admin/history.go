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
	Version         int64          `json:"version"`
	ChangedAt       time.Time      `json:"at"`
	Author          string         `json:"by"`
	Address         string         `json:"from,omitempty"` // the address of the caller
	Action          changes.Action `json:"action"`
	Reason          string         `json:"reason,omitempty"`
	RestoredVersion int64          `json:"restored,omitempty"` // the version that a rollback restored
	Fields          []FieldChange  `json:"changes"`
}

// FieldChange is a field that a change has written. OldValue or NewValue is empty if the field had or has no value.
type FieldChange struct {
	Kind     override.Kind   `json:"kind"`
	Target   string          `json:"target"`
	OldValue json.RawMessage `json:"old,omitempty"`
	NewValue json.RawMessage `json:"new,omitempty"`
}

// newChange returns a change with the fields that mayUseField allows.
func newChange(entry *changes.Entry, mayUseField func(field string) bool) Change {
	c := Change{
		Version: entry.Version, ChangedAt: entry.ChangedAt, Author: entry.Author, Address: entry.Address,
		Action: entry.Action, Reason: entry.Reason, RestoredVersion: entry.RestoredVersion, Fields: []FieldChange{},
	}
	for _, w := range entry.Fields {
		if mayUseField(w.Field) {
			kind, target := override.SplitField(w.Field)
			c.Fields = append(c.Fields, FieldChange{kind, target, storedJSON(w.OldValue), storedJSON(w.NewValue)})
		}
	}
	return c
}

const defaultHistoryCount = 20

func (h *handler) getHistory(c *call) answer {
	history, err := h.history(c)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	allChanges := h.limitsChanges(c)
	for i := range history {
		allChanges = append(allChanges, newChange(&history[i], c.caller.mayUseField))
	}
	slices.SortStableFunc(allChanges, func(a, b Change) int { return b.ChangedAt.Compare(a.ChangedAt) })
	list := History{Changes: []Change{}}
	for _, change := range allChanges {
		if c.query.Has("target") {
			change.Fields = slices.DeleteFunc(change.Fields, func(w FieldChange) bool { return w.Target != c.target() })
		}
		switch {
		case len(change.Fields) == 0:
		case len(list.Changes) == int(c.count):
			list.OlderChanges++
		default:
			list.Changes = append(list.Changes, change)
		}
	}
	return okAnswer(list)
}

// KindLimits is the Kind of a FieldChange of limits that come from a file or another source.
const KindLimits override.Kind = "limits"

// maxLimitsFields bounds the fields of a change of limits.
const maxLimitsFields = 100

// limitsChanges returns the differences between the last versions of the limits, the newest first. Without Redis,
// it returns nothing.
func (h *handler) limitsChanges(c *call) (list []Change) {
	if h.options.LimitsVersions == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	versions, _ := h.options.LimitsVersions(ctx) // after an error, the history still shows the other changes
	storedLimits := func(v changes.LimitsVersion, path string) json.RawMessage {
		if v.Limits[path] == "" {
			return nil
		}
		text, _ := json.Marshal(v.Limits[path]) // Marshal of a string returns no error
		return text
	}
	for i := 0; i+1 < len(versions); i++ {
		v, previous := versions[i], versions[i+1]
		change := Change{ChangedAt: v.LoadedAt, Author: v.Source, Action: "load", Fields: []FieldChange{}}
		if v.Limits == nil || previous.Limits == nil {
			change.Reason, change.Fields = "too many limits to compare", []FieldChange{{Kind: KindLimits}}
		}
		paths := map[string]string{}
		maps.Copy(paths, previous.Limits)
		maps.Copy(paths, v.Limits)
		for _, path := range slices.Sorted(maps.Keys(paths)) {
			domain, _, _ := strings.Cut(path, " > ")
			if change.Reason == "" && v.Limits[path] != previous.Limits[path] && len(change.Fields) < maxLimitsFields && c.caller.mayUseField(url.PathEscape(domain)) {
				change.Fields = append(change.Fields, FieldChange{KindLimits, path, storedLimits(previous, path), storedLimits(v, path)})
			}
		}
		list = append(list, change)
	}
	return list
}

func (h *handler) history(c *call) ([]changes.Entry, error) {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	return h.options.Overrides.History(ctx)
}

// Rollback is the answer of POST /admin/rollback.
type Rollback struct {
	Version         int64 `json:"version,omitempty"` // the version of the rollback itself
	RestoredVersion int64 `json:"restored"`          // the version whose limits are in force again
	DryRun          bool  `json:"dry_run,omitempty"`

	Note          string     `json:"note,omitempty"` // says that the newest change is none of UndoneChanges
	UndoneChanges []Change   `json:"undone"`         // the changes after RestoredVersion, the newest first; only fields that the caller may use
	Fields        []Override `json:"fields"`         // the fields that the rollback has written
}

func (h *handler) rollBack(c *call) answer {
	history, err := h.history(c)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	version, writes, err := planRollback(history, c.version)
	if err != nil {
		return problem(http.StatusConflict, "rollback: %s", err)
	}
	note := ""
	if loads := h.limitsChanges(c); c.version == noVersion && len(loads) > 0 && loads[0].ChangedAt.After(history[0].ChangedAt) {
		note = fmt.Sprintf("the newest change came from %s at %s, and a rollback leaves it in force. To undo it, restore it there",
			map[string]string{"file": "a limits file", "xds": "the xDS server"}[loads[0].Author], loads[0].ChangedAt.UTC().Format(time.RFC3339))
		if !c.isDryRun && !c.isForced {
			return problem(http.StatusConflict, "rollback: %s. To undo the last change at run time in its place, give --to %d; --dry-run shows it", note, version)
		}
	}
	for i, write := range writes {
		if refusal := c.fieldRefusal(write.Field); refusal != "" {
			h.audit(c, "rollback", "outcome", "refused", "problem", refusal)
			return problem(http.StatusForbidden, "rollback to version %d: it changes another domain, and %s", version, refusal)
		}
		if c.isForced {
			writes[i].Condition = changes.Condition{}
		}
	}
	rollback := Rollback{RestoredVersion: version, DryRun: c.isDryRun, Note: note, UndoneChanges: []Change{}, Fields: []Override{}}
	for i := range history {
		if history[i].Version <= version {
			break
		}
		if change := newChange(&history[i], c.caller.mayUseField); len(change.Fields) > 0 {
			rollback.UndoneChanges = append(rollback.UndoneChanges, change)
		}
	}
	if !c.isDryRun {
		result, err := h.store(c, changes.Change{
			Action: changes.Rollback, Reason: c.reason, RestoredVersion: version, Writes: writes,
		})
		if err != nil {
			return h.answerStoreError(c, "rollback", "", err)
		}
		rollback.Version = result.Version
		h.audit(c, "rollback", "restored", strconv.FormatInt(version, 10), "version", strconv.FormatInt(result.Version, 10), "reason", c.reason)
	}
	for _, write := range writes {
		rollback.Fields = append(rollback.Fields, h.fieldAfterRollback(write, c.isDryRun))
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
			err = errors.New("the limits are already those of this version")
		}
		if err != nil || len(writes) > 0 {
			return version, writes, err
		}
	}
}

// fieldAfterRollback describes a field after a rollback.
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
	SeenSeconds float64      `json:"seen_seconds"` // the time since its last report
	State       ReplicaState `json:"state"`
}

// ReplicaState compares a replica with the others.
type ReplicaState string

// The states of replicas.
const (
	Current     ReplicaState = "current"
	Behind      ReplicaState = "behind"       // a change has not arrived yet
	OtherLimits ReplicaState = "other limits" // most replicas have limits with another hash
	Lost        ReplicaState = "lost"         // the replica has not reported itself for 15 s
)

func (h *handler) getStatus(c *call) answer {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	replicas, err := h.options.Overrides.Replicas(ctx)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "status not read: %s", err)
	}
	l := h.listFields(c)
	return okAnswer(newStatus(replicas, &l))
}

// newStatus compares replicas. A replica has OtherLimits if its limits differ from the usual limits: those that most
// replicas of the last version have.
func newStatus(replicas []changes.Replica, l *List) Status {
	s := Status{Replicas: []Replica{}, Switches: l.Switches, ShadowMode: l.ShadowMode}
	for _, r := range replicas {
		s.Version = max(s.Version, r.Version)
	}
	replicasByLimits, usualLimits := map[string]int{}, ""
	for _, r := range replicas {
		if r.Version == s.Version && !r.IsLost() {
			if replicasByLimits[r.Limits]++; usualLimits == "" || replicasByLimits[r.Limits] > replicasByLimits[usualLimits] {
				usualLimits = r.Limits
			}
		}
	}
	for _, r := range replicas {
		state := Current
		switch {
		case r.IsLost():
			state = Lost
		case r.Version < s.Version:
			state = Behind
		case r.Limits != usualLimits:
			state = OtherLimits
		}
		s.Replicas = append(s.Replicas, Replica{r, r.TimeSinceReport.Seconds(), state})
	}
	return s
}
