package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/memcached"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/tracing"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/limit"
)

// counterBackend is the backend that counts for the service.
type counterBackend struct {
	backend.Layer

	prefixResetter backend.PrefixResetter
	isPerReplica   bool               // each replica has its own counters
	storeState     func() *live.Redis // the state of the store for the live page; nil if the counters are local
	explain        explain.Options    // serve adds the limits and the settings of the service
	firstPing      <-chan struct{}    // is closed when the first ping of the store has ended; nil if the counters are local
}

func newBackend(process *process, settings *env.Settings, serviceEvents *events.Events, recorder *live.Recorder, tracer *tracing.Tracer) (*counterBackend, error) {
	counters := newLocalCounters(process, settings)
	serviceEvents.Metrics.Local(counters.Keys, counters.Evictions, counters.Bytes)
	switch settings.Backend() {
	case env.BackendRedis:
		return newRedisBackend(process, settings, serviceEvents, counters, recorder, tracer)
	case env.BackendMemcache:
		return newMemcachedBackend(process, settings, serviceEvents, counters)
	}
	serviceEvents.Log.Info("counting in this process; each replica counts alone", "max_keys", settings.LocalMaxKeys)
	layer := backend.Counters{Limiter: counters}
	return &counterBackend{Layer: layer, prefixResetter: counters, isPerReplica: true, explain: explain.Options{Layer: layer}}, nil
}

func newLocalCounters(process *process, settings *env.Settings) *local.Limiter {
	counters := local.New(local.Options{MaxKeys: settings.LocalMaxKeys})
	process.start(func(ctx context.Context) { counters.Run(ctx, time.Minute) })
	return counters
}

// store keeps counters that all replicas share: Redis or memcached.
type store interface {
	backend.Limiter
	backend.PrefixResetter
	Shards() int
	ShardOf(*backend.Hit) int
	Probe(ctx context.Context, shard int) error
	Ping(context.Context) error
	Close() error
}

// sharedStore is a store with the options and functions that differ between Redis and memcached.
type sharedStore struct {
	store
	events    events.StoreOptions
	fallback  fallback.Options
	onConnect func(context.Context)                    // is called after the first answer of the store
	findings  func() []redis.Finding                   // returns the problems that the check of Redis has found
	addLayers func(*counterBackend, *fallback.Limiter) // adds layers above the deny cache; nil for memcached
}

// idleProbePause is the pause between two probes of a store that works. A probe can find an outage before a call does.
const idleProbePause = 10 * time.Second

const connectPause = 200 * time.Millisecond // the pause between two attempts to connect to a store

// newStoreBackend returns a backend that counts in a store. While the store is down, the backend counts in localCounters.
func newStoreBackend(process *process, settings *env.Settings, serviceEvents *events.Events, storeOptions sharedStore, localCounters *local.Limiter) *counterBackend {
	mode, _ := limit.ParseFailureMode(settings.RedisFailureMode)
	storeOptions.events.Mode, storeOptions.events.Ratio, storeOptions.events.NeedsStore = mode, settings.RedisFallbackRatio, settings.RedisHealthCheckActive
	observer := serviceEvents.NewStore(storeOptions.events)
	store, fallbackOptions := storeOptions.store, storeOptions.fallback
	fallbackOptions.Primary, fallbackOptions.Shards, fallbackOptions.ShardOf, fallbackOptions.Probe = store, store.Shards(), store.ShardOf, store.Probe
	fallbackOptions.Secondary, fallbackOptions.Ratio, fallbackOptions.Mode, fallbackOptions.IdleProbePause, fallbackOptions.Observer = localCounters, settings.RedisFallbackRatio, mode, idleProbePause, observer
	storeWithFallback := fallback.New(fallbackOptions)
	serviceEvents.Metrics.FallbackStatus(observer.Shards, storeWithFallback.Status)
	process.start(func(ctx context.Context) { observer.LogProgress(ctx, storeWithFallback.Status) })
	process.addCloser(func() { storeWithFallback.Close(); _ = store.Close() })

	// connect does not log a failed ping, because the log line about the outage has the cause.
	connect := func(ctx context.Context) bool {
		if store.Ping(ctx) != nil || ctx.Err() != nil {
			return false
		}
		observer.Connected()
		storeOptions.onConnect(ctx)
		return true
	}
	firstPing := make(chan struct{})
	process.start(func(ctx context.Context) {
		isConnected := connect(ctx)
		close(firstPing)
		for !isConnected && wait.Sleep(ctx, connectPause) {
			isConnected = connect(ctx)
		}
	})

	counterBackend := &counterBackend{Layer: storeWithFallback, firstPing: firstPing}
	counterBackend.storeState = func() *live.Redis { return observer.State(storeWithFallback.Status(), storeOptions.findings()) }
	if settings.DenyCacheBytes > 0 {
		counterBackend.Layer = denycache.New(counterBackend.Layer, denycache.Options{SizeBytes: settings.DenyCacheBytes, Observer: serviceEvents.Metrics.DenyCache()})
	}
	counterBackend.prefixResetter = store
	if storeOptions.addLayers != nil {
		storeOptions.addLayers(counterBackend, storeWithFallback)
	}
	counterBackend.Layer = backend.Scopes{Shared: counterBackend.Layer, Instance: backend.Counters{Limiter: localCounters}}
	counterBackend.prefixResetter = backend.PrefixResetterPair{First: counterBackend.prefixResetter, Second: localCounters}
	counterBackend.explain.Layer, counterBackend.explain.FailingSince = counterBackend.Layer, storeWithFallback.FailingSince
	return counterBackend
}

