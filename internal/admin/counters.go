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
	Limits     *descriptors.Store     // in force
	Layer      backend.Layer          // of the service; reads and resets counters
	Prefixes   backend.PrefixResetter // nil if counters can't be reset by prefix
	PerReplica bool                   // each replica has its own counters

	// PublishReset sends the target of a reset counter to the other replicas. It is nil if they can't be reached.
	PublishReset func(ctx context.Context, target string) error

	Now func() time.Time // default time.Now
}

// counter is a counter, which has a state for each limit of its rule.
type counter struct {
	target descriptors.Target
	rule   *descriptors.Rule
	key    []byte
}

// limited returns the limits of the rule that are not unlimited.
func (ctr *counter) limited() []*descriptors.RateLimit {
	return slices.DeleteFunc(slices.Clone(ctr.rule.Limits), func(l *descriptors.RateLimit) bool { return l.Unlimited })
}

// newCounter returns the counter of requests with the keys and values of t, or nil if they have no limit.
func newCounter(limits *descriptors.Config, t descriptors.Target) *counter {
	if d := limits.Domain(t.Domain); d != nil {
		if rule := d.Match(t.Entries); rule != nil {
			return &counter{t, rule, rule.AppendKey(nil, t.Domain, t.Entries)}
		}
	}
	return nil
}

// hits returns a hit for each limit that is not unlimited.
func (ctr *counter) hits(n int64) []backend.Hit {
	var hits []backend.Hit
	for _, l := range ctr.limited() {
		hits = append(hits, backend.Hit{Key: ctr.key, Limit: l.Limit, N: n})
	}
	return hits
}

// findCounter returns the counter of a call. Without a counter, it returns nil and the answer to the call.
func (h *handler) findCounter(c *call) (*counter, answer) {
	t, hasAllValues, err := descriptors.ParseRequestTarget(c.target())
	switch {
	case err != nil:
		return nil, problem(http.StatusBadRequest, "%s", err)
	case c.Method == http.MethodDelete && !hasAllValues:
		return nil, problem(http.StatusBadRequest, "target: got a key without a value; a reset is for one value of each key, want %s for the empty value", truncate(t.RequestString()))
	}
	limits := h.options.Counters.Limits.Load()
	if limits == nil {
		return nil, problem(http.StatusServiceUnavailable, "no limits are loaded")
	}
	if limits.Domain(t.Domain) == nil {
		return nil, problem(http.StatusNotFound, "unknown domain %q; loaded domains: %s", truncate(t.Domain), domainList(limits))
	}
	ctr := newCounter(limits, t)
	if ctr == nil {
		return nil, problem(http.StatusNotFound, "no descriptor with a limit matches requests with %q; the target must have all keys and values of a request, in their order", truncate(t.String()))
	}
	return ctr, answer{}
}

func domainList(limits *descriptors.Config) string {
	const maxNames = 20
	var names []string
	for _, d := range limits.Domains() {
		names = append(names, fmt.Sprintf("%q", truncate(d.Name)))
	}
	if len(names) > maxNames {
		names = append(names[:maxNames], "and more")
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func (h *handler) getCounter(c *call) answer {
	ctr, rejection := h.findCounter(c)
	if ctr == nil {
		return rejection
	}
	limits, err := h.readLimits(c.Context(), ctr)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not read: %s", err)
	}
	body := ctr.answer(limits)
	if slices.ContainsFunc(limits, func(l Limit) bool { return l.CachedDenial != nil && !l.Over }) {
		body.Note = "this replica still denies hits from memory, although the counter has hits left; a reset makes all replicas forget their denials"
	}
	return ok(body)
}

func (h *handler) resetCounter(c *call) answer {
	ctr, rejection := h.findCounter(c)
	if ctr == nil {
		return rejection
	}
	limitsBefore, err := h.readLimits(c.Context(), ctr)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not reset: %s", err)
	}
	if slices.ContainsFunc(limitsBefore, func(l Limit) bool { return l.Degraded }) {
		return problem(http.StatusServiceUnavailable, "counter not reset: the backend is down, so the counter keeps its value")
	}
	hits, now := ctr.hits(-limit.MaxHits), h.options.Counters.Now() // the largest refund gives back all that is spent
	results := make([]backend.Result, len(hits))
	h.options.Counters.Layer.Take(c.Context(), now, hits, results)
	isPublished := h.publishReset(c, ctr.target.String())
	if failure := ctr.resetFailure(results); failure != "" { // the reset may have happened in part
		h.audit(c, "reset", "outcome", "unknown", "path", ctr.rule.Path, "error", failure)
		return problem(http.StatusServiceUnavailable, "%s", failure)
	}
	peeks := make([]backend.Peek, len(results))
	for i := range results {
		peeks[i].Result = results[i]
	}
	limitsAfter := ctr.limits(now, peeks)
	reset := Reset{Counter: ctr.answer(limitsAfter), LimitsBefore: limitsBefore, Published: isPublished}
	notes := h.unreached(isPublished)
	isInstance := func(l Limit) bool { return l.Scope == limit.Instance.String() }
	if !h.options.Counters.PerReplica && slices.ContainsFunc(limitsAfter, isInstance) {
		notes = append(notes, "limits per instance were reset on this replica only")
	}
	reset.Note = strings.Join(notes, "; ")
	h.audit(c, "reset", "path", ctr.rule.Path, "before", spentList(limitsBefore), "after", spentList(limitsAfter))
	return ok(reset)
}

