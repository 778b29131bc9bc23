package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/source/changes"
)

// storeTimeout bounds how long storing a change takes, so that the caller still waits for
// the answer.
const storeTimeout = 2 * time.Second

// field returns the field of a call.
func (c *call) field() string { return override.Field(c.kind, c.target()) }

// state returns the state of a field, or nil if it has no value.
func (h *handler) state(field string) *override.State {
	all := h.o.Overrides.States()
	for i := range all {
		if all[i].Field() == field {
			return &all[i]
		}
	}
	return nil
}

// list returns the fields that the caller may see.
func (h *handler) list(c *call) List {
	l := List{Overrides: []Override{}, Rules: []Override{}, Switches: []Override{}, ShadowMode: []Override{}}
	for _, s := range h.o.Overrides.States() {
		if c.by.mayUseField(s.Field()) {
			list := l.ofKind(s.Kind)
			*list = append(*list, overrideAnswer(&s))
		}
	}
	return l
}

// ofKind returns the list of a kind.
func (l *List) ofKind(k override.Kind) *[]Override {
	switch k {
	case override.KindRule:
		return &l.Rules
	case override.KindSwitch:
		return &l.Switches
	case override.KindShadowMode:
		return &l.ShadowMode
	}
	return &l.Overrides
}

func (h *handler) getAll(c *call) answer {
	return answer{code: http.StatusOK, body: h.list(c)}
}

func (h *handler) getFields(c *call) answer {
	if !c.query.Has("target") && c.kind != override.KindShadowMode {
		all, one := h.list(c), List{}
		*one.ofKind(c.kind) = *all.ofKind(c.kind)
		return answer{code: http.StatusOK, body: one}
	}
	s := h.state(c.field())
	if s == nil {
		return noField(c)
	}
	o := overrideAnswer(s)
	return answer{code: http.StatusOK, body: o, tag: o.ETag}
}

func noField(c *call) answer {
	return problem(http.StatusNotFound, "no %s has target %q", strings.ReplaceAll(string(c.kind), "_", " "), truncate(c.target()))
}

// flag returns a parameter that is true or false. Without the parameter it returns false.
func (c *call) flag(name string) (bool, error) {
	if !c.query.Has(name) {
		return false, nil
	}
	isSet, err := strconv.ParseBool(c.query.Get(name))
	if err != nil {
		return false, fmt.Errorf("%s: got %q, want true or false", name, truncate(c.query.Get(name)))
	}
	return isSet, nil
}

// value returns the value in the body, or the answer to a rejected call.
func (c *call) value() (value string, rejection *answer) {
	reject := func(code int, format string, args ...any) (string, *answer) {
		a := problem(code, format, args...)
		return "", &a
	}
	if n := len(c.target()); n > MaxTarget {
		return reject(http.StatusBadRequest, "target: got %d bytes, want at most %d", n, MaxTarget)
	}
	body, err := io.ReadAll(io.LimitReader(c.Body, override.MaxBytes+1))
	switch {
	case err != nil:
		return reject(http.StatusBadRequest, "body not read: %s", err)
	case len(body) > override.MaxBytes:
		return reject(http.StatusRequestEntityTooLarge, "body: want at most %d bytes", override.MaxBytes)
	}
	return strings.TrimSpace(string(body)), nil
}

