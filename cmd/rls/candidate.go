package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/candidate"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/explain"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/live"
	"github.com/seed-81f232ab/rls/service"
	filesource "github.com/seed-81f232ab/rls/source/file"
)

// candidateKeyPrefix begins the names of the candidate's counters in Redis.
const candidateKeyPrefix = "candidate:"

// candidateLimits are the limits at LIMITS_CANDIDATE, or nil without them.
type candidateLimits struct {
	*candidate.Candidate
	explainer *explain.Explainer
	client    *redis.Limiter // nil if the counters are local
}

// startCandidate evaluates the limits at LIMITS_CANDIDATE until ctx is done. It returns nil
// without the setting. The candidate must be closed at the end.
func startCandidate(ctx context.Context, s *env.Settings, meter *metrics.Metrics, log *slog.Logger) (*candidateLimits, error) {
	if s.LimitsCandidate == "" {
		return nil, nil
	}
	c := &candidateLimits{}
	o := candidate.Options{QuotaMode: s.QuotaMode, Observer: meter.Candidate(func() bool { return c.Status().Problem != nil })}
	x := explain.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	if s.Backend() == env.BackendRedis {
		// The candidate has its own connections and its own queue, so that it never delays a call.
		client, err := newRedis(s, s.CacheKeyPrefix+candidateKeyPrefix, nil, nil)
		if err != nil {
			return nil, err
		}
		c.client, o.Limiter, x.RedisKey = client, client, client.Counter
	} else {
		counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys, AllOrNone: s.AllOrNone})
		go counters.Run(ctx, time.Minute)
		o.Limiter = counters
	}
	c.Candidate = candidate.New(o)
	x.Limits, x.Counters = c.Store(), o.Limiter
	c.explainer = explain.New(x)
	files := filesource.New(filesource.Options{
		Place:    filesource.Place{Root: s.LimitsCandidate, IgnoreDotFiles: s.RuntimeIgnoreDotFiles},
		Interval: s.SourcePollInterval,
		Parse:    limitsfile.Options{MergeDomains: s.MergeDomainConfig},
		Log:      log.With("limits", "candidate"),
	})
	go c.Follow(ctx, files, log)
	go c.Run(ctx)
	return c, nil
}

func (c *candidateLimits) close() {
	if c != nil && c.client != nil {
		_ = c.client.Close()
	}
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
	out := &live.Candidate{Since: timeOrNil(status.Since), Rules: []live.CandidateRule{}}
	if status.Problem != nil {
		out.Problem = status.Problem.Error()
	}
	for result, n := range status.Calls {
		switch result {
		case candidate.NewlyDenied:
			out.NewlyDenied = n
		case candidate.NewlyAdmitted:
			out.NewlyAdmitted = n
		case candidate.Failed, candidate.Dropped:
			out.NotCompared += n
			continue
		}
		out.Compared += n
	}
	const maxRules = 20
	for _, r := range status.Rules[:min(len(status.Rules), maxRules)] {
		out.Rules = append(out.Rules, live.CandidateRule{Path: r.Path, NewlyDenied: r.Count})
	}
	return out
}
