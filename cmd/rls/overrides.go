package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/source/overrides"
)

// What the admin API takes the store can hold: else this doesn't compile.
const (
	_ = uint(overrides.MaxTarget - admin.MaxTarget)
	_ = uint(overrides.MaxValue - descriptors.MaxOverrideBytes)
)

// overriding is the overrides over the limits of the source (OVERRIDES_ENABLED). It is
// guarded by the mutex of limits.
type overriding struct {
	known descriptors.Overrides
	told  map[string]string // the problems that the log knows, by target
	ends  *time.Timer       // when the next one does; nil if none does
}

// over is what the overrides make of l.base.
func (o *overriding) over(l *limits, now time.Time) *descriptors.Config {
	cfg, next := o.known.Over(l.base, now)
	o.tell(l)
	if o.ends != nil {
		o.ends.Stop()
		o.ends = nil
	}
	if !next.IsZero() {
		o.await(l, next)
	}
	return cfg
}

// await has l renewed at a time, by the clock as it then is: timers don't see that it is
// set.
func (o *overriding) await(l *limits, end time.Time) {
	var timer *time.Timer
	timer = time.AfterFunc(min(time.Until(end), time.Minute), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case o.ends != timer: // it was stopped too late
		case time.Now().Before(end):
			o.await(l, end)
		default:
			if changed := l.renew(); len(changed) > 0 {
				l.tell([]any{"reason", "an override has ended"}, changed)
			}
		}
	})
	o.ends = timer
}

// tell logs what is newly refused, and counts what is.
func (o *overriding) tell(l *limits) {
	const longest = 1 << 10 // bytes of a problem in the log
	told := map[string]string{}
	inForce, refused, fresh := 0, 0, 0
	for _, s := range o.known.States() {
		if s.Is != "" {
			inForce++
		}
		if s.Problem == nil {
			continue
		}
		refused++
		problem := s.Problem.Error()
		told[s.Target] = problem
		if o.told[s.Target] == problem {
			continue
		}
		if fresh++; fresh > mostProblems {
			continue
		}
		if len(problem) > longest {
			problem = strings.ToValidUTF8(problem[:longest], "") + "…"
		}
		now := "the limits hold without it"
		if s.Is != "" {
			now = "the one before stays in force: " + s.Is
		}
		l.log.Error("override refused", "problem", strings.ReplaceAll(problem, "\n", "; "), "now", now)
	}
	if fresh > mostProblems {
		l.log.Error("overrides refused", "and_more", fresh-mostProblems, "see", "/rlconfig/problems")
	}
	o.told = told
	l.observer.Overrides(inForce, refused)
}

// override makes all, values by target, the overrides of the limits.
func (l *limits) override(all map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.overrides.known.Set(all)
	if l.base == nil {
		return
	}
	if changed := l.renew(); len(changed) > 0 {
		l.tell([]any{"overrides", len(all)}, changed)
	}
}

// States implements admin.Overrides.
func (l *limits) States() []descriptors.OverrideState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.overrides == nil {
		return nil
	}
	return l.overrides.known.States()
}

// DryRun implements admin.Overrides.
func (l *limits) DryRun(target, value string) descriptors.OverrideState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.base == nil {
		return descriptors.OverrideState{Target: target, Value: value, Problem: descriptors.ErrNoLimits}
	}
	return l.overrides.known.Try(l.base, target, value, time.Now())
}

// redisOverrides are the overrides in Redis; it implements admin.Overrides.
type redisOverrides struct {
	*limits
	*overrides.Store
}

const (
	// overrideTimeout bounds one command about overrides.
	overrideTimeout = time.Second

	// expiredKept is how long an override that has ended is still kept in Redis, so
	// that no replica whose clock is behind loses it early.
	expiredKept = time.Minute
)

// followOverrides has the overrides in Redis take effect over l until ctx is done, and
// tells resets of what any replica has reset.
func followOverrides(ctx context.Context, s *env.Settings, l *limits, resets admin.Resets, log *slog.Logger) (*redisOverrides, func(), error) {
	main, _, err := redisServer(s)
	if err != nil {
		return nil, nil, err
	}
	client, name, err := redis.Connect(main, overrideTimeout)
	if err != nil {
		return nil, nil, err
	}
	l.overrides = &overriding{}
	first := make(chan struct{})
	heard := sync.OnceFunc(func() { close(first) })
	store := overrides.New(overrides.Options{
		Client: client,
		Prefix: s.CacheKeyPrefix,
		Resync: s.OverridesResync,
		Apply: func(all map[string]string) {
			l.override(all)
			heard()
		},
		Expired: func(value string, now time.Time) bool {
			return descriptors.OverrideEnded([]byte(value), now.Add(-expiredKept))
		},
		OnReset: resets.Apply,
		OnGap:   resets.ApplyAll,
		OnState: func(err error) {
			l.tellOverrides(name, err)
			heard()
		},
		Log: log,
	})
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		store.Run(ctx)
	}()
	// Calls are to meet limits as they are overridden, from the first on.
	select {
	case <-first:
	case <-time.After(overrideTimeout):
	}
	return &redisOverrides{l, store}, func() { stop(); <-done; _ = client.Close() }, nil
}

// tellOverrides tells that the overrides in the Redis of that name can't be read, or,
// without an error, that they can again.
func (l *limits) tellOverrides(name string, err error) {
	if err == nil {
		l.health.Note("overrides", "")
		l.log.Info("overrides can be read again", "redis", name)
		return
	}
	l.health.Note("overrides", fmt.Sprintf("can't be read since %s; those known hold on", time.Now().UTC().Format(time.RFC3339)))
	l.log.Error("overrides can't be read; those known hold on", "redis", name, "error", err)
}
