package main

import (
	"context"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
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
func startCandidate(p *process, s *env.Settings, e *events.Events) (*candidateLimits, error) {
	if s.LimitsCandidate == "" {
		return nil, nil
	}
	c := &candidateLimits{}
	o := candidate.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	x := explain.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	switch keyPrefix := s.CacheKeyPrefix + candidateKeyPrefix; s.Backend() {
	case env.BackendRedis:
		// The candidate has its own connections and its own queue, so that it never delays a call.
		client, err := newRedis(s, keyPrefix, nil, nil)
		if err != nil {
			return nil, err
		}
		p.atEnd(func() { _ = client.Close() })
		o.Limiter, x.RedisKey = client, client.Counter
	case env.BackendMemcache:
		client, err := newMemcached(s, keyPrefix, e.Log)
		if err != nil {
			return nil, err
		}
		p.atEnd(func() { _ = client.Close() })
		o.Limiter = client
	default:
		o.Limiter = newLocalCounters(p, s)
	}
	c.Candidate = candidate.New(o)
	e.Metrics.Candidate(c.Status)
	x.Limits, x.Layer = c.Store(), backend.Counters{Limiter: o.Limiter}
	c.explainer = explain.New(x)
	files := filesource.New(filesource.Options{
		Place:    filesource.Place{Root: s.LimitsCandidate, IgnoreDotFiles: s.RuntimeIgnoreDotFiles},
		Interval: s.SourcePollInterval,
		Parse:    s.LimitsOptions(),
		Log:      e.Log.With("limits", "candidate"),
	})
	p.start(func(ctx context.Context) { c.Follow(ctx, files, e.Log) })
	p.start(c.Run)
	return c, nil
}

func newExplainer(s *env.Settings, l limits, counters *counterBackend, candidate *candidateLimits) *explain.Explainer {
	o := counters.explain
	o.Limits = l.store
	o.AllOrNone, o.ShadowMode, o.QuotaMode = s.AllOrNone, s.ShadowMode, s.QuotaMode
	if candidate != nil {
		o.Candidate = candidate.explainer
	}
	return explain.New(o)
}
