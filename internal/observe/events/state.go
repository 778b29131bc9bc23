package events

import (
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// State describes the store for the live page.
func (s *Store) State(status fallback.Status, findings []redis.Finding) *live.Redis {
	r := &live.Redis{
		Up: !status.Down, Mode: s.Mode.String(), Ratio: s.Ratio,
		Outage: outageSummary(&status.Outage), Blip: outageSummary(&status.Blip), Blips: status.Blips, Findings: make([]live.RedisFinding, len(findings)),
	}
	for i, f := range findings {
		r.Findings[i] = live.RedisFinding{Level: string(f.Level), Check: f.Check, Server: f.Role.String(), Address: f.Address, Text: f.Text, Advice: f.Advice}
	}
	for _, b := range status.Breakers {
		switch b.State {
		case fallback.Closed:
			r.Breakers.Closed++
		case fallback.Failing:
			r.Breakers.Failing++
		default:
			r.Breakers.Open++
		}
	}
	if r.Outage != nil {
		r.Since = &r.Outage.Start
		if r.Up {
			r.Since = r.Outage.End
		} else {
			r.Error = r.Outage.Error
		}
	}
	return r
}

// outage describes o, or returns nil if there was no outage.
func outageSummary(o *fallback.Outage) *live.Outage {
	if o.Start.IsZero() {
		return nil
	}
	summary := &live.Outage{
		Start: o.Start, End: TimeOrNil(o.End), Seconds: live.Value(o.Duration().Seconds()),
		Calls: o.Calls, AdmittedCalls: o.AdmittedCalls, Decisions: o.Decisions, ByReason: map[string]int64{},
		AdmittedHits: o.AdmittedHits, MaxExcessHits: o.MaxExcessHits, Replayed: o.Replayed, Limits: []fallback.LimitPrice{},
	}
	if o.Err != nil {
		summary.Error = o.Err.Error()
	}
	for _, reason := range backend.Reasons {
		if n := o.ByReason[reason]; n > 0 {
			summary.ByReason[reason.String()] = n
		}
	}
	const maxLimits = 10
	summary.Limits = append(summary.Limits, o.Limits[:min(len(o.Limits), maxLimits)]...)
	summary.MoreLimits = len(o.Limits) - len(summary.Limits)
	return summary
}

// Overrides describes overrides for the live page.
func Overrides(states []override.State) []live.Override {
	overrides := make([]live.Override, len(states))
	for i := range states {
		s := &states[i]
		overrides[i] = live.Override{
			Target: s.Target, Path: s.Path, State: "in force", Limits: s.Limits, Base: s.BaseLimits,
			Author: s.Author, SetAt: TimeOrNil(s.SetAt), ExpiresAt: TimeOrNil(s.ExpiresAt),
		}
		switch {
		case s.Problem != nil:
			overrides[i].State, overrides[i].Problem = "rejected", s.Problem.Error()
		case s.IsExpired:
			overrides[i].State = "expired"
		}
	}
	return overrides
}

// Candidate describes candidate limits for the live page.
func Candidate(status candidate.Status) *live.Candidate {
	c := &live.Candidate{Since: TimeOrNil(status.Since), Rules: []candidate.RuleCount{}}
	if status.Problem != nil {
		c.Problem = status.Problem.Error()
	}
	c.NewlyDenied, c.NewlyAdmitted = status.Calls[candidate.NewlyDenied], status.Calls[candidate.NewlyAdmitted]
	c.Compared = status.Calls[candidate.Same] + c.NewlyDenied + c.NewlyAdmitted
	c.NotCompared = status.Calls[candidate.Failed] + status.Calls[candidate.Dropped]
	const maxRules = 20
	c.Rules = append(c.Rules, status.Rules[:min(len(status.Rules), maxRules)]...)
	return c
}

// TimeOrNil returns the address of t, or nil if t is zero.
func TimeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
