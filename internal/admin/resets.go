package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Bounds of the counters that a reset by prefix may reset, and of its time.
const (
	DefaultMaxCounters = 10_000
	MaxCounters        = 1_000_000
	prefixTimeout      = time.Minute
)

// resetCounters resets the counters of ?target= or of ?prefix=. One of them must be given, so that a
// descriptor is never mistaken for a prefix.
func (h *handler) resetCounters(c *call) answer {
	hasTarget, hasPrefix := c.query.Has("target"), c.query.Has("prefix")
	switch {
	case hasTarget == hasPrefix:
		return problem(http.StatusBadRequest, "counters: want DOMAIN|KEY=VALUE either as target, for the counters of one descriptor, or as prefix, for all counters that start with these entries")
	case hasPrefix:
		return h.resetPrefix(c)
	case c.query.Has("max") || c.query.Has("dry_run"):
		return problem(http.StatusBadRequest, "max and dry_run are for a prefix; a target has the counters of one descriptor")
	}
	return h.resetCounter(c)
}

func (h *handler) resetPrefix(c *call) answer {
	p, err := descriptors.ParseCounterPrefix(c.query.Get("prefix"))
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	if h.options.Counters.Prefixes == nil {
		return problem(http.StatusNotImplemented, "this service can't reset counters by prefix")
	}
	start, endsAnywhere := p.KeyStart()
	ctx, cancel := context.WithTimeout(c.Context(), prefixTimeout)
	defer cancel()
	result, err := h.options.Counters.Prefixes.ResetPrefix(ctx, backend.KeyPrefix{Start: start, EndsAnywhere: endsAnywhere}, int(c.maxCounters), c.isDryRun)
	if errors.Is(err, backend.ErrTooManyCounters) {
		return problem(http.StatusConflict, "%s; nothing was reset; want a longer prefix, or max up to %d", err, MaxCounters)
	}
	if err != nil {
		if !c.isDryRun {
			h.forgetDenials(c)
			h.audit(c, "reset_prefix", "outcome", "unknown", "error", err.Error())
		}
		return problem(http.StatusServiceUnavailable, "counters not reset, or only in part: %s", err)
	}
	reset := ResetByPrefix{Prefix: p.String(), DryRun: c.isDryRun, Unclear: result.Unclear}
	counters := "unknown"
	if result.Counters >= 0 {
		reset.Counters = &result.Counters
		counters = strconv.Itoa(result.Counters)
	}
	var notes []string
	if result.Counters < 0 {
		notes = append(notes, "this process keeps no names of counters, so their number is unknown")
	}
	if result.Unclear > 0 {
		notes = append(notes, fmt.Sprintf("%d counters have names that are too long to tell whether they have the prefix; they were left alone; reset them one by one, or use a shorter prefix", result.Unclear))
	}
	if !c.isDryRun {
		reset.Published = h.forgetDenials(c)
		notes = append(notes, h.unreached(reset.Published)...)
		h.audit(c, "reset_prefix", "counters", counters)
	}
	reset.Note = strings.Join(notes, "; ")
	return ok(reset)
}

// unreached says which replicas a reset did not reach.
func (h *handler) unreached(isPublished bool) []string {
	switch {
	case h.options.Counters.PerReplica:
		return []string{"each replica has its own counters; only those of this replica were reset"}
	case !isPublished:
		return []string{"other replicas were not notified; they may deny until their cached denials end"}
	}
	return nil
}

// forgetDenials makes the caches of all replicas forget all counters. It reports whether the other
// replicas were notified.
func (h *handler) forgetDenials(c *call) bool {
	h.options.Counters.Layer.Forget(nil)
	return h.publishReset(c, allCounters)
}

// Resets makes the Layers of this replica forget the counters that another replica reset.
type Resets struct {
	Limits *descriptors.Store // the limits in force
	Layer  backend.Layer      // of the service
}

// allCounters is the target that a replica publishes after a reset by prefix. It is no valid target,
// so a replica of an earlier version ignores it.
const allCounters = "*"

// DropCounter drops a counter. target is the target that the other replica published.
func (r Resets) DropCounter(target string) {
	if target == allCounters {
		r.DropAll()
		return
	}
	t, err := descriptors.ParseTarget(target)
	limits := r.Limits.Load()
	if err != nil || limits == nil {
		return
	}
	ctr := newCounter(limits, t)
	if ctr == nil {
		return
	}
	for _, h := range ctr.hits(0) {
		r.Layer.Forget(&h)
	}
}

// DropAll drops all counters. It is for a reset by prefix, and for a replica that may have missed resets.
func (r Resets) DropAll() { r.Layer.Forget(nil) }
