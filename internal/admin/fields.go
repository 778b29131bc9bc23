package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// storeTimeout bounds a call to the store of overrides. Callers wait longer for an answer, so they get the error.
const storeTimeout = 2 * time.Second

func (c *call) field() string { return override.Field(c.kind, c.target()) }

func (h *handler) findState(field string) *override.State {
	states := h.options.Overrides.States()
	for i := range states {
		if states[i].Field() == field {
			return &states[i]
		}
	}
	return nil
}

// listFields returns the fields that the caller may see.
func (h *handler) listFields(c *call) List {
	l := List{Overrides: []Override{}, Rules: []Override{}, Switches: []Override{}, ShadowMode: []Override{}}
	for _, s := range h.options.Overrides.States() {
		if c.caller.mayUseField(s.Field()) {
			list := l.listOfKind(s.Kind)
			*list = append(*list, overrideAnswer(&s))
		}
	}
	return l
}

func (l *List) listOfKind(k override.Kind) *[]Override {
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

func (h *handler) getFields(c *call) answer {
	if !c.query.Has("target") && c.kind != override.KindShadowMode {
		allFields, kindList := h.listFields(c), List{}
		*kindList.listOfKind(c.kind) = *allFields.listOfKind(c.kind)
		return okAnswer(kindList)
	}
	s := h.findState(c.field())
	if s == nil {
		return noFieldAnswer(c)
	}
	o := overrideAnswer(s)
	return okAnswer(o)
}

func noFieldAnswer(c *call) answer {
	return problem(http.StatusNotFound, "no %s has target %q", strings.ReplaceAll(string(c.kind), "_", " "), truncate(c.target()))
}

func (h *handler) putField(c *call) answer {
	if n := len(c.target()); n > MaxTarget {
		return problem(http.StatusBadRequest, "target: got %d bytes, want at most %d", n, MaxTarget)
	}
	body, err := io.ReadAll(io.LimitReader(c.Body, override.MaxBytes+1))
	switch {
	case err != nil:
		return problem(http.StatusBadRequest, "body not read: %s", err)
	case len(body) > override.MaxBytes:
		return problem(http.StatusRequestEntityTooLarge, "body: want at most %d bytes", override.MaxBytes)
	}
	value := strings.TrimSpace(string(body))
	dryRunState := h.options.Overrides.DryRun(c.field(), value)
	if dryRunState.Problem == nil && dryRunState.IsExpired {
		dryRunState.Problem = fmt.Errorf("expires_at %s is in the past", dryRunState.ExpiresAt.UTC().Format(time.RFC3339))
	}
	o := overrideAnswer(&dryRunState)
	o.ETag, o.DryRun = "", c.isDryRun
	if dryRunState.Problem != nil {
		return answer{code: http.StatusBadRequest, body: o}
	}
	oldState := h.findState(c.field())
	if !c.isForced && !c.hasCondition() && losesEndlessValue(oldState, &dryRunState) {
		return problem(http.StatusPreconditionFailed, "%s %s: its value %s has no end, and would not come back when the new value ends. Nothing was changed. To replace it for good, add --replace (?replace=true)",
			c.kind, c.target(), override.RemoveAuthor(oldState.Value))
	}
	if c.isDryRun {
		var old *string
		if oldState != nil {
			old = &oldState.Value
		}
		if !c.condition.Holds(old) {
			return h.answerConflict(c, &changes.ConflictError{Field: c.field(), CurrentValue: old})
		}
		return okAnswer(o)
	}
	valueWithAuthor := override.AddAuthor(value, c.caller.Name, time.Now())
	if len(valueWithAuthor) > override.MaxBytes {
		return problem(http.StatusRequestEntityTooLarge, "body with the name of the caller: want at most %d bytes", override.MaxBytes)
	}
	notes := override.NotesOf(valueWithAuthor)
	o.setNotes(notes)
	result, err := h.store(c, changes.Change{
		Action: changes.Put, Reason: notes.Reason,
		Writes: []changes.Write{{Field: c.field(), Value: &valueWithAuthor, Condition: c.condition}},
	})
	if err != nil {
		return h.answerStoreError(c, "put", value, err)
	}
	o.Version, o.ETag = result.Version, changes.Tag(valueWithAuthor)
	limitsBefore, oldText := o.BaseLimits, ""
	if old := result.OldValues[0]; old != nil {
		oldText = *old
		o.OldOverride = storedJSON(old)
		limitsBefore = cmp.Or(h.replacedState(oldState, c.field(), oldText).Limits, limitsBefore)
	}
	h.auditChange(c, "put", oldText, value, limitsBefore, &o)
	return okAnswer(o)
}

// hasCondition reports whether the call has If-Match or If-None-Match.
func (c *call) hasCondition() bool {
	return c.condition.Exists || c.condition.Absent || c.condition.Tags != nil || c.condition.ForbiddenTags != nil
}

// losesEndlessValue reports whether a value without an end, such as the contract of a customer, gives way to a value
// with an end. old may be nil. A switch or a shadow mode without an end is no such value.
func losesEndlessValue(old, replacement *override.State) bool {
	isLimit := replacement.Kind == override.KindOverride || replacement.Kind == override.KindRule
	return isLimit && old != nil && old.ExpiresAt.IsZero() && !replacement.ExpiresAt.IsZero()
}

// store makes a change in the name of the caller.
func (h *handler) store(c *call, change changes.Change) (changes.Result, error) {
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	change.Author, change.Address = c.caller.Name, c.RemoteAddr
	change.ChangedAt = time.Now().UTC().Truncate(time.Millisecond)
	return h.options.Overrides.MakeChange(ctx, change)
}

func (h *handler) deleteField(c *call) answer {
	oldState := h.findState(c.field())
	isConditional := c.condition.Tags != nil || c.condition.ForbiddenTags != nil
	c.condition.Exists = true
	result, err := h.store(c, changes.Change{
		Action: changes.Delete, Reason: c.reason,
		Writes: []changes.Write{{Field: c.field(), Condition: c.condition}},
	})
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) && conflict.CurrentValue == nil && !isConditional {
		return noFieldAnswer(c)
	}
	if err != nil {
		return h.answerStoreError(c, "delete", "", err)
	}
	old := *result.OldValues[0]
	oldState = h.replacedState(oldState, c.field(), old)
	deletedOverride := Override{
		Kind: c.kind, Target: c.target(), State: Deleted, Version: result.Version, OldOverride: storedJSON(&old), Path: oldState.Path,
		BaseLimits: cmp.Or(oldState.Limits, oldState.BaseLimits), Limits: oldState.BaseLimits, Counters: countersWord(oldState),
	}
	h.auditChange(c, "delete", old, "", deletedOverride.BaseLimits, &deletedOverride, "reason", c.reason)
	return okAnswer(deletedOverride)
}

