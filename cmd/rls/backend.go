package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
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
	firstPing      <-chan struct{}    // is closed after the first ping of the store; nil if the counters are local
}

func newBackend(p *process, s *env.Settings, e *events.Events, recorder *live.Recorder, tracer *tracing.Tracer) (*counterBackend, error) {
	counters := newLocalCounters(p, s)
	e.Metrics.Local(counters.Keys, counters.Evictions, counters.Bytes)
	switch s.Backend() {
	case env.BackendRedis:
		return newRedisBackend(p, s, e, counters, recorder, tracer)
	case env.BackendMemcache:
		return newMemcachedBackend(p, s, e, counters)
	}
	e.Log.Info("counting in this process; each replica counts alone", "max_keys", s.LocalMaxKeys)
	layer := backend.Counters{Limiter: counters}
	return &counterBackend{Layer: layer, prefixResetter: counters, isPerReplica: true, explain: explain.Options{Layer: layer}}, nil
}

func newLocalCounters(p *process, s *env.Settings) *local.Limiter {
	counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys})
	p.start(func(ctx context.Context) { counters.Run(ctx, time.Minute) })
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
	addLeases func(*counterBackend, *fallback.Limiter) // adds leases to the layers; nil for memcached
}

// idleProbePause is the pause between two probes of a store that works. Such a probe can find an
// outage of the store before a call does.
const idleProbePause = 10 * time.Second

// newStoreBackend returns a backend that counts in a store. While the store is down, the backend counts in
// localCounters.
func newStoreBackend(p *process, s *env.Settings, e *events.Events, options sharedStore, localCounters *local.Limiter) *counterBackend {
	mode, _ := limit.ParseFailureMode(s.RedisFailureMode)
	options.events.Mode, options.events.Ratio, options.events.NeedsStore = mode, s.RedisFallbackRatio, s.RedisHealthCheckActive
	observer := e.NewStore(options.events)
	store, o := options.store, options.fallback
	o.Primary, o.Shards, o.ShardOf, o.Probe = store, store.Shards(), store.ShardOf, store.Probe
	o.Secondary, o.Ratio, o.Mode, o.IdleProbe, o.Observer = localCounters, s.RedisFallbackRatio, mode, idleProbePause, observer
	storeWithFallback := fallback.New(o)
	e.Metrics.FallbackStatus(observer.Shards, storeWithFallback.Status)
	p.start(func(ctx context.Context) { observer.LogProgress(ctx, storeWithFallback.Status) })
	p.addCloser(func() { storeWithFallback.Close(); _ = store.Close() })

	// connect logs no failed ping, because the log line about the outage has the cause.
	connect := func(ctx context.Context) bool {
		if store.Ping(ctx) != nil || ctx.Err() != nil {
			return false
		}
		observer.Connected()
		options.onConnect(ctx)
		return true
	}
	firstPing := make(chan struct{})
	p.start(func(ctx context.Context) {
		isConnected := connect(ctx)
		close(firstPing)
		for !isConnected && wait.Sleep(ctx, 200*time.Millisecond) {
			isConnected = connect(ctx)
		}
	})

	b := &counterBackend{Layer: storeWithFallback, firstPing: firstPing}
	b.storeState = func() *live.Redis { return observer.State(storeWithFallback.Status(), options.findings()) }
	if s.DenyCacheBytes > 0 {
		b.Layer = denycache.New(b.Layer, denycache.Options{SizeBytes: s.DenyCacheBytes, Observer: e.Metrics.DenyCache()})
	}
	if options.addLeases != nil {
		options.addLeases(b, storeWithFallback)
	}
	b.Layer = backend.Scopes{Global: b.Layer, Instance: backend.Counters{Limiter: localCounters}}
	b.prefixResetter = backend.ScopePrefixes{Global: store, Instance: localCounters}
	b.explain.Layer, b.explain.FailingSince = b.Layer, storeWithFallback.FailingSince
	return b
}

