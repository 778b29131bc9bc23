package main

import (
	"cmp"
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/server"
	runtimechanges "github.com/seed-81f232ab/rls/internal/source/changes"
)

// newLive returns the Live of the process, which samples until p ends. The service
// drains when ctx is done. overrides is nil without OVERRIDES_ENABLED.
func newLive(ctx context.Context, p *process, s *env.Settings, l limits, counters *counterBackend, overrides *runtimeOverrides, candidate *candidateLimits, recorder *live.Recorder, e *events.Events) *live.Live {
	host, _ := os.Hostname()
	o := live.Options{
		Version:    thisBuild().Version,
		Instance:   cmp.Or(host, "unknown"),
		Backend:    s.Backend(),
		ShadowMode: s.ShadowMode,
		Recorder:   recorder,
		Store:      l.store,
		Limits: func() live.Limits {
			status := l.Status()
			return live.Limits{Source: l.source, Since: events.TimeOrNil(status.InForceSince), Problems: status.Problems}
		},
		Counts:   e.LimitCounts,
		Draining: func() bool { return ctx.Err() != nil },
		Events:   e.Timeline,
		Keys:     live.KeyMode(s.TopKeys),
		Redis:    counters.state,
	}
	if candidate != nil {
		o.Candidate = func() *live.Candidate { return events.Candidate(candidate.Status()) }
	}
	if overrides != nil {
		o.Overrides = func() []live.Override { return events.Overrides(l.States()) }
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

// livePages returns the pages of the debug listener about the traffic of this moment.
func livePages(h live.Handlers) []server.Page {
	return []server.Page{
		{Path: live.SnapshotPath, Help: "the state and the traffic of this moment, as JSON", Handler: h.Snapshot()},
		{Path: live.StreamPath, Help: "the same each second, as server-sent events", Handler: h.Stream(), Stream: true},
		{Path: live.RulesPath, Help: "rules and their traffic, as JSON; ?filter=TEXT", Handler: h.Rules()},
		{Path: live.RulePath, Help: "a rule and its busiest keys, as JSON; ?path=PATH", Handler: h.Rule()},
	}
}
