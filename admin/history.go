package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/source/changes"
)

// History is the answer of GET /admin/history.
type History struct {
	Changes []Change `json:"changes"` // the newest first

	// More is the number of older changes that the history has.
	More int `json:"more"`
}

// Change is a change in the history.
type Change struct {
	Version  int64          `json:"version"`
	At       time.Time      `json:"at"`
	By       string         `json:"by"`
	From     string         `json:"from,omitempty"` // the address of the caller
	Action   changes.Action `json:"action"`
	Reason   string         `json:"reason,omitempty"`
	Restored int64          `json:"restored,omitempty"` // the version that a rollback restored
	Written  []Written      `json:"changes"`
}

// Written is a field that a change has written. Old and New are empty if there is no value.
type Written struct {
	Kind   override.Kind   `json:"kind"`
	Target string          `json:"target"`
	Old    json.RawMessage `json:"old,omitempty"`
	New    json.RawMessage `json:"new,omitempty"`
}

// newChange returns a change with the fields that mayUseField allows.
func newChange(e *changes.Entry, mayUseField func(field string) bool) Change {
	c := Change{Version: e.Version, At: e.At, By: e.Author, From: e.From, Action: e.Action, Reason: e.Reason, Restored: e.Restored, Written: []Written{}}
	for _, w := range e.Written {
		if mayUseField(w.Field) {
			c.Written = append(c.Written, newWritten(w))
		}
	}
	return c
}

func newWritten(w changes.Written) Written {
	kind, target := override.SplitField(w.Field)
	written := Written{Kind: kind, Target: target}
	if w.Old != nil {
		written.Old = rawJSON(override.WithoutAuthor(*w.Old))
	}
	if w.New != nil {
		written.New = rawJSON(override.WithoutAuthor(*w.New))
	}
	return written
}

const defaultHistoryCount = 20

func (h *handler) getHistory(c *call) answer {
	count := defaultHistoryCount
	if c.query.Has("count") {
		var err error
		if count, err = strconv.Atoi(c.query.Get("count")); err != nil || count < 1 || count > changes.MaxHistory {
			return problem(http.StatusBadRequest, "count: got %q, want 1 to %d", truncate(c.query.Get("count")), changes.MaxHistory)
		}
	}
	history, err := h.history(c)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	list := History{Changes: []Change{}}
	for i := range history {
		change := newChange(&history[i], c.by.mayUseField)
		if c.query.Has("target") {
			change.Written = slices.DeleteFunc(change.Written, func(w Written) bool { return w.Target != c.target() })
		}
		switch {
		case len(change.Written) == 0:
		case len(list.Changes) == count:
			list.More++
		default:
			list.Changes = append(list.Changes, change)
		}
	}
	return answer{code: http.StatusOK, body: list}
}

func (h *handler) history(c *call) ([]changes.Entry, error) {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	return h.o.Overrides.History(ctx)
}

// Rollback is the answer of POST /admin/rollback.
type Rollback struct {
	Version  int64 `json:"version,omitempty"` // of the rollback itself
	Restored int64 `json:"restored"`          // the version whose limits are in force again
	DryRun   bool  `json:"dry_run,omitempty"`

	// Undone are the changes since that version, the newest first.
	Undone []Change `json:"undone"`

	// Fields has the state of each field that the rollback wrote.
	Fields []Override `json:"fields"`
}

func (h *handler) rollBack(c *call) answer {
	isDryRun, dryErr := c.flag("dry_run")
	isForced, forceErr := c.flag("force")
	reason, reasonErr := c.reason()
	if err := errors.Join(dryErr, forceErr, reasonErr); err != nil {
		return answer{code: http.StatusBadRequest, body: Problems{Problems: problemList(err)}}
	}
	history, err := h.history(c)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "history not read: %s", err)
	}
	version, writes, err := h.rollbackPlan(c, history)
	if err != nil {
		return problem(http.StatusConflict, "rollback: %s", err)
	}
	for i, w := range writes {
		if refusal := c.refusalOf(w.Field); refusal != "" {
			h.audit(c, "rollback", "outcome", "refused", "problem", refusal)
			return problem(http.StatusForbidden, "rollback to version %d: it changes another domain, and %s", version, refusal)
		}
		if isForced {
			writes[i].If = changes.Condition{}
		}
	}
	a := Rollback{Restored: version, DryRun: isDryRun, Undone: []Change{}, Fields: []Override{}}
	for i := range history {
		if history[i].Version > version {
			a.Undone = append(a.Undone, newChange(&history[i], c.by.mayUseField))
		}
	}
	if !isDryRun {
		ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
		defer cancel()
		done, err := h.o.Overrides.MakeChange(ctx, changes.Change{
			Author: c.by.Name, From: c.RemoteAddr, Action: changes.Rollback, Reason: reason, At: time.Now().UTC().Truncate(time.Millisecond),
			Restored: version, Writes: writes,
		})
		if err != nil {
			return h.notStored(c, "rollback", "", err)
		}
		a.Version = done.Version
		h.audit(c, "rollback", "restored", strconv.FormatInt(version, 10), "version", strconv.FormatInt(done.Version, 10), "reason", reason)
	}
	for _, w := range writes {
		a.Fields = append(a.Fields, h.restored(w, isDryRun))
	}
	return answer{code: http.StatusOK, body: a}
}

// rollbackPlan returns the version to restore and the writes that restore it. If the parameter
// version is missing, this is the newest version whose limits differ from the limits in force.
func (h *handler) rollbackPlan(c *call, history []changes.Entry) (int64, []changes.Write, error) {
	isGone := func(value string) bool { return override.Ended([]byte(value), time.Now()) }
	if c.query.Has("version") {
		version, err := strconv.ParseInt(c.query.Get("version"), 10, 64)
		if err != nil {
			return 0, nil, errors.New("version: want a number of rls limits history")
		}
		writes, err := changes.PlanRollback(history, version, isGone)
		if err == nil && len(writes) == 0 {
			err = errors.New("the limits are already those of this version")
		}
		return version, writes, err
	}
	if len(history) == 0 {
		return 0, nil, changes.ErrNothingToRollBack
	}
	version := history[0].Version
	for {
		var err error
		if version, err = changes.PreviousVersion(history, version); err != nil {
			return 0, nil, err
		}
		writes, err := changes.PlanRollback(history, version, isGone)
		if err != nil || len(writes) > 0 {
			return version, writes, err
		}
	}
}

// restored describes a field after a rollback.
func (h *handler) restored(w changes.Write, isDryRun bool) Override {
	kind, target := override.SplitField(w.Field)
	before := h.state(w.Field)
	switch {
	case w.Value == nil && isDryRun && before != nil:
		o := overrideAnswer(before)
		o.State, o.Limits, o.BaseLimits = Deleted, o.BaseLimits, o.Limits
		return o
	case w.Value == nil:
		return Override{Kind: kind, Target: target, State: Deleted}
	case isDryRun || before == nil:
		s := h.o.Overrides.DryRun(w.Field, *w.Value)
		before = &s
	}
	return overrideAnswer(before)
}
