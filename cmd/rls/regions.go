package main

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// The pauses between two comparisons of the settings of the regions. The short pause finds the end of an outage.
const regionCheckPause, regionRetryPause = time.Minute, time.Second

// globalRedis is the Redis of all regions.
type globalRedis struct {
	redis.Ledger
	events *events.Regions
}

// findings returns the problems of the regions. g can be nil.
func (g *globalRedis) findings() []redis.Finding {
	if g == nil {
		return nil
	}
	return g.events.Findings()
}

// newGlobalRedis returns the Redis of REDIS_GLOBAL_URL. It need not be reachable.
func newGlobalRedis(process *process, settings *env.Settings, serviceEvents *events.Events) (*globalRedis, error) {
	ledger, err := newLedger(settings)
	if err != nil {
		return nil, fmt.Errorf("REDIS_GLOBAL_URL: %w", err)
	}
	process.addCloser(func() { _ = ledger.Close() })
	global := &globalRedis{ledger, &events.Regions{Events: serviceEvents, Address: ledger.Addresses()}}
	ownSettings := fmt.Sprintf("REGIONS=%d REGION_FLOOR=%g REGION_WASTE=%g", settings.Regions, settings.RegionFloor, settings.RegionWaste)
	process.start(func(ctx context.Context) {
		for pause := time.Duration(0); wait.Sleep(ctx, pause); {
			others, err := global.CompareRegions(ctx, settings.Region, ownSettings)
			pause = regionRetryPause
			if ctx.Err() != nil {
				return
			}
			if global.events.TripEnded(err); err == nil {
				global.events.SettingsCompared(ownSettings, others)
				pause = regionCheckPause
			}
		}
	})
	return global, nil
}

func newLedger(settings *env.Settings) (redis.Ledger, error) {
	server, err := addTLS(settings, settings.GlobalRedis(), settings.GlobalTLS)
	if err != nil {
		return redis.Ledger{}, err
	}
	client, err := redis.New(redis.Options{Main: server, KeyPrefix: settings.CacheKeyPrefix, Partitions: settings.RedisPartitions, Timeout: settings.GlobalTimeout})
	return redis.Ledger{Limiter: client}, err
}

// addRegions adds the layer that divides limits of scope global among the regions.
func addRegions(process *process, settings *env.Settings, serviceEvents *events.Events, counterBackend *counterBackend, client *redis.Limiter, global *globalRedis) {
	regions := region.New(region.Options{
		Next: counterBackend.Layer, Counters: client, ServerTime: client.ServerTime,
		Ledger: global, Regions: settings.SharedRegions(), Region: settings.Region, OnTrip: global.events.TripEnded,
	})
	serviceEvents.Metrics.Regions(regions.Stats, global.events.Findings)
	process.start(regions.Run)
	counterBackend.Layer = regions
	counterBackend.prefixResetter = backend.PrefixResetterPair{First: client, Second: global}
	state := counterBackend.storeState
	counterBackend.storeState = func() *live.Redis {
		s, stats := state(), regions.Stats()
		s.Region = &live.Region{Name: settings.Region, UnusedHits: stats.UnusedHits, RoundTripSeconds: live.Value(stats.RoundTrip.Seconds())}
		return s
	}
	counterBackend.explain.RegionHits = regions.HeldHits
	counterBackend.explain.RedisKey = func(h *backend.Hit) (server, key string) { return client.Counter(regions.RegionalHit(h)) }
}
