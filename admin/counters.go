package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// Counters are the options for endpoints of counters.
type Counters struct {
	// Limits are the limits in force.
	Limits *descriptors.Store

	// Uncached is the backend without caches. It reads counters.
	Uncached backend.Limiter

	// Limiter is the limiter of the service, with all caches. It resets counters, so that
	// its caches learn of the reset.
	Limiter backend.Limiter

	// PerReplica reports that each replica has its own counters.
	PerReplica bool

	// PublishReset sends the target of a reset counter to the other replicas. It is nil if
	// they can't be reached.
	PublishReset func(ctx context.Context, target string) error

	// Now returns the time; default time.Now.
	Now func() time.Time
}

// counter is the counter that a call is about.
type counter struct {
	target descriptors.Target
	rule   *descriptors.Rule
	key    []byte
}

// findCounter returns the counter of a call. Without a counter, it returns nil and the
// answer to the call.
func (h *handler) findCounter(c *call) (found *counter, code int, answer any) {
	t, err := descriptors.ParseTarget(c.target())
	if err != nil {
		code, answer = problem(http.StatusBadRequest, "%s", err)
		return nil, code, answer
	}
	limits := h.o.Counters.Limits.Load()
	if limits == nil {
		code, answer = problem(http.StatusServiceUnavailable, "no limits are loaded")
		return nil, code, answer
	}
	d := limits.Domain(t.Domain)
	if d == nil {
		code, answer = problem(http.StatusNotFound, "unknown domain %q; %s", truncate(t.Domain), domainList(limits))
		return nil, code, answer
	}
	rule := d.Match(t.Entries)
	if rule == nil {
		code, answer = problem(http.StatusNotFound, "no descriptor with a limit matches requests with %q; all keys and values count, in their order", truncate(t.String()))
		return nil, code, answer
	}
	return &counter{t, rule, rule.AppendKey(nil, t.Domain, t.Entries)}, 0, nil
}

// domainList names the loaded domains.
func domainList(limits *descriptors.Config) string {
	const maxNames = 20
	var names []string
	for _, d := range limits.Domains() {
		if len(names) == maxNames {
			names = append(names, "and more")
			break
		}
		names = append(names, fmt.Sprintf("%q", truncate(d.Name)))
	}
	if len(names) == 0 {
		return "no domain is loaded"
	}
	return "loaded are " + strings.Join(names, ", ")
}

func (h *handler) getCounter(c *call) (int, any) {
	found, code, answer := h.findCounter(c)
	if found == nil {
		return code, answer
	}
	limits, err := h.read(c.Context(), found)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not read: %s", err)
	}
	return http.StatusOK, found.answer(limits)
}

func (h *handler) resetCounter(c *call) (int, any) {
	found, code, answer := h.findCounter(c)
	if found == nil {
		return code, answer
	}
	before, err := h.read(c.Context(), found)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not reset: %s", err)
	}
	const backendDown = "counter not reset: the backend is down, and its counter keeps its value"
	if slices.ContainsFunc(before, func(l Limit) bool { return l.Degraded }) {
		return problem(http.StatusServiceUnavailable, backendDown)
	}
	hits := refunds(found.rule, found.key)
	results := make([]backend.Result, len(hits))
	h.o.Counters.Limiter.Take(c.Context(), h.o.Counters.Now(), hits, results)
	for i := range results {
		if err := results[i].Err; err != nil {
			return h.resetFailed(c, found, "counter not reset, or only in part: "+err.Error())
		}
		if results[i].Degraded() {
			return h.resetFailed(c, found, backendDown)
		}
	}
	after := found.limits(results)
	reset := Reset{Counter: found.answer(after), Before: before, Published: h.publish(c, found)}
	switch {
	case h.o.Counters.PerReplica:
		reset.Note = "each replica has its own counters; only this replica reset its counter"
	case !reset.Published:
		reset.Note = "other replicas were not notified; they may deny until their cached denials end"
	}
	if !h.o.Counters.PerReplica && slices.ContainsFunc(after, func(l Limit) bool { return l.Scope == limit.Instance.String() }) {
		reset.Note = strings.TrimPrefix(reset.Note+"; ", "; ") + "limits per instance were reset on this replica only"
	}
	h.audit(c, "reset", "path", found.rule.Path, "before", spentList(before), "after", spentList(after))
	return http.StatusOK, reset
}

// resetFailed audits, publishes and answers a reset that may have happened in part.
func (h *handler) resetFailed(c *call, found *counter, reason string) (int, any) {
	h.publish(c, found)
	h.audit(c, "reset", "outcome", "unknown", "path", found.rule.Path, "error", reason)
	return problem(http.StatusServiceUnavailable, "%s", reason)
}

// publish sends a reset to the other replicas and reports whether it succeeded.
func (h *handler) publish(c *call, found *counter) bool {
	if h.o.Counters.PublishReset == nil || h.o.Counters.PerReplica {
		return false
	}
	if err := h.o.Counters.PublishReset(c.Context(), found.target.String()); err != nil {
		h.o.Log.Warn("reset not published to other replicas", "target", truncate(c.target()), "error", err)
		return false
	}
	return true
}

// read returns the limits of a counter without charging it.
func (h *handler) read(ctx context.Context, found *counter) ([]Limit, error) {
	hits := refunds(found.rule, found.key)
	for i := range hits {
		hits[i].N = 0
	}
	results := make([]backend.Result, len(hits))
	h.o.Counters.Uncached.Take(ctx, h.o.Counters.Now(), hits, results)
	for i := range results {
		if err := results[i].Err; err != nil {
			return nil, err
		}
	}
	return found.limits(results), nil
}

func (found *counter) answer(limits []Limit) Counter {
	return Counter{
		Target:     found.target.String(),
		Path:       found.rule.Path,
		Key:        string(found.key),
		ShadowMode: found.rule.ShadowMode,
		Limits:     limits,
	}
}

// limits returns the limits of the rule. results has one result for each limit that
// counts.
func (found *counter) limits(results []backend.Result) []Limit {
	all := make([]Limit, 0, len(found.rule.Limits))
	for _, l := range found.rule.Limits {
		if l.Unlimited {
			all = append(all, Limit{Limit: "unlimited", Name: l.Name, Unlimited: true})
			continue
		}
		r := results[0]
		results = results[1:]
		answer := Limit{
			Limit:        l.String(),
			Name:         l.Name,
			Tag:          l.Tag(),
			Scope:        l.Scope.String(),
			Remaining:    max(r.Remaining, 0),
			ResetSeconds: float64(r.ResetAfter) / 1e6,
			Over:         r.Remaining < 1,
			Degraded:     r.Degraded(),
		}
		if !r.Degraded() { // a degraded result is for a share of the limit
			answer.Capacity, answer.Spent = l.Capacity(), l.Spent(r.Result)
		}
		all = append(all, answer)
	}
	return all
}

// spentList describes what is spent of each limit, for the audit log.
func spentList(limits []Limit) string {
	var texts []string
	for _, l := range limits {
		if !l.Unlimited {
			texts = append(texts, fmt.Sprintf("%d spent of %s", l.Spent, l.Limit))
		}
	}
	return cmp.Or(strings.Join(texts, "; "), "unlimited")
}
