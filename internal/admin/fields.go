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

func (h *handler) listFields(call *call) List {
	answerList := List{Overrides: []Override{}, Rules: []Override{}, Switches: []Override{}, ShadowMode: []Override{}}
	if err := h.options.Overrides.Outage(); err != nil {
		answerList.Problems = problemList(err)
	}
	for _, s := range h.options.Overrides.States() {
		if call.caller.mayUseField(s.Field()) {
			list := answerList.listOfKind(s.Kind)
			*list = append(*list, overrideAnswer(&s))
		}
	}
	return answerList
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

func (h *handler) getFields(call *call) answer {
	if !call.query.Has("target") && call.kind != override.KindShadowMode {
		allFields := h.listFields(call)
		kindList := List{Problems: allFields.Problems}
		*kindList.listOfKind(call.kind) = *allFields.listOfKind(call.kind)
		return okAnswer(kindList)
	}
	s := h.findState(call.field())
	if s == nil {
		return noFieldAnswer(call)
	}
	return okAnswer(overrideAnswer(s))
}

func noFieldAnswer(call *call) answer {
	return problem(http.StatusNotFound, "no %s has target %q", strings.ReplaceAll(string(call.kind), "_", " "), truncate(call.target()))
}

func (h *handler) putField(call *call) answer {
	if n := len(call.target()); n > MaxTargetBytes {
		return problem(http.StatusBadRequest, "target: got %d bytes, want at most %d", n, MaxTargetBytes)
	}
	body, err := io.ReadAll(io.LimitReader(call.Body, override.MaxBytes+1))
	switch {
	case err != nil:
		return problem(http.StatusBadRequest, "body not read: %s", err)
	case len(body) > override.MaxBytes:
		return problem(http.StatusRequestEntityTooLarge, "body: want at most %d bytes", override.MaxBytes)
	}
	value := strings.TrimSpace(string(body))
	dryRunState := h.options.Overrides.DryRun(call.field(), value)
	if dryRunState.Problem == nil && dryRunState.IsExpired {
		dryRunState.Problem = fmt.Errorf("expires_at %s is in the past", dryRunState.ExpiresAt.UTC().Format(time.RFC3339))
	}
	answerBody := overrideAnswer(&dryRunState)
	answerBody.ETag, answerBody.DryRun = "", call.isDryRun
	if dryRunState.Problem != nil {
		return answer{code: http.StatusBadRequest, body: answerBody}
	}
	oldState := h.findState(call.field())
	if !call.isForced && call.condition == (changes.Condition{}) && losesLongerValue(oldState, &dryRunState) {
		end := "has no end"
		if !oldState.ExpiresAt.IsZero() {
			end = "ends later, at " + oldState.ExpiresAt.UTC().Format(time.RFC3339)
		}
		return problem(http.StatusPreconditionFailed, "%s %s: its value %s %s, and would not come back when the new value ends. Nothing was changed. To replace it for good, add --replace (?replace=true)",
			call.kind, call.target(), override.RemoveAuthor(oldState.Value), end)
	}
	if call.isDryRun {
		var oldValue *string
		if oldState != nil {
			oldValue = &oldState.Value
		}
		if !call.condition.Holds(oldValue) {
			return h.answerConflict(&changes.ConflictError{Field: call.field(), CurrentValue: oldValue})
		}
		return okAnswer(answerBody)
	}
	valueWithAuthor := override.AddAuthor(value, call.caller.Name, time.Now())
	if len(valueWithAuthor) > override.MaxBytes {
		return problem(http.StatusRequestEntityTooLarge, "body with the name of the caller: want at most %d bytes", override.MaxBytes)
	}
	notes := override.NotesOf(valueWithAuthor)
	answerBody.setNotes(notes)
	result, err := h.store(call, changes.Change{
		Origin: changes.Origin{Action: changes.Put, Reason: notes.Reason},
		Writes: []changes.Write{{Field: call.field(), Value: &valueWithAuthor, Condition: call.condition}},
	})
	if err != nil {
		return h.answerStoreError(call, "put", value, err)
	}
	answerBody.Version, answerBody.ETag = result.Version, changes.Tag(valueWithAuthor)
	limitsBefore, oldText := answerBody.BaseLimits, ""
	if oldValue := result.OldValues[0]; oldValue != nil {
		oldText = *oldValue
		answerBody.OldOverride = storedJSON(oldValue)
		limitsBefore = cmp.Or(h.replacedState(oldState, call.field(), oldText).Limits, limitsBefore)
	}
	h.auditChange(call, "put", oldText, value, limitsBefore, &answerBody)
	return okAnswer(answerBody)
}

// losesLongerValue reports whether a limit with an end replaces a limit that ends later or never, such as the contract of a
// customer. oldState may be nil. It returns false for a switch and for shadow mode.
func losesLongerValue(oldState, newState *override.State) bool {
	isLimit := newState.Kind == override.KindOverride || newState.Kind == override.KindRule
	return isLimit && oldState != nil && !newState.ExpiresAt.IsZero() &&
		(oldState.ExpiresAt.IsZero() || oldState.ExpiresAt.After(newState.ExpiresAt))
}

func (h *handler) store(call *call, change changes.Change) (changes.Result, error) {
	ctx, cancel := context.WithTimeout(call.Context(), storeTimeout)
	defer cancel()
	change.Author, change.Address = call.caller.Name, call.RemoteAddr
	change.ChangedAt = time.Now().UTC().Truncate(time.Millisecond)
	return h.options.Overrides.MakeChange(ctx, change)
}

func (h *handler) deleteField(call *call) answer {
	oldState := h.findState(call.field())
	isConditional := call.condition.Tag != ""
	call.condition.Exists = true
	result, err := h.store(call, changes.Change{
		Origin: changes.Origin{Action: changes.Delete, Reason: call.reason},
		Writes: []changes.Write{{Field: call.field(), Condition: call.condition}},
	})
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) && conflict.CurrentValue == nil && !isConditional {
		return noFieldAnswer(call)
	}
	if err != nil {
		return h.answerStoreError(call, "delete", "", err)
	}
	oldValue := *result.OldValues[0]
	oldState = h.replacedState(oldState, call.field(), oldValue)
	deletedOverride := Override{
		Kind: call.kind, Target: call.target(), State: Deleted, Version: result.Version, OldOverride: storedJSON(&oldValue), Path: oldState.Path,
		BaseLimits: cmp.Or(oldState.Limits, oldState.BaseLimits), Limits: oldState.BaseLimits, Counters: countersWord(oldState),
	}
	h.auditChange(call, "delete", oldValue, "", deletedOverride.BaseLimits, &deletedOverride, "reason", call.reason)
	return okAnswer(deletedOverride)
}