// resetFailure returns which limits are reset and which may not be. It is empty if all are reset.
func (ctr *counter) resetFailure(results []backend.Result) string {
	var resetLimits, otherLimits []string
	reason := "the backend is down"
	for i, l := range ctr.limited() {
		switch r := &results[i]; {
		case r.Err != nil:
			reason = r.Err.Error()
			otherLimits = append(otherLimits, l.String())
		case r.Degraded():
			otherLimits = append(otherLimits, l.String())
		default:
			resetLimits = append(resetLimits, l.String())
		}
	}
	others := fmt.Sprintf("not known to be reset: %s (%s)", strings.Join(otherLimits, " and "), reason)
	switch {
	case len(otherLimits) == 0:
		return ""
	case len(resetLimits) == 0:
		return "counter " + others
	}
	return "counter reset in part: " + strings.Join(resetLimits, " and ") + "; " + others
}

// publishReset sends the reset of a target, or of allCounters, to the other replicas. It reports
// whether it succeeded.
func (h *handler) publishReset(c *call, target string) bool {
	if h.options.Counters.PublishReset == nil || h.options.Counters.PerReplica {
		return false
	}
	if err := h.options.Counters.PublishReset(c.Context(), target); err != nil {
		h.options.Log.Warn("reset not published; other replicas can deny until their remembered denials end", "target", truncate(c.target()), "error", err)
		return false
	}
	return true
}

// readLimits returns the limits of a counter, with the denials of a single hit that this replica remembers.
// It charges nothing.
func (h *handler) readLimits(ctx context.Context, ctr *counter) ([]Limit, error) {
	hits, now := ctr.hits(1), h.options.Counters.Now()
	peeks := make([]backend.Peek, len(hits))
	h.options.Counters.Layer.Peek(ctx, now, hits, peeks)
	for i := range peeks {
		if err := peeks[i].Err; err != nil {
			return nil, err
		}
	}
	return ctr.limits(now, peeks), nil
}

func (ctr *counter) answer(limits []Limit) Counter {
	return Counter{
		Target:     ctr.target.String(),
		Path:       ctr.rule.Path,
		Key:        string(ctr.key),
		ShadowMode: ctr.rule.InShadow(ctr.key),
		Limits:     limits,
	}
}

// limits returns the limits of the rule at now. peeks has the result for each hit of ctr.hits.
func (ctr *counter) limits(now time.Time, peeks []backend.Peek) []Limit {
	all := make([]Limit, len(ctr.rule.Limits))
	for i, l := range ctr.rule.Limits {
		if l.Unlimited {
			all[i] = Limit{Limit: "unlimited", Name: l.Name, Unlimited: true}
			continue
		}
		p := peeks[0]
		peeks = peeks[1:]
		all[i] = Limit{
			Limit:        l.String(),
			Name:         l.Name,
			Tag:          l.Tag(),
			Scope:        l.Scope.String(),
			Remaining:    max(p.Remaining, 0),
			ResetSeconds: float64(p.ResetAfter) / 1e6,
			Over:         p.Remaining < 1,
			Degraded:     p.Degraded(),
		}
		if !p.Degraded() { // a degraded result is for a share of the limit
			all[i].Capacity, all[i].Spent = l.Capacity(), l.Spent(p.Result.Result)
		}
		if d := p.Denial; d != nil {
			all[i].CachedDenial = &CachedDenial{Source: d.Source.String(), Since: d.Since.UTC(), EndsInSeconds: d.Until.Sub(now).Seconds()}
		}
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
