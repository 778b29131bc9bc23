package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// Counters are the options for endpoints of counters.
type Counters struct {
	Limits     *descriptors.Store     // the limits in force
	Layer      backend.Layer          // the layer of the service, which reads and resets counters
	Prefixes   backend.PrefixResetter // nil if the backend can't reset counters by prefix
	PerReplica bool                   // each replica has its own counters
	Now        func() time.Time       // the clock of the service

	// PublishReset sends the target of a reset counter to the other replicas. It is nil if this replica can't reach them.
	PublishReset func(ctx context.Context, target string) error
}

// targetCounter is the counter of a target. It has a state for each limit of its rule.
type targetCounter struct {
	target descriptors.Target
	rule   *descriptors.Rule
	key    []byte
}

// countedLimits returns the limits of the rule, except the unlimited limits, which have no state.
func (counter *targetCounter) countedLimits() []*descriptors.RateLimit {
	return slices.DeleteFunc(slices.Clone(counter.rule.Limits), func(l *descriptors.RateLimit) bool { return l.Unlimited })
}

// newCounter returns the counter of requests with the keys and values of target, or nil if no rule limits such requests.
func newCounter(limits *descriptors.Config, target descriptors.Target) *targetCounter {
	if d := limits.Domain(target.Domain); d != nil {
		if rule := d.Match(target.Entries); rule != nil {
			return &targetCounter{target, rule, rule.AppendKey(nil, target.Domain, target.Entries)}
		}
	}
	return nil
}

func (counter *targetCounter) hits(n int64) []backend.Hit {
	var hits []backend.Hit
	for _, l := range counter.countedLimits() {
		hits = append(hits, backend.Hit{Key: counter.key, Limit: l.Limit, N: n})
	}
	return hits
}

// findCounter returns the counter of a call. If the call has no counter, findCounter returns nil and the answer to the call.
func (h *handler) findCounter(call *call) (*targetCounter, answer) {
	target, hasAllValues, err := descriptors.ParseRequestTarget(call.target())
	switch {
	case err != nil:
		return nil, problem(http.StatusBadRequest, "%s", err)
	case call.Method == http.MethodDelete && !hasAllValues:
		return nil, problem(http.StatusBadRequest, "target: got a key without a value; a reset is for one value of each key, want %s for the empty value", truncate(target.RequestString()))
	}
	limits := h.options.Counters.Limits.Load()
	if limits == nil {
		return nil, problem(http.StatusServiceUnavailable, "no limits are loaded")
	}
	domain := limits.Domain(target.Domain)
	if domain == nil {
		return nil, problem(http.StatusNotFound, "unknown domain %q; loaded domains: %s", truncate(target.Domain), domainList(limits))
	}
	counter := newCounter(limits, target)
	if counter == nil {
		if s := domain.OffSwitchFor(target.Entries); s != nil {
			return nil, problem(http.StatusNotFound, "%q has no limits now: %s is off%s; end the switch (rls limits on), or reset with --prefix", truncate(target.String()), s.Path, s.Notes)
		}
		return nil, problem(http.StatusNotFound, "no descriptor with a limit matches requests with %q; the target must have all keys and values of a request, in their order", truncate(target.String()))
	}
	return counter, answer{}
}

func domainList(limits *descriptors.Config) string {
	const maxNames = 20
	quotedName := func(d *descriptors.Domain) string { return strconv.Quote(truncate(d.Name)) }
	return cmp.Or(fields.JoinFirst(limits.Domains(), maxNames, ", ", quotedName), "none")
}

func (h *handler) getCounter(call *call) answer {
	counter, rejection := h.findCounter(call)
	if counter == nil {
		return rejection
	}
	limits, err := h.readLimits(call.Context(), counter)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not read: %s", err)
	}
	body := counter.answer(limits)
	if slices.ContainsFunc(limits, func(l Limit) bool { return l.CachedDenial != nil && !l.Over }) {
		body.Note = "this replica still denies hits from memory, although the counter has hits left; a reset makes all replicas forget their denials"
	}
	return okAnswer(body)
}