func newRedisBackend(p *process, s *env.Settings, e *events.Events, localCounters *local.Limiter, recorder *live.Recorder, tracer *tracing.Tracer) (*counterBackend, error) {
	roles := []redis.Role{redis.RoleMain}
	if s.PerSecond {
		roles = append(roles, redis.RolePerSecond)
	}
	var batchTracer redis.Tracer
	if tracer != nil {
		batchTracer = tracer
	}
	client, err := newRedis(s, s.CacheKeyPrefix, e.Batches(recorder, s.RedisWaitReplicas, roles...), batchTracer)
	if err != nil {
		return nil, err
	}
	redis.LogTo(e.Log)
	e.Metrics.RedisStatus(client)
	check := e.NewRedisCheck(client.Check, roles...)
	b := newStoreBackend(p, s, e, sharedStore{
		store:    client,
		events:   events.StoreOptions{Name: "Redis", Address: client.Addresses(), Advice: client.AdviceFor, OutageEnded: check.OutageEnded, Shards: metrics.ShardsOf(client)},
		fallback: fallback.Options{KeepsCounters: client.HasKeptCounters, LastCount: client.TakeLastCount},
		findings: check.Findings,
		onConnect: func(ctx context.Context) {
			roundTrip := client.MeasureRoundTrip(ctx)
			e.Log.Info("counting in Redis", "address", client.Addresses(), "round_trip", roundTrip.Round(10*time.Microsecond), "timeout", client.Timeout())
		},
		addLeases: func(b *counterBackend, f *fallback.Limiter) {
			leases := lease.New(lease.Options{
				Next: b.Layer, Source: client,
				IsFailing: func(h *backend.Hit) bool { return !f.FailingSince(h).IsZero() },
			})
			e.Metrics.Leases(leases.Stats)
			p.start(leases.Run)
			p.addCloser(leases.Close)
			b.Layer, b.explain.HeldPermits = leases, leases.HeldPermits
		},
	}, localCounters)
	p.start(check.Run)
	b.explain.RedisKey = client.Counter
	return b, nil
}

func newMemcachedBackend(p *process, s *env.Settings, e *events.Events, localCounters *local.Limiter) (*counterBackend, error) {
	client, err := newMemcached(s, s.CacheKeyPrefix, e.Log)
	if err != nil {
		return nil, err
	}
	o := events.StoreOptions{Name: "memcached", Address: cmp.Or(strings.Join(s.MemcacheHostPort, ","), s.MemcacheSRV), Advice: func(error) string {
		return "check that memcached runs, and that MEMCACHE_HOST_PORT or MEMCACHE_SRV has its address"
	}}
	for i := range client.Shards() {
		o.Shards = append(o.Shards, metrics.Shard{Server: "main", Name: strconv.Itoa(i)})
	}
	return newStoreBackend(p, s, e, sharedStore{
		store:     client,
		events:    o,
		findings:  func() []redis.Finding { return nil },
		onConnect: func(context.Context) { e.Log.Info("counting in memcached", "servers", client.Shards()) },
	}, localCounters), nil
}

// newMemcached returns a client whose keys begin with keyPrefix.
func newMemcached(s *env.Settings, keyPrefix string, log *slog.Logger) (*memcached.Limiter, error) {
	const defaultTimeout = 50 * time.Millisecond
	o := memcached.Options{
		Servers:     s.MemcacheHostPort,
		SRV:         s.MemcacheSRV,
		SRVRefresh:  s.MemcacheSRVRefresh,
		Connections: s.MemcacheMaxIdleConns,
		KeyPrefix:   keyPrefix,
		Jitter:      time.Duration(max(s.ExpirationJitterMax, 0)) * time.Second,
		Timeout:     cmp.Or(time.Duration(s.RedisTimeout), defaultTimeout),
		Log:         log,
	}
	files := clienttls.Files{CA: s.MemcacheTLSCACert, Cert: s.MemcacheTLSClientCert, Key: s.MemcacheTLSClientKey, SkipHostname: s.MemcacheTLSSkipHostname}
	var err error
	if o.TLS, err = clientTLS(s.MemcacheTLS, "memcached", files); err != nil {
		return nil, err
	}
	return memcached.New(o)
}

// newRedis returns a client whose keys begin with keyPrefix.
func newRedis(s *env.Settings, keyPrefix string, observer redis.Observer, tracer redis.Tracer) (*redis.Limiter, error) {
	mainServer, err := addTLS(s, s.Redis(), s.RedisTLS)
	if err != nil {
		return nil, err
	}
	o := redis.Options{
		Main:               mainServer,
		KeyPrefix:          keyPrefix,
		Partitions:         s.RedisPartitions,
		Jitter:             time.Duration(max(s.ExpirationJitterMax, 0)) * time.Second,
		Timeout:            time.Duration(s.RedisTimeout),
		AutoTimeout:        s.RedisTimeout == env.AutoTimeout,
		MaxInflightBatches: s.RedisMaxInflightBatches,
		MaxQueueSize:       s.RedisMaxQueueSize,
		WaitReplicas:       s.RedisWaitReplicas,
		Overrides:          s.OverridesEnabled,
		Observer:           observer,
		Tracer:             tracer,
	}
	if s.PerSecond {
		perSecond, err := addTLS(s, s.PerSecondRedis(), s.PerSecondTLS)
		if err != nil {
			return nil, err
		}
		o.PerSecond = &perSecond
	}
	return redis.New(o)
}

// addTLS returns r. If useTLS is true, r connects with the files of REDIS_TLS_….
func addTLS(s *env.Settings, r redis.Server, useTLS bool) (_ redis.Server, err error) {
	r.TLS, err = clientTLS(useTLS, "redis", clienttls.Files{
		CA: s.RedisTLSCACert, Cert: s.RedisTLSClientCert, Key: s.RedisTLSClientKey, SkipHostname: s.RedisTLSSkipHostname,
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
