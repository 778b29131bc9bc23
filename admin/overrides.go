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

	"github.com/seed-81f232ab/rls/descriptors"
)

// storeTimeout bounds storing a change, so that the caller is still there to be told.
const storeTimeout = 2 * time.Second

// noOverrides is the answer where there is no place to keep them.
func noOverrides() (int, any) {
	return problem(http.StatusNotImplemented, "overrides are off; OVERRIDES_ENABLED=true keeps them in Redis")
}

// state is what became of the override of a target; nil if there is none.
func (h *handler) state(target string) *descriptors.OverrideState {
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
		return noOverrides()
	}
	if c.query.Has("target") {
		s := h.state(c.target())
		if s == nil {
			return noneOf(c)
		}
		return http.StatusOK, ofState(s)
	}
	list := List{Overrides: []Override{}}
	for _, s := range h.o.Overrides.States() {
		list.Overrides = append(list.Overrides, ofState(&s))
	}
	return http.StatusOK, list
}

func noneOf(c *call) (int, any) {
	return problem(http.StatusNotFound, "there is no override of %q", cut(c.target()))
}

func (h *handler) putOverride(c *call) (int, any) {
	if h.o.Overrides == nil {
		return noOverrides()
	}
	dryRun := false
	if c.query.Has("dry_run") {
		var err error
		if dryRun, err = strconv.ParseBool(c.query.Get("dry_run")); err != nil {
			return problem(http.StatusBadRequest, "dry_run must be true or false")
		}
	}
	if n := len(c.target()); n > MaxTarget {
		return problem(http.StatusBadRequest, "the target has %d bytes; %d are the most", n, MaxTarget)
	}
	body, err := io.ReadAll(io.LimitReader(c.Body, descriptors.MaxOverrideBytes+1))
	switch {
	case err != nil:
		return problem(http.StatusBadRequest, "the body can't be read: %s", err)
	case len(body) > descriptors.MaxOverrideBytes:
		return problem(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", descriptors.MaxOverrideBytes)
	}
	value := strings.TrimSpace(string(body))

	tried := h.o.Overrides.Try(c.target(), value)
	if tried.Problem == nil && tried.Expired {
		tried.Problem = fmt.Errorf("expires_at %s is over already", tried.Expires.UTC().Format(time.RFC3339))
	}
	if answer := ofState(&tried); tried.Problem != nil || dryRun {
		answer.DryRun = dryRun
		if tried.Problem != nil {
			return http.StatusBadRequest, answer
		}
		return http.StatusOK, answer
	}

	before := h.state(c.target())
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	old, had, err := h.o.Overrides.Put(ctx, c.target(), value)
	if err != nil {
		return h.notStored(c, "put", value, err)
	}
	after := h.state(c.target())
	if after == nil { // gone again
		after = &tried
	}
	answer := ofState(after)
	answer.AlsoRefused = ofState(&tried).AlsoRefused
	if had {
		answer.Old = raw(old)
	}
	was := after.Was
	if before != nil {
		was = cmp.Or(before.Is, was)
	}
	h.audit(c, "put", "old", old, "new", value, "path", answer.Path, "was", was, "is", answer.Is)
	return http.StatusOK, answer
}

func (h *handler) deleteOverride(c *call) (int, any) {
	if h.o.Overrides == nil {
		return noOverrides()
	}
	before := h.state(c.target())
	ctx, cancel := context.WithTimeout(c.Context(), storeTimeout)
	defer cancel()
	old, had, err := h.o.Overrides.Delete(ctx, c.target())
	switch {
	case err != nil:
		return h.notStored(c, "delete", "", err)
	case !had:
		return noneOf(c)
	}
	answer := Override{Target: c.target(), State: Deleted, Old: raw(old)}
	if before != nil {
		answer.Path, answer.Was, answer.Is = before.Path, cmp.Or(before.Is, before.Was), before.Was
	}
	h.audit(c, "delete", "old", old, "new", "", "path", answer.Path, "was", answer.Was, "is", answer.Is)
	return http.StatusOK, answer
}

// notStored is the answer where it isn't known whether Redis took a change. It is
// audited, as it may have.
func (h *handler) notStored(c *call, action, value string, err error) (int, any) {
	h.audit(c, action, "outcome", "unknown", "new", value, "error", err.Error())
	return problem(http.StatusServiceUnavailable, "the change may not be stored; doing it again does no harm: %s", err)
}