func (h *handler) auditChange(c *call, action, old, value, limitsBefore string, o *Override, moreAttrs ...string) {
	h.audit(c, action, append([]string{
		"old", override.RemoveAuthor(old), "new", value, "path", o.Path, "limits_before", limitsBefore, "limits", o.Limits, "counters", o.Counters,
	}, moreAttrs...)...)
}

// replacedState returns the state of the value that a change has replaced. readState is the state
// that was read before the change. Another caller may have changed the value after the read.
func (h *handler) replacedState(readState *override.State, field, old string) *override.State {
	if readState != nil && readState.Value == old {
		return readState
	}
	state := h.options.Overrides.DryRun(field, old)
	return &state
}

// answerStoreError audits and answers a change with a condition that does not hold, or a change that Redis may not have
// stored.
func (h *handler) answerStoreError(c *call, action, value string, err error) answer {
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) {
		h.audit(c, action, "outcome", "refused", "new", value, "problem", "the value has changed since the caller read it")
		return h.answerConflict(c, conflict)
	}
	h.audit(c, action, "outcome", "unknown", "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, "change possibly not stored; repeat the call: %s", err)
}

// Conflict is the answer to a change whose If-Match or If-None-Match does not hold.
type Conflict struct {
	Problems   []string  `json:"problems"`
	Current    *Override `json:"current,omitempty"`     // the value in force
	LastChange *Change   `json:"last_change,omitempty"` // the change that wrote or deleted the value; missing if the history no longer has the change
}

// tagPattern matches an ETag, which can be weak.
var tagPattern = regexp.MustCompile(`^(W/)?"([^" ]*)"$`)

// readTags reads the ETags of a header. isAny reports whether the header is *. If isAny is true, or if there is no such
// header, tags is nil.
func readTags(h http.Header, name string) (tags []string, isAny bool, err error) {
	values := h.Values(name)
	if len(values) == 0 {
		return nil, false, nil
	}
	const maxTags = 20
	text := strings.TrimSpace(strings.Join(values, ","))
	if text == "*" {
		return nil, true, nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > maxTags {
		return nil, false, fmt.Errorf("%s: got %d ETags, want at most %d", name, len(parts), maxTags)
	}
	for _, part := range parts {
		part = strings.TrimSpace(part)
		match := tagPattern.FindStringSubmatch(part)
		if match == nil {
			return nil, false, fmt.Errorf(`%s: got %s, want * or an ETag in quotes, such as "%s"`, name, truncate(part), changes.Tag(""))
		}
		tag := match[2]
		if name == "If-Match" && match[1] != "" {
			tag = "weak" // a weak ETag matches nothing
		}
		tags = append(tags, tag)
	}
	return tags, false, nil
}

// answerConflict answers 412 with the current value and the last change.
func (h *handler) answerConflict(c *call, conflict *changes.ConflictError) answer {
	kind, target := override.SplitField(conflict.Field)
	name := strings.TrimSpace(string(kind) + " " + target)
	var body Conflict
	if history, err := h.history(c); err == nil {
		if last := changes.LastChangeOf(history, conflict.Field); last != nil {
			change := newChange(last, c.caller.mayUseField)
			body.LastChange = &change
		}
	}
	changeText := func(author, action, at, reason string) string {
		text := author + " " + action + " at " + at
		if reason != "" {
			text += fmt.Sprintf(", reason %q", reason)
		}
		return text
	}
	text := "it has no value, or its end has passed"
	switch last := body.LastChange; {
	case conflict.CurrentValue != nil:
		state := h.options.Overrides.DryRun(conflict.Field, *conflict.CurrentValue)
		current := overrideAnswer(&state)
		body.Current = &current
		text = "it exists, and its author is unknown"
		if current.SetBy != "" {
			text = changeText(current.SetBy, "set it", current.SetAt, current.Reason)
		}
		if current.Limits != "" {
			text += "; limits now: " + current.Limits
		}
	case last != nil && last.Action != changes.Put:
		text = changeText(last.Author, "deleted it", last.ChangedAt.UTC().Format(time.RFC3339), last.Reason)
	}
	body.Problems = []string{name + ": " + text + ". Nothing was changed; read it again before you repeat the call"}
	return answer{code: http.StatusPreconditionFailed, body: body}
}