func newRedisBackend(process *process, settings *env.Settings, serviceEvents *events.Events, localCounters *local.Limiter, recorder *live.Recorder, tracer *tracing.Tracer) (*counterBackend, error) {
	roles := []redis.Role{redis.RoleMain}
	if settings.PerSecond {
		roles = append(roles, redis.RolePerSecond)
	}
	var batchTracer redis.Tracer
	if tracer != nil {
		batchTracer = tracer
	}
	client, err := newRedis(settings, settings.CacheKeyPrefix, serviceEvents.Batches(recorder, settings.RedisWaitReplicas, roles...), batchTracer)
	if err != nil {
		return nil, err
	}
	redis.LogTo(serviceEvents.Log)
	serviceEvents.Metrics.RedisStatus(client)
	check := serviceEvents.NewRedisCheck(client.Check, roles...)
	var global *globalRedis
	if settings.GlobalURL != "" {
		if global, err = newGlobalRedis(process, settings, serviceEvents); err != nil {
			return nil, err
		}
	}
	counterBackend := newStoreBackend(process, settings, serviceEvents, sharedStore{
		store:    client,
		events:   events.StoreOptions{Name: "Redis", Address: client.Addresses(), Advice: client.AdviceFor, OutageEnded: check.OutageEnded, Shards: metrics.ShardsOf(client)},
		fallback: fallback.Options{KeepsCounters: client.HasKeptCounters, LastCount: client.TakeLastCount},
		findings: func() []redis.Finding { return slices.Concat(check.Findings(), global.findings()) },
		onConnect: func(ctx context.Context) {
			roundTrip := client.MeasureRoundTrip(ctx)
			serviceEvents.Log.Info("counting in Redis", "address", client.Addresses(), "round_trip", roundTrip.Round(10*time.Microsecond), "timeout", client.Timeout())
		},
		addLayers: func(counterBackend *counterBackend, f *fallback.Limiter) {
			leases := lease.New(lease.Options{
				Next: counterBackend.Layer, Source: client,
				IsFailing: func(h *backend.Hit) bool { return !f.FailingSince(h).IsZero() },
			})
			serviceEvents.Metrics.Leases(leases.Stats)
			process.start(leases.Run)
			process.addCloser(leases.Close)
			counterBackend.Layer, counterBackend.explain.HeldPermits = leases, leases.HeldPermits
			counterBackend.explain.RedisKey = client.Counter
			if global != nil {
				addRegions(process, settings, serviceEvents, counterBackend, client, global)
			}
		},
	}, localCounters)
	process.start(check.Run)
	return counterBackend, nil
}

func newMemcachedBackend(process *process, settings *env.Settings, serviceEvents *events.Events, localCounters *local.Limiter) (*counterBackend, error) {
	client, err := newMemcached(settings, settings.CacheKeyPrefix, serviceEvents.Log)
	if err != nil {
		return nil, err
	}
	eventOptions := events.StoreOptions{Name: "memcached", Address: cmp.Or(strings.Join(settings.MemcacheHostPort, ","), settings.MemcacheSRV), Advice: func(error) string {
		return "check that memcached runs, and that MEMCACHE_HOST_PORT or MEMCACHE_SRV has its address"
	}}
	for i := range client.Shards() {
		eventOptions.Shards = append(eventOptions.Shards, metrics.Shard{Server: "main", Name: strconv.Itoa(i)})
	}
	return newStoreBackend(process, settings, serviceEvents, sharedStore{
		store:     client,
		events:    eventOptions,
		findings:  func() []redis.Finding { return nil },
		onConnect: func(context.Context) { serviceEvents.Log.Info("counting in memcached", "servers", client.Shards()) },
	}, localCounters), nil
}

