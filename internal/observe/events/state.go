package events

import (
	"errors"
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
	redis := &live.Redis{
		Up: !status.Down, Mode: s.Mode.String(), Ratio: s.Ratio,
		Outage: outageSummary(&status.Outage), Blip: outageSummary(&status.Blip), Blips: status.Blips, Findings: make([]live.RedisFinding, len(findings)),
	}
	for i, f := range findings {
		redis.Findings[i] = live.RedisFinding{Level: string(f.Level), Check: f.Check, Server: f.Role.String(), Address: f.Address, Text: f.Text, Advice: f.Advice}
	}
	for _, breaker := range status.Breakers {
		switch breaker.State {
		case fallback.Closed:
			redis.Breakers.Closed++
		case fallback.Failing:
			redis.Breakers.Failing++
		default:
			redis.Breakers.Open++
		}
	}
	if redis.Outage != nil {
		redis.Since = &redis.Outage.Start
		if redis.Up {
			redis.Since = redis.Outage.End
		} else {
			redis.Error, redis.Advice = causeText(status.Outage.Err), s.Advice(status.Outage.Err)
		}
	}
	return redis
}

// causeText returns the text of the cause of an outage. It leaves out the hits of the batch that failed.
func causeText(err error) string {
	if unavailable, ok := errors.AsType[*backend.Error](err); ok && unavailable.Cause != nil {
		return unavailable.Cause.Error()
	}
	return err.Error()
}

func outageSummary(outage *fallback.Outage) *live.Outage {
	if outage.Start.IsZero() {
		return nil
	}
	summary := &live.Outage{
		Start: outage.Start, End: TimeOrNil(outage.End), Seconds: live.Value(outage.Duration().Seconds()),
		Calls: outage.Calls, AdmittedCalls: outage.AdmittedCalls, Decisions: outage.Decisions, ByReason: map[string]int64{},
		AdmittedHits: outage.AdmittedHits, MaxExcessHits: outage.MaxExcessHits, Replayed: outage.ReplayedHits, Limits: []fallback.LimitPrice{},
	}
	if outage.Err != nil {
		summary.Error = outage.Err.Error()
	}
	for _, reason := range backend.Reasons {
		if n := outage.ByReason[reason]; n > 0 {
			summary.ByReason[reason.String()] = n
		}
	}
	const maxLimits = 10
	summary.Limits = append(summary.Limits, outage.Limits[:min(len(outage.Limits), maxLimits)]...)
	summary.MoreLimits = len(outage.Limits) - len(summary.Limits)
	return summary
}

// Overrides describes overrides for the live page.
func Overrides(states []override.State) []live.Override {
	overrides := make([]live.Override, len(states))
	for i := range states {
		state := &states[i]
		overrides[i] = live.Override{
			Target: state.Target, Path: state.Path, State: "in force", Limits: state.Limits, Base: state.BaseLimits,
			Author: state.Author, SetAt: TimeOrNil(state.SetAt), ExpiresAt: TimeOrNil(state.ExpiresAt),
		}
		switch {
		case state.Problem != nil:
			overrides[i].State, overrides[i].Problem = "rejected", state.Problem.Error()
		case state.IsExpired:
			overrides[i].State = "expired"
		}
	}
	return overrides
}

// Candidate describes candidate limits for the live page.
func Candidate(status candidate.Status) *live.Candidate {
	summary := &live.Candidate{Since: TimeOrNil(status.Since), Rules: []candidate.RuleCount{}}
	if status.Problem != nil {
		summary.Problem = status.Problem.Error()
	}
	summary.NewlyDenied, summary.NewlyAdmitted = status.Calls[candidate.NewlyDenied], status.Calls[candidate.NewlyAdmitted]
	summary.Compared = status.Calls[candidate.Same] + summary.NewlyDenied + summary.NewlyAdmitted
	summary.NotCompared = status.Calls[candidate.Failed] + status.Calls[candidate.Dropped]
	const maxRules = 20
	summary.Rules = append(summary.Rules, status.Rules[:min(len(status.Rules), maxRules)]...)
	return summary
}

// TimeOrNil returns the address of t, or nil if t is zero.
func TimeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
