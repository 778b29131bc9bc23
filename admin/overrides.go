package admin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/override"
)

// storeTimeout bounds how long storing a change takes, so that the caller still waits for
// the answer.
const storeTimeout = 2 * time.Second

// overridesOff returns the answer if there is no store of overrides.
func overridesOff() (int, any) {
	return problem(http.StatusNotImplemented, "overrides are off; set OVERRIDES_ENABLED=true to store them in Redis")
}

// state returns the state of the override of a target, or nil if there is none.
func (h *handler) state(target string) *override.State {
	all := h.o.Overrides.States()
	for i := range all {
		if all[i].Target == target {
			return &all[i]
		}
	}
	return nil
}

func (h *handler) getOverrides(c *call) (int, any) {
	if h.o.Overrides == nil {
		return overridesOff()
	}
	if c.query.Has("target") {
		s := h.state(c.target())
		if s == nil {
			return noOverride(c)
		}
		return http.StatusOK, overrideAnswer(s)
	}
	list := List{Overrides: []Override{}}
	for _, s := range h.o.Overrides.States() {
		list.Overrides = append(list.Overrides, overrideAnswer(&s))
	}
	return http.StatusOK, list
}

func noOverride(c *call) (int, any) {
	return problem(http.StatusNotFound, "no override has target %q", truncate(c.target()))
}

func (h *handler) putOverride(c *call) (int, any) {
	if h.o.Overrides == nil {
		return overridesOff()
	}
	dryRun := false
	if c.query.Has("dry_run") {
		var err error
		if dryRun, err = strconv.ParseBool(c.query.Get("dry_run")); err != nil {
			return problem(http.StatusBadRequest, "dry_run: got %q, want true or false", truncate(c.query.Get("dry_run")))
		}
	}
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

	result := h.o.Overrides.DryRun(c.target(), value)
	if result.Problem == nil && result.Expired {
		result.Problem = fmt.Errorf("expires_at %s is in the past", result.Expires.UTC().Format(time.RFC3339))
	}
	if answer := overrideAnswer(&result); result.Problem != nil || dryRun {
		answer.DryRun = dryRun
		if result.Problem != nil {
			return http.StatusBadRequest, answer
		}
		return http.StatusOK, answer
	}

	before := h.state(c.target())
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	old, existed, err := h.o.Overrides.Put(ctx, c.target(), value)
	if err != nil {
		return h.notStored(c, "put", value, err)
	}
	after := h.state(c.target())
	if after == nil || after.Value != value { // another caller has changed it again
		after = &result
	}
	answer := overrideAnswer(after)
	answer.AlsoRejected = overrideAnswer(&result).AlsoRejected
	if existed {
		answer.OldOverride = rawJSON(old)
	}
	limitsBefore := after.BaseLimits
	if existed {
		limitsBefore = cmp.Or(h.replaced(before, c.target(), old).Limits, limitsBefore)
	}
	h.audit(c, "put", "old", old, "new", value, "path", answer.Path, "limits_before", limitsBefore, "limits", answer.Limits, "counters", answer.Counters)
	return http.StatusOK, answer
}

func (h *handler) deleteOverride(c *call) (int, any) {
	if h.o.Overrides == nil {
		return overridesOff()
	}
	before := h.state(c.target())
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	old, existed, err := h.o.Overrides.Delete(ctx, c.target())
	switch {
	case err != nil:
		return h.notStored(c, "delete", "", err)
	case !existed:
		return noOverride(c)
	}
	before = h.replaced(before, c.target(), old)
	answer := Override{
		Target: c.target(), State: Deleted, OldOverride: rawJSON(old), Path: before.Path,
		BaseLimits: cmp.Or(before.Limits, before.BaseLimits), Limits: before.BaseLimits, Counters: countersWord(before),
	}
	h.audit(c, "delete", "old", old, "new", "", "path", answer.Path, "limits_before", answer.BaseLimits, "limits", answer.Limits, "counters", answer.Counters)
	return http.StatusOK, answer
}

// replaced returns the state of the override that a change has replaced. before is the state
// that was read before the change. It doesn't count if another caller was faster.
func (h *handler) replaced(before *override.State, target, old string) *override.State {
	if before != nil && before.Value == old {
		return before
	}
	state := h.o.Overrides.DryRun(target, old)
	return &state
}

// notStored audits and answers a change of which it is unknown whether Redis has stored
// it.
func (h *handler) notStored(c *call, action, value string, err error) (int, any) {
	h.audit(c, action, "outcome", "unknown", "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, "change possibly not stored; repeat the call: %s", err)
}
