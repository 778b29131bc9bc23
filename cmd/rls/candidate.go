package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service"
)

// candidateKeyPrefix begins the names of the candidate's counters in a store.
const candidateKeyPrefix = "candidate:"

// candidateLimits are the limits at LIMITS_CANDIDATE, or nil without them.
type candidateLimits struct {
	*candidate.Candidate
	explainer *explain.Explainer
}

// startCandidate evaluates the limits at LIMITS_CANDIDATE until p ends. It returns nil
// without the setting.
func startCandidate(p *process, s *env.Settings, meter *metrics.Metrics, log *slog.Logger) (*candidateLimits, error) {
	if s.LimitsCandidate == "" {
		return nil, nil
	}
	c := &candidateLimits{}
	o := candidate.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	x := explain.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	switch s.Backend() {
	case env.BackendRedis:
		// The candidate has its own connections and its own queue, so that it never delays a call.
		client, err := newRedis(s, s.CacheKeyPrefix+candidateKeyPrefix, nil, nil)
		if err != nil {
			return nil, err
		}
		p.atEnd(func() { _ = client.Close() })
		o.Limiter, x.RedisKey = client, client.Counter
	case env.BackendMemcache:
		client, err := newMemcached(s, s.CacheKeyPrefix+candidateKeyPrefix, log)
		if err != nil {
			return nil, err
		}
		p.atEnd(func() { _ = client.Close() })
		o.Limiter = client
	default:
		counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys})
		p.start(func(ctx context.Context) { counters.Run(ctx, time.Minute) })
		o.Limiter = counters
	}
	c.Candidate = candidate.New(o)
	meter.Candidate(c.Status)
	x.Limits, x.Layer = c.Store(), backend.Counters{Limiter: o.Limiter}
	c.explainer = explain.New(x)
	files := filesource.New(filesource.Options{
		Place:    filesource.Place{Root: s.LimitsCandidate, IgnoreDotFiles: s.RuntimeIgnoreDotFiles},
		Interval: s.SourcePollInterval,
		Parse:    limitsfile.Options{MergeDomains: s.MergeDomainConfig, LimitedStore: s.LimitedStore()},
		Log:      log.With("limits", "candidate"),
	})
	p.start(func(ctx context.Context) { c.Follow(ctx, files, log) })
	p.start(c.Run)
	return c, nil
}

// observers returns the observer that evaluates the candidate, if there is one.
func (c *candidateLimits) observers() []service.Observer {
	if c == nil {
		return nil
	}
	return []service.Observer{c.Candidate}
}

// liveCandidate describes the candidate.
func liveCandidate(status candidate.Status) *live.Candidate {
	out := &live.Candidate{Since: timeOrNil(status.Since), Rules: []candidate.RuleCount{}}
	if status.Problem != nil {
		out.Problem = status.Problem.Error()
	}
	out.NewlyDenied, out.NewlyAdmitted = status.Calls[candidate.NewlyDenied], status.Calls[candidate.NewlyAdmitted]
	out.Compared = status.Calls[candidate.Same] + out.NewlyDenied + out.NewlyAdmitted
	out.NotCompared = status.Calls[candidate.Failed] + status.Calls[candidate.Dropped]
	const maxRules = 20
	out.Rules = append(out.Rules, status.Rules[:min(len(status.Rules), maxRules)]...)
	return out
}