func (h *handler) putField(c *call) answer {
	isDryRun, err := c.flag("dry_run")
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	condition, err := readCondition(c.Header)
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	value, rejection := c.value()
	if rejection != nil {
		return *rejection
	}
	result := h.o.Overrides.DryRun(c.field(), value)
	if result.Problem == nil && result.Expired {
		result.Problem = fmt.Errorf("expires_at %s is in the past", result.Expires.UTC().Format(time.RFC3339))
	}
	o := overrideAnswer(&result)
	o.ETag, o.DryRun = "", isDryRun
	if result.Problem != nil {
		return answer{code: http.StatusBadRequest, body: o}
	}
	before := h.state(c.field())
	if isDryRun {
		if old := valueOf(before); !condition.Holds(old) {
			return h.conflict(c, &changes.ConflictError{Field: c.field(), Current: old})
		}
		return answer{code: http.StatusOK, body: o}
	}
	stored := override.WithAuthor(value, c.by.Name, time.Now())
	if len(stored) > override.MaxBytes {
		return problem(http.StatusRequestEntityTooLarge, "body with the name of the caller: want at most %d bytes", override.MaxBytes)
	}
	o.setNotes(stored)
	done, err := h.store(c, changes.Put, override.NotesOf(stored).Reason, changes.Write{Field: c.field(), Value: &stored, If: condition})
	if err != nil {
		return h.notStored(c, "put", value, err)
	}
	o.Version, o.ETag = done.Version, changes.Tag(stored)
	limitsBefore, oldText := o.BaseLimits, ""
	if old := done.Old[0]; old != nil {
		oldText = *old
		o.OldOverride = rawJSON(override.WithoutAuthor(oldText))
		limitsBefore = cmp.Or(h.replaced(before, c.field(), oldText).Limits, limitsBefore)
	}
	h.auditChange(c, "put", oldText, value, limitsBefore, &o)
	return answer{code: http.StatusOK, body: o, tag: o.ETag}
}

// valueOf returns the value of a state, or nil.
func valueOf(s *override.State) *string {
	if s == nil {
		return nil
	}
	return &s.Value
}

// store makes a change with one write.
func (h *handler) store(c *call, action changes.Action, reason string, w changes.Write) (changes.Result, error) {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	return h.o.Overrides.MakeChange(ctx, changes.Change{
		Author: c.by.Name, From: c.RemoteAddr, Action: action, Reason: reason, At: time.Now().UTC().Truncate(time.Millisecond), Writes: []changes.Write{w},
	})
}

// reason returns the parameter reason.
func (c *call) reason() (string, error) {
	reason := c.query.Get("reason")
	if len(reason) > limitsfile.MaxReasonBytes {
		return "", fmt.Errorf("reason: got %d bytes, want at most %d", len(reason), limitsfile.MaxReasonBytes)
	}
	return reason, nil
}

func (h *handler) deleteField(c *call) answer {
	condition, err := readCondition(c.Header)
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	reason, err := c.reason()
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	before := h.state(c.field())
	isConditional := condition.Tags != nil || condition.OtherTags != nil
	condition.Exists = true
	done, err := h.store(c, changes.Delete, reason, changes.Write{Field: c.field(), If: condition})
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) && conflict.Current == nil && !isConditional {
		return noField(c)
	}
	if err != nil {
		return h.notStored(c, "delete", "", err)
	}
	old := *done.Old[0]
	before = h.replaced(before, c.field(), old)
	deleted := Override{
		Kind: c.kind, Target: c.target(), State: Deleted, Version: done.Version, OldOverride: rawJSON(override.WithoutAuthor(old)), Path: before.Path,
		BaseLimits: cmp.Or(before.Limits, before.BaseLimits), Limits: before.BaseLimits, Counters: countersWord(before),
	}
	h.auditChange(c, "delete", old, "", deleted.BaseLimits, &deleted, "reason", reason)
	return answer{code: http.StatusOK, body: deleted}
}

func (h *handler) auditChange(c *call, action, old, value, limitsBefore string, o *Override, more ...string) {
	attrs := []string{"old", override.WithoutAuthor(old), "new", value, "path", o.Path, "limits_before", limitsBefore, "limits", o.Limits, "counters", o.Counters}
	h.audit(c, action, append(attrs, more...)...)
}

// replaced returns the state of the value that a change has replaced. before is the state
// that was read before the change, which is not the replaced one if another caller was
// faster.
func (h *handler) replaced(before *override.State, field, old string) *override.State {
	if before != nil && before.Value == old {
		return before
	}
	state := h.o.Overrides.DryRun(field, old)
	return &state
}

// notStored audits and answers a change that was refused, or of which it is unknown whether
// Redis has stored it.
func (h *handler) notStored(c *call, action, value string, err error) answer {
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) {
		h.audit(c, action, "outcome", "refused", "new", value, "problem", "the value has changed since the caller read it")
		return h.conflict(c, conflict)
	}
	h.audit(c, action, "outcome", "unknown", "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, "change possibly not stored; repeat the call: %s", err)
}
