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

func (h *handler) getOverrides(c *call) answer {
	if c.query.Has("target") {
		s := h.state(c.target())
		if s == nil {
			return noOverride(c)
		}
		return answer{http.StatusOK, overrideAnswer(s)}
	}
	list := List{Overrides: []Override{}}
	for _, s := range h.o.Overrides.States() {
		list.Overrides = append(list.Overrides, overrideAnswer(&s))
	}
	return answer{http.StatusOK, list}
}

func noOverride(c *call) answer {
	return problem(http.StatusNotFound, "no override has target %q", truncate(c.target()))
}

func (h *handler) putOverride(c *call) answer {
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
	o := overrideAnswer(&result)
	o.DryRun = dryRun
	switch {
	case result.Problem != nil:
		return answer{http.StatusBadRequest, o}
	case dryRun:
		return answer{http.StatusOK, o}
	}

	stored := override.WithAuthor(value, c.by, time.Now())
	if len(stored) > override.MaxBytes {
		return problem(http.StatusRequestEntityTooLarge, "body with the name of the caller: want at most %d bytes", override.MaxBytes)
	}
	o.setAuthor(stored)
	before := h.state(c.target())
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	old, existed, err := h.o.Overrides.Put(ctx, c.target(), stored)
	if err != nil {
		return h.notStored(c, "put", value, err)
	}
	limitsBefore := o.BaseLimits
	if existed {
		o.OldOverride = rawJSON(override.WithoutAuthor(old))
		limitsBefore = cmp.Or(h.replaced(before, c.target(), old).Limits, limitsBefore)
	}
	h.auditChange(c, "put", old, value, limitsBefore, &o)
	return answer{http.StatusOK, o}
}

func (h *handler) deleteOverride(c *call) answer {
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
	deleted := Override{
		Target: c.target(), State: Deleted, OldOverride: rawJSON(override.WithoutAuthor(old)), Path: before.Path,
		BaseLimits: cmp.Or(before.Limits, before.BaseLimits), Limits: before.BaseLimits, Counters: countersWord(before),
	}
	h.auditChange(c, "delete", old, "", deleted.BaseLimits, &deleted)
	return answer{http.StatusOK, deleted}
}

func (h *handler) auditChange(c *call, action, old, value, limitsBefore string, o *Override) {
	h.audit(c, action, "old", override.WithoutAuthor(old), "new", value, "path", o.Path, "limits_before", limitsBefore, "limits", o.Limits, "counters", o.Counters)
}

// replaced returns the state of the override that a change has replaced. before is the state
// that was read before the change, which is not the replaced one if another caller was
// faster.
func (h *handler) replaced(before *override.State, target, old string) *override.State {
	if before != nil && before.Value == old {
		return before
	}
	state := h.o.Overrides.DryRun(target, old)
	return &state
}

// notStored audits and answers a change of which it is unknown whether Redis has stored
// it.
func (h *handler) notStored(c *call, action, value string, err error) answer {
	h.audit(c, action, "outcome", "unknown", "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, "change possibly not stored; repeat the call: %s", err)
}
