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

// Counters is where counters are.
type Counters struct {
	// Limits are those in force.
	Limits *descriptors.Store

	// Read asks where counters are kept, not what a cache remembers of them.
	Read backend.Limiter

	// Take is what the service asks, with all its caches, so that they learn of a
	// reset.
	Take backend.Limiter

	// Own tells that counters are those of this replica alone.
	Own bool

	// Tell tells the other replicas that a counter was reset: the one of the Target
	// that reads so. Nil if they can't be told.
	Tell func(ctx context.Context, counter string) error

	// Now is time.Now by default.
	Now func() time.Time
}

// GiveBacks returns the hits that leave nothing spent of the counters of key under rule.
func GiveBacks(rule *descriptors.Rule, key []byte) []backend.Hit {
	var hits []backend.Hit
	for _, l := range rule.Limits {
		if l.Unlimited {
			continue
		}
		hits = append(hits, backend.Hit{Key: key, Limit: l.Limit, N: -limit.MaxHits})
	}
	return hits
}

// counter is what a call is about.
type counter struct {
	target descriptors.Target
	rule   *descriptors.Rule
	key    []byte
}

// counter finds the counter of a call; nil, and the answer, if there is none.
func (h *handler) counter(c *call) (found *counter, code int, answer any) {
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
		code, answer = problem(http.StatusNotFound, "there is no domain %q; %s", cut(t.Domain), domains(limits))
		return nil, code, answer
	}
	rule := d.Match(t.Entries)
	if rule == nil {
		code, answer = problem(http.StatusNotFound, "requests with %q meet no descriptor with a limit in force; all keys and values count, in their order", cut(t.String()))
		return nil, code, answer
	}
	return &counter{t, rule, rule.AppendKey(nil, t.Domain, t.Entries)}, 0, nil
}

// domains says which there are.
func domains(limits *descriptors.Config) string {
	const most = 20
	var names []string
	for _, d := range limits.Domains() {
		if len(names) == most {
			names = append(names, "and more")
			break
		}
		names = append(names, fmt.Sprintf("%q", cut(d.Name)))
	}
	if len(names) == 0 {
		return "there is none at all"
	}
	return "there is " + strings.Join(names, ", ")
}

func (h *handler) getCounter(c *call) (int, any) {
	found, code, answer := h.counter(c)
	if found == nil {
		return code, answer
	}
	now, err := h.peek(c.Context(), found)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "the counter can't be read now: %s", err)
	}
	return http.StatusOK, found.answer(now)
}

func (h *handler) resetCounter(c *call) (int, any) {
	found, code, answer := h.counter(c)
	if found == nil {
		return code, answer
	}
	was, err := h.peek(c.Context(), found)
	if err != nil {
		return problem(http.StatusServiceUnavailable, "the counter can't be reset now: %s", err)
	}
	const away = "the counter can't be reset now: the backend is away, and what it holds stays as it is"
	if slices.ContainsFunc(was, func(l Limit) bool { return l.Degraded }) {
		return problem(http.StatusServiceUnavailable, away)
	}
	now := h.o.Counters.Now()
	hits := GiveBacks(found.rule, found.key)
	results := make([]backend.Result, len(hits))
	h.o.Counters.Take.Take(c.Context(), now, hits, results)
	for i := range results {
		if err := results[i].Err; err != nil {
			return h.notReset(c, found, "the counter could not be reset, or only in part: "+err.Error())
		}
		if results[i].Degraded() {
			return h.notReset(c, found, away)
		}
	}
	is := found.limits(results)
	reset := Reset{Counter: found.answer(is), Was: was, ToldOtherReplicas: h.tell(c, found)}
	switch {
	case h.o.Counters.Own:
		reset.Note = "counters are each replica's own; this one's was reset"
	case !reset.ToldOtherReplicas:
		reset.Note = "other replicas were not told: one that remembers a denial denies until that ends"
	}
	if !h.o.Counters.Own && slices.ContainsFunc(is, func(l Limit) bool { return l.Scope == limit.Instance.String() }) {
		reset.Note = strings.TrimPrefix(reset.Note+"; ", "; ") + "limits per instance were reset on this replica only"
	}
	h.audit(c, "reset", "path", found.rule.Path, "was", words(was), "is", words(is))
	return http.StatusOK, reset
}

// notReset is the answer where it isn't known what was reset.
func (h *handler) notReset(c *call, found *counter, why string) (int, any) {
	h.tell(c, found)
	h.audit(c, "reset", "outcome", "unknown", "path", found.rule.Path, "error", why)
	return problem(http.StatusServiceUnavailable, "%s", why)
}

// tell tells the other replicas of a reset.
func (h *handler) tell(c *call, found *counter) bool {
	if h.o.Counters.Tell == nil || h.o.Counters.Own {
		return false
	}
	if err := h.o.Counters.Tell(c.Context(), found.target.String()); err != nil {
		h.o.Log.Warn("other replicas can't be told of a reset", "target", cut(c.target()), "error", err)
		return false
	}
	return true
}

// peek asks for what is spent.
func (h *handler) peek(ctx context.Context, found *counter) ([]Limit, error) {
	var hits []backend.Hit
	for _, l := range found.rule.Limits {
		if !l.Unlimited {
			hits = append(hits, backend.Hit{Key: found.key, Limit: l.Limit})
		}
	}
	results := make([]backend.Result, len(hits))
	h.o.Counters.Read.Take(ctx, h.o.Counters.Now(), hits, results)
	for i := range results {
		if err := results[i].Err; err != nil {
			return nil, err
		}
	}
	return found.limits(results), nil
}

// counted is how many limits of r have counters.
func counted(r *descriptors.Rule) int {
	n := 0
	for _, l := range r.Limits {
		if !l.Unlimited {
			n++
		}
	}
	return n
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

// limits are those of the rule with results, which are of those that are counted.
func (found *counter) limits(results []backend.Result) []Limit {
	all := make([]Limit, 0, len(found.rule.Limits))
	for _, l := range found.rule.Limits {
		if l.Unlimited {
			all = append(all, Limit{Limit: "unlimited", Name: l.Name, Unlimited: true})
			continue
		}
		r := results[0]
		results = results[1:]
		is := Limit{
			Limit:        l.String(),
			Name:         l.Name,
			Tag:          l.Tag(),
			Scope:        l.Scope.String(),
			Remaining:    max(r.Remaining, 0),
			ResetSeconds: float64(r.ResetAfter) / 1e6,
			Over:         r.Remaining < 1,
			Degraded:     r.Degraded(),
		}
		if !r.Degraded() { // else it is of a share of the limit
			is.Capacity, is.Spent = l.Capacity(), l.Spent(r.Result)
		}
		all = append(all, is)
	}
	return all
}

// words say what is spent of each limit.
func words(limits []Limit) string {
	var all []string
	for _, l := range limits {
		if !l.Unlimited {
			all = append(all, fmt.Sprintf("%d spent of %s", l.Spent, l.Limit))
		}
	}
	return cmp.Or(strings.Join(all, "; "), "unlimited")
}
