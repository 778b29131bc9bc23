package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
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
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/limit"
)

// counterBackend is the backend that counts for the service.
type counterBackend struct {
	backend.Layer

	prefixes     backend.PrefixResetter
	perReplica   bool              // each replica has its own counters
	fallback     *fallback.Limiter // nil if the counters are local
	redisCheck   *redisCheck       // nil without Redis
	explain      explain.Options   // without the limits and the settings of the service
	waitForStore func()            // waits until the store has answered, or has not answered for a second
}

// newBackend returns the backend of the settings. p owns its goroutines.
func newBackend(p *process, s *env.Settings, health *server.Health, meter *metrics.Metrics, recorder *live.Recorder, tracer redis.Tracer, events changes, log *slog.Logger) (*counterBackend, error) {
	counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys})
	meter.Local(counters.Keys, counters.Evictions, counters.Bytes)
	p.start(func(ctx context.Context) { counters.Run(ctx, time.Minute) })
	if s.Backend() != env.BackendLocal {
		observer := &storeObserver{
			Observer: meter.Fallback(), process: p, settings: s, health: health, events: events, outageEnded: func() {},
			loggedOpenings: map[int]loggedOpening{}, log: log,
		}
		if s.Backend() == env.BackendMemcache {
			return newMemcachedBackend(p, s, counters, observer, meter)
		}
		return newRedisBackend(p, s, counters, observer, meter, recorder, tracer)
	}
	log.Info("counting in this process; each replica counts alone", "max_keys", s.LocalMaxKeys)
	layer := backend.Counters{Limiter: counters}
	return &counterBackend{Layer: layer, prefixes: counters, perReplica: true, explain: explain.Options{Layer: layer}, waitForStore: func() {}}, nil
}

// store is a place of counters that all replicas share.
type store interface {
	backend.Limiter
	backend.PrefixResetter
	Shards() int
	ShardOf(*backend.Hit) int
	Probe(ctx context.Context, shard int) error
	Ping(context.Context) error
	Close() error
}

// newStoreBackend returns a backend that counts in a store. While the store is down, the backend counts in
// localCounters. o has the options that only some stores have. connected is called after the first answer
// of the store. addLeases adds leases to the layers, unless it is nil.
func newStoreBackend(p *process, s *env.Settings, store store, o fallback.Options, localCounters *local.Limiter, observer *storeObserver, meter *metrics.Metrics, connected func(context.Context), addLeases func(*counterBackend)) *counterBackend {
	mode, _ := limit.ParseFailureMode(s.RedisFailureMode)
	o.Primary, o.Shards, o.ShardOf, o.Probe = store, store.Shards(), store.ShardOf, store.Probe
	o.Secondary, o.Ratio, o.Mode, o.IdleProbe, o.Observer = localCounters, s.RedisFallbackRatio, mode, idleProbePause, observer
	withFallback := fallback.New(o)
	observer.fallback.Store(withFallback)
	meter.FallbackStatus(observer.shards, withFallback.Status)
	pinged := make(chan struct{})
	if s.RedisHealthCheckActive {
		observer.health.Set(strings.ToLower(observer.store), false, "no connection to "+observer.store+" yet")
	}
	w := storeWatch{name: observer.store, ping: store.Ping, connected: connected, health: observer.health, reportHealth: s.RedisHealthCheckActive}
	p.start(func(ctx context.Context) { w.run(ctx, func() { close(pinged) }) })
	p.atEnd(func() { withFallback.Close(); _ = store.Close() })

	b := &counterBackend{Layer: withFallback, fallback: withFallback, waitForStore: func() { awaitPing(pinged) }}
	if s.DenyCacheBytes > 0 {
		b.Layer = denycache.New(b.Layer, denycache.Options{SizeBytes: s.DenyCacheBytes, Observer: meter.DenyCache()})
	}
	if addLeases != nil {
		addLeases(b)
	}
	b.Layer = backend.Scopes{Global: b.Layer, Instance: backend.Counters{Limiter: localCounters}}
	b.prefixes = backend.ScopePrefixes{Global: store, Instance: localCounters}
	b.explain.Layer, b.explain.FailingSince = b.Layer, withFallback.FailingSince
	return b
}

// idleProbePause is the pause between two probes of a store without failures. They find an
// outage of the store before the next call does.
const idleProbePause = 10 * time.Second