func newMemcached(settings *env.Settings, keyPrefix string, log *slog.Logger) (*memcached.Limiter, error) {
	const defaultTimeout = 50 * time.Millisecond
	options := memcached.Options{
		Servers:     settings.MemcacheHostPort,
		SRV:         settings.MemcacheSRV,
		SRVRefresh:  settings.MemcacheSRVRefresh,
		Connections: settings.MemcacheMaxIdleConns,
		KeyPrefix:   keyPrefix,
		Jitter:      time.Duration(max(settings.ExpirationJitterMax, 0)) * time.Second,
		Timeout:     cmp.Or(time.Duration(settings.RedisTimeout), defaultTimeout),
		Log:         log,
	}
	files := clienttls.Files{CA: settings.MemcacheTLSCACert, Cert: settings.MemcacheTLSClientCert, Key: settings.MemcacheTLSClientKey, SkipHostname: settings.MemcacheTLSSkipHostname}
	var err error
	if options.TLS, err = clientTLS(settings.MemcacheTLS, "memcached", files); err != nil {
		return nil, err
	}
	return memcached.New(options)
}

func newRedis(settings *env.Settings, keyPrefix string, observer redis.Observer, tracer redis.Tracer) (*redis.Limiter, error) {
	mainServer, err := addTLS(settings, settings.Redis(), settings.RedisTLS)
	if err != nil {
		return nil, err
	}
	options := redis.Options{
		Main:               mainServer,
		KeyPrefix:          keyPrefix,
		Partitions:         settings.RedisPartitions,
		Jitter:             time.Duration(max(settings.ExpirationJitterMax, 0)) * time.Second,
		Timeout:            time.Duration(settings.RedisTimeout),
		AutoTimeout:        settings.RedisTimeout == env.AutoTimeout,
		MaxInflightBatches: settings.RedisMaxInflightBatches,
		MaxQueueSize:       settings.RedisMaxQueueSize,
		WaitReplicas:       settings.RedisWaitReplicas,
		Overrides:          settings.OverridesEnabled,
		Observer:           observer,
		Tracer:             tracer,
	}
	if settings.PerSecond {
		perSecondServer, err := addTLS(settings, settings.PerSecondRedis(), settings.PerSecondTLS)
		if err != nil {
			return nil, err
		}
		options.PerSecond = &perSecondServer
	}
	return redis.New(options)
}

// addTLS returns r. If useTLS is true, r connects with the files of REDIS_TLS_….
func addTLS(settings *env.Settings, r redis.Server, useTLS bool) (_ redis.Server, err error) {
	r.TLS, err = clientTLS(useTLS, "redis", clienttls.Files{
		CA: settings.RedisTLSCACert, Cert: settings.RedisTLSClientCert, Key: settings.RedisTLSClientKey, SkipHostname: settings.RedisTLSSkipHostname,
	})
	return r, err
}

// clientTLS returns the configuration of connections to a store, or nil if useTLS is false.
func clientTLS(useTLS bool, store string, files clienttls.Files) (*tls.Config, error) {
	if !useTLS {
		return nil, nil
	}
	config, err := files.Config()
	if err != nil {
		return nil, fmt.Errorf("%s TLS: %w", store, err)
	}
	return config, nil
}

// resetNotifier is a Layer for the admin API. It calls onReset after each reset of a counter.
type resetNotifier struct {
	backend.Layer
	onReset func()
}

// Take implements backend.Limiter. A refund of all hits is a reset.
func (l resetNotifier) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	l.Layer.Take(ctx, now, hits, results)
	if slices.ContainsFunc(hits, func(h backend.Hit) bool { return h.N == -limit.MaxHits }) {
		l.onReset()
	}
}

// Forget implements backend.Layer.
func (l resetNotifier) Forget(h *backend.Hit) {
	l.Layer.Forget(h)
	l.onReset()
}