func (h *handler) resetCounter(call *call) answer {
	counter, rejection := h.findCounter(call)
	if counter == nil {
		return rejection
	}
	limitsBefore, err := h.readLimits(call.Context(), counter)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "counter not reset: %s", err)
	}
	if slices.ContainsFunc(limitsBefore, func(l Limit) bool { return l.Degraded }) {
		return problem(http.StatusServiceUnavailable, "counter not reset: the backend is down, so the counter keeps its value")
	}
	hits, now := counter.hits(-limit.MaxHits), h.options.Counters.Now() // the largest refund gives all spent hits back
	results := make([]backend.Result, len(hits))
	h.options.Counters.Layer.Take(call.Context(), now, hits, results)
	isPublished := h.publishReset(call, counter.target.String())
	if failure := counter.resetFailure(results); failure != "" { // the reset may have happened in part
		h.audit(call, "reset", "outcome", "unknown", "path", counter.rule.Path, "error", failure)
		return problem(http.StatusServiceUnavailable, "%s", failure)
	}
	peeks := make([]backend.Peek, len(results))
	for i := range results {
		peeks[i].Result = results[i]
	}
	limitsAfter := counter.limits(now, peeks)
	answerBody := Reset{Counter: counter.answer(limitsAfter), LimitsBefore: limitsBefore, Published: isPublished}
	notes := h.missedReplicaNotes(isPublished)
	isPerInstance := func(l Limit) bool { return l.Scope == limit.Instance.String() }
	if !h.options.Counters.PerReplica && slices.ContainsFunc(limitsAfter, isPerInstance) {
		notes = append(notes, "limits per instance were reset on this replica only")
	}
	answerBody.Note = strings.Join(notes, "; ")
	h.audit(call, "reset", "path", counter.rule.Path, "before", spentList(limitsBefore), "after", spentList(limitsAfter))
	return okAnswer(answerBody)
}

// resetFailure returns a text with the limits that are reset, and the limits that are perhaps not reset. The text is
// empty if all limits are reset.
func (counter *targetCounter) resetFailure(results []backend.Result) string {
	var resetLimits, uncertainLimits []string
	reason := "the backend is down"
	for i, l := range counter.countedLimits() {
		if err := results[i].Err; err != nil {
			reason = err.Error()
		} else if !results[i].IsDegraded() {
			resetLimits = append(resetLimits, l.String())
			continue
		}
		uncertainLimits = append(uncertainLimits, l.String())
	}
	if len(uncertainLimits) == 0 {
		return ""
	}
	text := "counter "
	if len(resetLimits) > 0 {
		text = "counter reset in part: " + strings.Join(resetLimits, " and ") + "; "
	}
	return text + fmt.Sprintf("not known to be reset: %s (%s)", strings.Join(uncertainLimits, " and "), reason)
}

// publishReset sends the reset of a target, or of allCounters, to the other replicas. It reports whether this worked.
func (h *handler) publishReset(call *call, target string) bool {
	if h.options.Counters.PublishReset == nil || h.options.Counters.PerReplica {
		return false
	}
	if err := h.options.Counters.PublishReset(call.Context(), target); err != nil {
		h.options.Log.Warn("reset not published; other replicas can deny until their remembered denials end", "target", truncate(call.target()), "error", err)
		return false
	}
	return true
}

// readLimits returns the limits of a counter. A limit has a CachedDenial if this replica would deny a single hit from
// memory. readLimits charges nothing.
func (h *handler) readLimits(ctx context.Context, counter *targetCounter) ([]Limit, error) {
	hits, now := counter.hits(1), h.options.Counters.Now()
	peeks := make([]backend.Peek, len(hits))
	h.options.Counters.Layer.Peek(ctx, now, hits, peeks)
	for i := range peeks {
		if err := peeks[i].Err; err != nil {
			return nil, err
		}
	}
	return counter.limits(now, peeks), nil
}

func (counter *targetCounter) answer(limits []Limit) Counter {
	return Counter{
		Target:     counter.target.String(),
		Path:       counter.rule.Path,
		Key:        string(counter.key),
		ShadowMode: counter.rule.IsShadowed(counter.key),
		Limits:     limits,
	}
}

// limits returns the limits of the rule at now. peeks has the result of each hit that counter.hits returns.
func (counter *targetCounter) limits(now time.Time, peeks []backend.Peek) []Limit {
	limits := make([]Limit, len(counter.rule.Limits))
	for i, limit := range counter.rule.Limits {
		if limit.Unlimited {
			limits[i] = Limit{Limit: "unlimited", Name: limit.Name, Unlimited: true}
			continue
		}
		peek := peeks[0]
		peeks = peeks[1:]
		limits[i] = Limit{
			Limit:        limit.String(),
			Name:         limit.Name,
			Tag:          limit.Tag(),
			Scope:        limit.Scope.String(),
			Remaining:    max(peek.Remaining, 0),
			ResetSeconds: float64(peek.ResetAfter) / 1e6,
			Over:         peek.Remaining < 1,
			Degraded:     peek.IsDegraded(),
		}
		if !peek.IsDegraded() { // a degraded result is for a share of the limit
			limits[i].Capacity, limits[i].Spent = limit.Capacity(), limit.Spent(peek.Result.Result)
		}
		if d := peek.Denial; d != nil {
			limits[i].CachedDenial = &CachedDenial{Source: d.Source.String(), Since: d.FirstDenialTime.UTC(), EndsInSeconds: d.NextAskTime.Sub(now).Seconds()}
		}
	}
	return limits
}

func spentList(limits []Limit) string {
	var texts []string
	for _, l := range limits {
		if !l.Unlimited {
			texts = append(texts, fmt.Sprintf("%d spent of %s", l.Spent, l.Limit))
		}
	}
	return cmp.Or(strings.Join(texts, "; "), "unlimited")
}

