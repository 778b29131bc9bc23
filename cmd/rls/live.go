package main

import (
	"cmp"
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	runtimechanges "github.com/seed-81f232ab/rls/internal/source/changes"
)

// newLive returns the Live of the process, which samples until p ends. The service
// drains when ctx is done. overrides is nil without OVERRIDES_ENABLED.
func newLive(ctx context.Context, p *process, s *env.Settings, l limits, counters *counterBackend, overrides *runtimeOverrides, candidate *candidateLimits, recorder *live.Recorder, meter *metrics.Metrics, events changes) *live.Live {
	host, _ := os.Hostname()
	o := live.Options{
		Version:    thisBuild().Version,
		Instance:   cmp.Or(host, "unknown"),
		Backend:    s.Backend(),
		ShadowMode: s.ShadowMode,
		Recorder:   recorder,
		Store:      l.store,
		Limits:     func() live.Limits { return limitsInForce(s, l) },
		Counts:     meter.Rules,
		Draining:   func() bool { return ctx.Err() != nil },
		Events:     events.Timeline,
		Keys:       live.KeyMode(s.TopKeys),
	}
	if counters.fallback != nil {
		o.Redis = func() *live.Redis { return redisState(s, counters.fallback.Status(), counters.redisCheck.findings()) }
	}
	if candidate != nil {
		o.Candidate = func() *live.Candidate { return liveCandidate(candidate.Status()) }
	}
	if overrides != nil {
		o.Overrides = func() []live.Override { return liveOverrides(l.States()) }
		if s.OverridesPlace() == env.OverridesInRedis {
			o.Replicas = countReplicas(p, overrides.Replicas)
		}
	}
	liveView := live.New(o)
	p.start(liveView.Run)
	return liveView
}

// replicasPause is the pause between two reads of the replicas.
const replicasPause = 5 * time.Second

// countReplicas reads the replicas until p ends. It returns a function with the last number of them,
// or 0 if the last read failed.
func countReplicas(p *process, read func(context.Context) ([]runtimechanges.Replica, error)) func() int {
	var count atomic.Int64
	readOnce := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, overrideTimeout)
		defer cancel()
		replicas, _ := read(ctx)
		count.Store(int64(len(replicas)))
	}
	p.start(func(ctx context.Context) {
		for readOnce(ctx); wait.Sleep(ctx, replicasPause); {
			readOnce(ctx)
		}
	})
	return func() int { return int(count.Load()) }
}

// newLiveHandlers returns the handlers for viewers of l.
func newLiveHandlers(callers *admin.Callers, l *live.Live) live.Handlers {
	isAllowed := privateCaller(callers)
	return live.Handlers{Live: l, SeesKeys: func(r *http.Request) bool {
		_, ok := isAllowed(r)
		return ok
	}}
}

// livePages returns the pages of the debug listener about the traffic of this moment.
func livePages(h live.Handlers) []server.Page {
	return []server.Page{
		{Path: live.SnapshotPath, Help: "the state and the traffic of this moment, as JSON", Handler: h.Snapshot()},
		{Path: live.StreamPath, Help: "the same each second, as server-sent events", Handler: h.Stream(), Stream: true},
		{Path: live.RulesPath, Help: "rules and their traffic, as JSON; ?filter=TEXT", Handler: h.Rules()},
		{Path: live.RulePath, Help: "a rule and its busiest keys, as JSON; ?path=PATH", Handler: h.Rule()},
	}
}

// batchObserver reports batches to the metrics and to the Recorder.
type batchObserver struct {
	redis.Observer // the metrics
	recorder       *live.Recorder
	unconfirmed    *unconfirmedLog
}

// BatchDone implements redis.Observer.
func (o batchObserver) BatchDone(b redis.Batch) {
	o.Observer.BatchDone(b)
	o.recorder.RedisAnswered(b.Took)
	if b.ReplicasMissing {
		o.unconfirmed.add(b.Role)
	}
}

// limitsInForce describes the limits in force.
func limitsInForce(s *env.Settings, l limits) live.Limits {
	status := l.Status()
	result := live.Limits{Source: sourceFile, Since: timeOrNil(status.InForceSince), Problems: status.Problems}
	if s.ConfigType == env.ConfigXDS {
		result.Source = sourceXDS
	}
	return result
}

// redisState describes Redis.
func redisState(s *env.Settings, status fallback.Status, findings []redis.Finding) *live.Redis {
	r := &live.Redis{
		Up: !status.Down, Mode: s.RedisFailureMode, Ratio: s.RedisFallbackRatio,
		Outage: liveOutage(&status.Outage), Blip: liveOutage(&status.Blip), Findings: make([]live.RedisFinding, len(findings)),
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

// liveOutage describes o, or returns nil if there was no outage.
func liveOutage(o *fallback.Outage) *live.Outage {
	if o.Start.IsZero() {
		return nil
	}
	out := &live.Outage{
		Start: o.Start, End: timeOrNil(o.End), Seconds: live.Value(o.Duration().Seconds()),
		Calls: o.Calls, AdmittedCalls: o.AdmittedCalls, Decisions: o.Decisions, ByReason: map[string]int64{},
		AdmittedHits: o.AdmittedHits, MaxExcessHits: o.MaxExcessHits, Replayed: o.Replayed, Limits: []live.LimitPrice{},
	}
	if o.Err != nil {
		out.Error = o.Err.Error()
	}
	for _, reason := range backend.Reasons {
		if n := o.ByReason[reason]; n > 0 {
			out.ByReason[reason.String()] = n
		}
	}
	const maxLimits = 10
	for _, p := range o.Limits[:min(len(o.Limits), maxLimits)] {
		out.Limits = append(out.Limits, live.LimitPrice{Rule: p.Rule, Limit: p.Limit, Decisions: p.Decisions, AdmittedHits: p.AdmittedHits, MaxExcessHits: p.MaxExcessHits})
	}
	out.MoreLimits = len(o.Limits) - len(out.Limits)
	return out
}

// liveOverrides describes overrides.
func liveOverrides(states []override.State) []live.Override {
	all := make([]live.Override, len(states))
	for i := range states {
		s := &states[i]
		all[i] = live.Override{
			Target: s.Target, Path: s.Path, State: "in force", Limits: s.Limits, Base: s.BaseLimits,
			Author: s.Author, SetAt: timeOrNil(s.SetAt), ExpiresAt: timeOrNil(s.Expires),
		}
		switch {
		case s.Problem != nil:
			all[i].State, all[i].Problem = "rejected", s.Problem.Error()
		case s.Expired:
			all[i].State = "expired"
		}
	}
	return all
}

// timeOrNil returns the address of t, or nil if t is zero.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
