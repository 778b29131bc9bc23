package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/source"
	runtimechanges "github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
)

// runtimeOverrides are the overrides, rules and switches that can be changed while the service
// runs. It implements admin.Overrides.
type runtimeOverrides struct {
	limits
	overrideStore

	// publishReset sends a counter reset to the other replicas. It is nil without Redis.
	publishReset func(ctx context.Context, counter string) error
}

// overrideStore stores overrides in Redis, or in memory.
type overrideStore interface {
	source.Source
	MakeChange(context.Context, runtimechanges.Change) (runtimechanges.Result, error)
	History(context.Context) ([]runtimechanges.Entry, error)
	Replicas(context.Context) ([]runtimechanges.Replica, error)
}

const (
	// overrideTimeout bounds each command for overrides.
	overrideTimeout = time.Second

	// keepExpired is the time for which an expired override stays in Redis, so that a
	// replica whose clock is behind doesn't lose it early.
	keepExpired = time.Minute
)

// newOverrides keeps the overrides of l up to date until p ends. It
// returns nil if the settings turn overrides off. resets applies the counter resets of all
// replicas.
func newOverrides(p *process, s *env.Settings, l limits, resets admin.Resets, log *slog.Logger) (*runtimeOverrides, error) {
	isExpired := func(value string, now time.Time) bool {
		return override.NotesOf(value).Ended(now.Add(-keepExpired))
	}
	r := &runtimeOverrides{limits: l}
	switch s.OverridesPlace() {
	case env.OverridesOff:
		return nil, nil
	case env.OverridesInMemory:
		r.overrideStore = &runtimechanges.Memory{Expired: isExpired, Report: l.report}
	default:
		mainServer, err := withTLS(s, s.Redis(), s.RedisTLS)
		if err != nil {
			return nil, err
		}
		client, name, err := redis.Connect(mainServer, overrideTimeout)
		if err != nil {
			return nil, err
		}
		store := overrides.New(overrides.Options{
			Client:         client,
			Prefix:         s.CacheKeyPrefix,
			Resync:         s.OverridesResync,
			Expired:        isExpired,
			Report:         l.report,
			OnReset:        resets.DropCounter,
			OnMissedResets: resets.DropAll,
			Log:            log.With("redis", name),
		})
		r.overrideStore, r.publishReset = store, store.PublishReset
		p.atEnd(func() { _ = client.Close() })
	}
	started := make(chan error, 1)
	p.start(func(ctx context.Context) {
		// The store reports an outage itself, so the error is left out.
		_ = l.Follow(ctx, events.SourceOverrides, r.overrideStore, started)
	})
	// Wait for the overrides, so that they are in force at the first call. An outage of Redis does not
	// stop the start.
	select {
	case <-started:
	case <-time.After(overrideTimeout):
	}
	return r, nil
}

var processStart = time.Now()

func (l limits) report() runtimechanges.Replica {
	host, _ := os.Hostname()
	r := runtimechanges.Replica{
		Name: fmt.Sprintf("%s/%d", host, os.Getpid()), Build: thisBuild().Version, Started: processStart.UTC().Truncate(time.Second),
		Problems: len(l.Status().Problems),
	}
	if config := l.store.Load(); config != nil {
		r.Limits = config.Hash()
	}
	return r
}