// Bounds of a reset by prefix.
const (
	DefaultMaxCounters = 10_000
	MaxCounters        = 1_000_000
	prefixTimeout      = time.Minute
)

// resetCounters resets the counters of ?target= or of ?prefix=. A call must have exactly one of these parameters, so
// that rls never resets a prefix if the caller meant one descriptor.
func (h *handler) resetCounters(call *call) answer {
	hasTarget, hasPrefix := call.query.Has("target"), call.query.Has("prefix")
	switch {
	case hasTarget == hasPrefix:
		return problem(http.StatusBadRequest, "counters: want DOMAIN|KEY=VALUE either as target, for the counters of one descriptor, or as prefix, for all counters that start with these entries")
	case hasPrefix:
		return h.resetPrefix(call)
	case call.query.Has("max") || call.query.Has("dry_run"):
		return problem(http.StatusBadRequest, "max and dry_run are for a prefix; a target has the counters of one descriptor")
	}
	return h.resetCounter(call)
}

func (h *handler) resetPrefix(call *call) answer {
	prefix, err := descriptors.ParseCounterPrefix(call.query.Get("prefix"))
	if err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	if h.options.Counters.Prefixes == nil {
		return problem(http.StatusNotImplemented, "this service can't reset counters by prefix")
	}
	start, endsAnywhere := prefix.KeyStart()
	ctx, cancel := context.WithTimeout(call.Context(), prefixTimeout)
	defer cancel()
	result, err := h.options.Counters.Prefixes.ResetPrefix(ctx, backend.KeyPrefix{Start: start, EndsAnywhere: endsAnywhere}, int(call.maxCounters), call.isDryRun)
	if errors.Is(err, backend.ErrTooManyCounters) {
		return problem(http.StatusConflict, "%s; nothing was reset; want a longer prefix, or max up to %d", err, MaxCounters)
	}
	if err != nil {
		if !call.isDryRun {
			h.forgetDenials(call)
			h.audit(call, "reset_prefix", "outcome", "unknown", "error", err.Error())
		}
		return problem(http.StatusServiceUnavailable, "counters not reset, or only in part: %s", err)
	}
	answerBody := ResetByPrefix{Prefix: prefix.String(), DryRun: call.isDryRun, UnclearCounters: result.UnclearCounters}
	counters := "unknown"
	if result.Counters >= 0 {
		answerBody.Counters = &result.Counters
		counters = strconv.Itoa(result.Counters)
	}
	var notes []string
	if result.Counters < 0 {
		notes = append(notes, "this process keeps no names of counters, so their number is unknown")
	}
	if result.UnclearCounters > 0 {
		notes = append(notes, fmt.Sprintf("%d counters have names that are too long to tell whether they have the prefix, so they were not reset; reset these counters one by one, or use a shorter prefix", result.UnclearCounters))
	}
	if !call.isDryRun {
		answerBody.Published = h.forgetDenials(call)
		notes = append(notes, h.missedReplicaNotes(answerBody.Published)...)
		h.audit(call, "reset_prefix", "counters", counters)
	}
	answerBody.Note = strings.Join(notes, "; ")
	return okAnswer(answerBody)
}

func (h *handler) missedReplicaNotes(isPublished bool) []string {
	switch {
	case h.options.Counters.PerReplica:
		return []string{"each replica has its own counters; only the counters of this replica were reset"}
	case !isPublished:
		return []string{"other replicas were not notified; they may deny until their cached denials end"}
	}
	return nil
}

// forgetDenials makes the caches of all replicas forget all counters. It reports whether the other
// replicas were notified.
func (h *handler) forgetDenials(call *call) bool {
	h.options.Counters.Layer.Forget(nil)
	return h.publishReset(call, allCounters)
}

// Resets makes the layer of this replica forget the counters that another replica has reset.
type Resets struct {
	Limits *descriptors.Store // the limits in force
	Layer  backend.Layer      // the layer of the service
}

// allCounters is the target that a replica publishes after a reset by prefix. A replica of an earlier version ignores
// it, because it is not a valid target.
const allCounters = "*"

// ForgetCounter makes the layer forget a counter. target is the target that the other replica has published.
func (r Resets) ForgetCounter(target string) {
	if target == allCounters {
		r.ForgetAll()
		return
	}
	counterTarget, err := descriptors.ParseTarget(target)
	limits := r.Limits.Load()
	if err != nil || limits == nil {
		return
	}
	counter := newCounter(limits, counterTarget)
	if counter == nil {
		return
	}
	for _, h := range counter.hits(0) {
		r.Layer.Forget(&h)
	}
}

// ForgetAll makes the layer forget all counters. It is needed after a reset by prefix, and if messages about resets are lost.
func (r Resets) ForgetAll() { r.Layer.Forget(nil) }