func (h *handler) auditChange(call *call, action, oldText, newText, limitsBefore string, o *Override, moreAttrs ...string) {
	h.audit(call, action, append([]string{
		"old", override.RemoveAuthor(oldText), "new", newText, "path", o.Path, "limits_before", limitsBefore, "limits", o.Limits, "counters", o.Counters,
	}, moreAttrs...)...)
}

// replacedState returns the state of the value that a change has replaced. earlierState is the state
// that was read before the change. Another caller may have changed the value after the read.
func (h *handler) replacedState(earlierState *override.State, field, oldText string) *override.State {
	if earlierState != nil && earlierState.Value == oldText {
		return earlierState
	}
	state := h.options.Overrides.DryRun(field, oldText)
	return &state
}

// answerStoreError audits and answers a change with a condition that does not hold, or a change that Redis may not have
// stored.
func (h *handler) answerStoreError(call *call, action, value string, err error) answer {
	if conflict := (*changes.ConflictError)(nil); errors.As(err, &conflict) {
		h.audit(call, action, "outcome", "refused", "new", value, "problem", "the value has changed since the caller read it")
		return h.answerConflict(conflict)
	}
	outcome, text := "unknown", "change possibly not stored"
	if errors.Is(err, changes.ErrNotSent) {
		outcome, text = "refused", "change not stored"
	}
	h.audit(call, action, "outcome", outcome, "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, text+"; repeat the call. While Redis is down, shadow_mode: true in a rule of the limits file stops its denials (more ways: docs/operations.md#stop-all-denials-now): %s", err)
}

// Conflict is the answer to a change whose If-Match or If-None-Match does not hold.
type Conflict struct {
	Problems []string  `json:"problems"`
	Current  *Override `json:"current,omitempty"` // the value in force
}

// tagPattern matches a strong ETag.
var tagPattern = regexp.MustCompile(`^"([^" ]+)"$`)

func (c *call) readCondition() error {
	if values := c.Header.Values("If-Match"); len(values) > 0 {
		text := strings.TrimSpace(strings.Join(values, ","))
		match := tagPattern.FindStringSubmatch(text)
		switch {
		case text == "*":
			c.condition.Exists = true
		case match == nil:
			return fmt.Errorf(`If-Match: got %s, want * or one ETag in quotes, such as "%s"`, truncate(text), changes.Tag(""))
		default:
			c.condition.Tag = match[1]
		}
	}
	if values := c.Header.Values("If-None-Match"); len(values) > 0 {
		if text := strings.Join(values, ","); strings.TrimSpace(text) != "*" {
			return fmt.Errorf("If-None-Match: got %s, want *", truncate(text))
		}
		c.condition.Absent = true
	}
	return nil
}

func (h *handler) answerConflict(conflict *changes.ConflictError) answer {
	kind, target := override.SplitField(conflict.Field)
	var body Conflict
	text := "no value is set, or the end of the value has passed"
	if conflict.CurrentValue != nil {
		state := h.options.Overrides.DryRun(conflict.Field, *conflict.CurrentValue)
		currentOverride := overrideAnswer(&state)
		body.Current = &currentOverride
		text = "the value has an unknown author"
		if currentOverride.SetBy != "" {
			text = currentOverride.SetBy + " set the value at " + currentOverride.SetAt
			if currentOverride.Reason != "" {
				text += fmt.Sprintf(", reason %q", currentOverride.Reason)
			}
		}
		if currentOverride.Limits != "" {
			text += "; limits now: " + currentOverride.Limits
		}
	}
	body.Problems = []string{strings.TrimSpace(string(kind)+" "+target) + ": " + text + ". Nothing was changed; read the value again before you repeat the call"}
	return answer{code: http.StatusPreconditionFailed, body: body}
}