// newRedisBackend returns a backend that counts in Redis.
func newRedisBackend(p *process, s *env.Settings, localCounters *local.Limiter, observer *storeObserver, meter *metrics.Metrics, recorder *live.Recorder, tracer redis.Tracer) (*counterBackend, error) {
	roles := []redis.Role{redis.RoleMain}
	if s.PerSecond {
		roles = append(roles, redis.RolePerSecond)
	}
	log := observer.log
	client, err := newRedis(s, s.CacheKeyPrefix, batchObserver{meter.Redis(roles...), recorder, &unconfirmedLog{replicas: s.RedisWaitReplicas, log: log}}, tracer)
	if err != nil {
		return nil, err
	}
	redis.LogTo(log)
	meter.RedisStatus(client)
	check := newRedisCheck(client.Check, meter.RedisCheck(roles...), observer.health, log)
	observer.store, observer.advice, observer.outageEnded, observer.shards = "Redis", redis.AdviceFor, check.outageEnded, metrics.ShardsOf(client)
	connected := func(ctx context.Context) {
		roundTrip := client.MeasureRoundTrip(ctx)
		log.Info("counting in Redis", "round_trip", roundTrip.Round(10*time.Microsecond), "timeout", client.Timeout())
	}
	addLeases := func(b *counterBackend) {
		leases := lease.New(lease.Options{
			Next: b.Layer, Source: client,
			IsFailing: func(h *backend.Hit) bool { return !b.fallback.FailingSince(h).IsZero() },
		})
		meter.Leases(leases.Stats)
		p.start(leases.Run)
		p.atEnd(leases.Close)
		b.Layer, b.explain.HeldPermits = leases, leases.HeldPermits
	}
	o := fallback.Options{KeepsCounters: client.KeepsCounters, LastCount: client.TakeLastCount}
	b := newStoreBackend(p, s, client, o, localCounters, observer, meter, connected, addLeases)
	p.start(check.run)
	b.redisCheck, b.explain.RedisKey = check, client.Counter
	return b, nil
}

// newMemcachedBackend returns a backend that counts in memcached.
func newMemcachedBackend(p *process, s *env.Settings, localCounters *local.Limiter, observer *storeObserver, meter *metrics.Metrics) (*counterBackend, error) {
	client, err := newMemcached(s, s.CacheKeyPrefix, observer.log)
	if err != nil {
		return nil, err
	}
	observer.store = "memcached"
	observer.advice = func(error) string {
		return "check that memcached runs, and that MEMCACHE_HOST_PORT or MEMCACHE_SRV has its address"
	}
	for i := range client.Shards() {
		observer.shards = append(observer.shards, metrics.Shard{Server: "main", Name: strconv.Itoa(i)})
	}
	connected := func(context.Context) { observer.log.Info("counting in memcached", "servers", client.Shards()) }
	return newStoreBackend(p, s, client, fallback.Options{}, localCounters, observer, meter, connected, nil), nil
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
	if s.MemcacheTLS {
		files := clienttls.Files{CA: s.MemcacheTLSCACert, Cert: s.MemcacheTLSClientCert, Key: s.MemcacheTLSClientKey, SkipHostname: s.MemcacheTLSSkipHostname}
		config, err := files.Config()
		if err != nil {
			return nil, fmt.Errorf("memcached TLS: %w", err)
		}
		o.TLS = config
	}
	return memcached.New(o)
}

// newRedis returns a client whose keys begin with keyPrefix.
func newRedis(s *env.Settings, keyPrefix string, observer redis.Observer, tracer redis.Tracer) (*redis.Limiter, error) {
	mainServer, err := withTLS(s, s.Redis(), s.RedisTLS)
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
		MaxBatchSize:       s.RedisMaxBatchSize,
		MaxInflightBatches: s.RedisMaxInflightBatches,
		MaxQueueSize:       s.RedisMaxQueueSize,
		WaitReplicas:       s.RedisWaitReplicas,
		Overrides:          s.OverridesEnabled,
		Observer:           observer,
		Tracer:             tracer,
	}
	if s.PerSecond {
		perSecond, err := withTLS(s, s.PerSecondRedis(), s.PerSecondTLS)
		if err != nil {
			return nil, err
		}
		o.PerSecond = &perSecond
	}
	return redis.New(o)
}

// withTLS returns r, which uses the files of REDIS_TLS_… if useTLS is true.
func withTLS(s *env.Settings, r redis.Server, useTLS bool) (redis.Server, error) {
	if !useTLS {
		return r, nil
	}
	files := clienttls.Files{
		CA:           s.RedisTLSCACert,
		Cert:         s.RedisTLSClientCert,
		Key:          s.RedisTLSClientKey,
		SkipHostname: s.RedisTLSSkipHostname,
	}
	config, err := files.Config()
	if err != nil {
		return r, fmt.Errorf("redis TLS: %w", err)
	}
	r.TLS = config
	return r, nil
}

// Pauses between pings, before and after the first connection.
const (
	pingPauseAtStart = 200 * time.Millisecond
	pingPause        = time.Second
)

// connectTime bounds the time that the start waits for a store.
const connectTime = time.Second

// awaitPing waits until the channel is closed, or connectTime is over.
func awaitPing(pinged <-chan struct{}) {
	select {
	case <-pinged:
	case <-time.After(connectTime):
	}
}

// storeWatch pings a store until the first connection. With reportHealth, it goes on and sets the health
// component of the store.
type storeWatch struct {
	name         string
	ping         func(context.Context) error
	connected    func(context.Context) // called after the first answer
	health       *server.Health
	reportHealth bool
}

// run pings until ctx is done. It logs no failure, because the line about the outage has the cause. It
// calls onPing after the first ping, once the connections are open.
func (w storeWatch) run(ctx context.Context, onPing func()) {
	onPing = sync.OnceFunc(onPing)
	defer onPing()
	component := strings.ToLower(w.name)
	pause := pingPauseAtStart
	for {
		err := w.ping(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil && pause == pingPauseAtStart {
			w.connected(ctx)
			pause = pingPause
		}
		if w.reportHealth {
			w.health.Set(component, err == nil, "no connection to "+w.name)
		} else if err == nil {
			return
		}
		onPing()
		if !wait.Sleep(ctx, pause) {
			return
		}
	}
}
