package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/limit"
)

// storeObserver reports outages of a store to the log, the timeline, /healthcheck and the metrics.
type storeObserver struct {
	store             string // name of the store
	advice            func(error) string
	fallback.Observer // the metrics
	process           *process
	settings          *env.Settings
	health            *server.Health
	events            changes
	outageEnded       func()
	shards            []metrics.Shard
	log               *slog.Logger

	fallback     atomic.Pointer[fallback.Limiter] // nil at the start
	stopProgress context.CancelFunc               // of the outage in progress

	mu             sync.Mutex
	loggedOpenings map[int]loggedOpening // by shard
}

// loggedOpening is the last line in the log that says that a breaker opened.
type loggedOpening struct {
	openedAt time.Time
	isOpen   bool // no later line says that the breaker closed
}

// progressPause is the pause between two log lines about the current outage.
const progressPause = time.Minute

// breakerLogPause is the minimum pause between two log lines about openings of a breaker.
const breakerLogPause = 10 * time.Second

// StateChanged implements fallback.Observer.
func (o *storeObserver) StateChanged(c fallback.StateChange) {
	o.Observer.StateChanged(c)
	o.events.storeChanged(o.store, c, o.settings)
	if c.Down {
		mode, ratio := o.settings.RedisFailureMode, o.settings.RedisFallbackRatio
		o.health.Note(strings.ToLower(o.store), fmt.Sprintf("down since %s; deciding without %s (mode %s, ratio %v)",
			time.Now().UTC().Format(time.RFC3339), o.store, mode, ratio))
		o.log.Error(o.store+" outage started", "kind", redis.KindOf(c.Outage.Err).String(), "error", c.Outage.Err,
			"hits", decidedHits(mode, ratio), "advice", o.advice(c.Outage.Err))
		var ctx context.Context
		ctx, o.stopProgress = context.WithCancel(o.process.ctx)
		o.process.start(func(context.Context) { o.logProgress(ctx) })
		return
	}
	o.stopProgress()
	o.health.Note(strings.ToLower(o.store), "")
	o.outageEnded()
	o.log.LogAttrs(o.process.ctx, slog.LevelInfo, o.store+" outage ended", append(priceLogAttrs(&c.Outage),
		slog.Int64("hits_replayed", c.Outage.Replayed), slog.Bool("counters_kept", c.Outage.CountersKept))...)
}

// decidedHits returns how the service decides hits without the store.
func decidedHits(mode string, ratio float64) string {
	switch mode {
	case limit.FailAllow.String():
		return "admitted"
	case limit.FailDeny.String():
		return "denied"
	}
	return fmt.Sprintf("counted here, up to %v of each limit", ratio)
}

// logProgress logs the price of the outage each minute until ctx is done.
func (o *storeObserver) logProgress(ctx context.Context) {
	for wait.Sleep(ctx, progressPause) {
		if s := o.fallback.Load().Status(); s.Down {
			o.log.LogAttrs(ctx, slog.LevelWarn, o.store+" outage not over", priceLogAttrs(&s.Outage)...)
		}
	}
}

// BlipEnded implements fallback.Observer.
func (o *storeObserver) BlipEnded(blip fallback.Outage) {
	o.Observer.BlipEnded(blip)
	o.events.blipEnded(o.store, &blip)
	o.log.LogAttrs(o.process.ctx, slog.LevelWarn, "hits decided without "+o.store+" for a short time", priceLogAttrs(&blip)...)
}

// BreakerChanged implements fallback.Observer. If there is only one breaker, BreakerChanged logs
// nothing, because the lines about outages have the same times.
func (o *storeObserver) BreakerChanged(c fallback.BreakerChange) {
	o.Observer.BreakerChanged(c)
	if len(o.shards) == 1 {
		return
	}
	shard := o.shards[c.Shard]
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.loggedOpenings[c.Shard]
	switch {
	case c.Open && time.Since(last.openedAt) >= breakerLogPause:
		o.loggedOpenings[c.Shard] = loggedOpening{openedAt: time.Now(), isOpen: true}
		o.log.Warn(o.store+" breaker opened", "server", shard.Server, "shard", shard.Name, "kind", redis.KindOf(c.Err).String(), "error", c.Err)
	case !c.Open && last.isOpen:
		o.loggedOpenings[c.Shard] = loggedOpening{openedAt: last.openedAt}
		o.log.Info(o.store+" breaker closed", "server", shard.Server, "shard", shard.Name, "open_for", c.OpenFor.Round(time.Millisecond))
	}
}

// maxLoggedLimits is the number of limits that a log line names.
const maxLoggedLimits = 3

// priceLogAttrs describes the price of an outage in the log.
func priceLogAttrs(o *fallback.Outage) []slog.Attr {
	attrs := []slog.Attr{
		slog.Duration("lasted", o.Duration().Round(time.Millisecond)),
		slog.Int64("calls", o.Calls),
		slog.Int64("calls_admitted", o.AdmittedCalls),
		slog.Int64("hits_admitted", o.AdmittedHits),
		slog.Int64("most_beyond_limits", o.MaxExcessHits),
	}
	for _, reason := range backend.Reasons {
		if n := o.ByReason[reason]; n > 0 {
			attrs = append(attrs, slog.Int64(reason.String(), n))
		}
	}
	var limits []string
	for _, p := range o.Limits[:min(len(o.Limits), maxLoggedLimits)] {
		if p.MaxExcessHits > 0 {
			limits = append(limits, fmt.Sprintf("%s (%s): %d", p.Rule, cmp.Or(p.Limit, "several"), p.MaxExcessHits))
		}
	}
	if len(limits) > 0 {
		attrs = append(attrs, slog.String("limits", strings.Join(limits, "; ")))
	}
	return attrs
}
