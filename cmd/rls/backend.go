package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/guard"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/scope"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/explain"
	"github.com/seed-81f232ab/rls/internal/clienttls"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/live"
	"github.com/seed-81f232ab/rls/server"
)

// counterBackend is the backend that counts for the service.
type counterBackend struct {
	backend.Limiter // with all caches

	uncached     backend.Limiter // for hits of 0 only
	prefixes     backend.PrefixResetter
	caches       []admin.Cache
	perReplica   bool              // each replica has its own counters
	redis        *fallback.Limiter // nil if the counters are local
	redisCheck   *redisCheck       // nil if the counters are local
	explain      explain.Options   // without the limits and the settings of the service
	waitForRedis func()            // waits until Redis has answered, or has not answered for a second
	close        func()
}

// newBackend returns the backend of the settings. Its goroutines end with ctx. Its close
// function must be called at the end.
func newBackend(ctx context.Context, s *env.Settings, health *server.Health, meter *metrics.Metrics, recorder *live.Recorder, tracer redis.Tracer, events changes, log *slog.Logger) (*counterBackend, error) {
	counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys, AllOrNone: s.AllOrNone})
	meter.Local(counters.Keys, counters.Evictions, counters.Bytes)
	go counters.Run(ctx, time.Minute)
	if s.Backend() == env.BackendRedis {
		return newRedisBackend(ctx, s, counters, health, meter, recorder, tracer, events, log)
	}
	log.Info("counting in this process; each replica counts alone", "max_keys", s.LocalMaxKeys)
	return &counterBackend{Limiter: counters, uncached: counters, prefixes: counters, perReplica: true, explain: explain.Options{Counters: counters}, waitForRedis: func() {}, close: func() {}}, nil
}

// idleProbePause is the pause between two probes of a Redis without failures. They find an
// outage of Redis before the next call does.
const idleProbePause = 10 * time.Second

// newRedisBackend returns a backend that counts in Redis. While Redis is down, it counts
// in localCounters.
func newRedisBackend(ctx context.Context, s *env.Settings, localCounters *local.Limiter, health *server.Health, meter *metrics.Metrics, recorder *live.Recorder, tracer redis.Tracer, events changes, log *slog.Logger) (*counterBackend, error) {
	roles := []redis.Role{redis.RoleMain}
	if s.PerSecond {
		roles = append(roles, redis.RolePerSecond)
	}
	client, err := newRedis(s, s.CacheKeyPrefix, batchObserver{meter.Redis(roles...), recorder, &unconfirmedLog{replicas: s.RedisWaitReplicas, log: log}}, tracer)
	if err != nil {
		return nil, err
	}
	redis.LogTo(log)
	mode, _ := limit.ParseFailureMode(s.RedisFailureMode)
	check := newRedisCheck(client.Check, meter.RedisCheck(roles...), health, log)
	observer := &redisObserver{
		Observer: meter.Fallback(), ctx: ctx, settings: s, health: health, events: events, outageEnded: check.outageEnded,
		shards: metrics.ShardsOf(client), loggedOpenings: map[int]loggedOpening{}, log: log,
	}
	withFallback := fallback.New(fallback.Options{
		Primary:       client,
		Secondary:     localCounters,
		AllOrNone:     s.AllOrNone,
		Ratio:         s.RedisFallbackRatio,
		Mode:          mode,
		Shards:        client.Shards(),
		ShardOf:       client.ShardOf,
		Probe:         client.Probe,
		IdleProbe:     idleProbePause,
		KeepsCounters: client.KeepsCounters,
		LastCount:     client.TakeLastCount,
		Observer:      observer,
	})
	observer.fallback.Store(withFallback)
	meter.RedisStatus(client)
	meter.FallbackStatus(observer.shards, withFallback.Status)
	if s.RedisHealthCheckActive {
		health.Set("redis", false, "no connection to Redis yet")
	}
	pingCtx, stopPings := context.WithCancel(ctx)
	pinged := make(chan struct{})
	go watchRedis(pingCtx, client, s.RedisHealthCheckActive, health, log, func() { close(pinged) })
	go check.run(pingCtx)

	b := &counterBackend{redis: withFallback, redisCheck: check, waitForRedis: func() { awaitPing(pinged) }}
	var shared backend.Limiter = withFallback
	if s.LocalGuardRatio > 0 && !s.AllOrNone {
		guarded := guard.New(guard.Options{Next: shared, Counters: localCounters, Ratio: s.LocalGuardRatio})
		shared, b.caches = guarded, append(b.caches, guarded)
		b.explain.Caches = append(b.explain.Caches, guarded)
	}
	if s.DenyCacheBytes > 0 {
		cached := denycache.New(shared, denycache.Options{SizeBytes: s.DenyCacheBytes, AllOrNone: s.AllOrNone, Observer: meter.DenyCache()})
		shared, b.caches = cached, append(b.caches, cached)
		b.explain.Caches = append([]explain.Cache{cached}, b.explain.Caches...) // the outer cache answers first
	}
	leases := lease.New(lease.Options{
		Next: shared, Source: client, AllOrNone: s.AllOrNone,
		IsFailing: func(h *backend.Hit) bool { return !withFallback.FailingSince(h).IsZero() },
	})
	meter.Leases(leases.Stats)
	go leases.Run(pingCtx)
	b.Limiter = scope.New(leases, localCounters)
	b.caches = append(b.caches, leases)
	b.prefixes = scope.Prefixes{Global: client, Instance: localCounters}
	b.uncached = scope.New(leases.Peeker(withFallback.Peeker()), localCounters)
	b.explain.Counters, b.explain.RedisKey, b.explain.HeldPermits = b.uncached, client.Counter, leases.HeldPermits
	b.explain.FailingSince, b.explain.FallbackRatio = withFallback.FailingSince, s.RedisFallbackRatio
	b.close = func() { stopPings(); leases.Close(); withFallback.Close(); _ = client.Close() }
	return b, nil
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
		AllOrNone:          s.AllOrNone,
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

// connectTime bounds the time that the start waits for Redis.
const connectTime = time.Second

// awaitPing waits until the channel is closed, or connectTime is over.
func awaitPing(pinged <-chan struct{}) {
	select {
	case <-pinged:
	case <-time.After(connectTime):
	}
}

// redisClient is the part of a redis.Limiter that watchRedis uses.
type redisClient interface {
	Ping(ctx context.Context) error
	MeasureRoundTrip(ctx context.Context) time.Duration
	Timeout() time.Duration
}

// watchRedis pings Redis until the first connection and logs it. With reportHealth,
// watchRedis goes on until ctx is done and sets the health component redis. It logs no failure,
// because the line about the outage has the cause. It calls onPing after the first ping, once the
// connections are open.
func watchRedis(ctx context.Context, client redisClient, reportHealth bool, health *server.Health, log *slog.Logger, onPing func()) {
	onPing = sync.OnceFunc(onPing)
	defer onPing()
	pause := pingPauseAtStart
	for {
		err := client.Ping(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil && pause == pingPauseAtStart {
			roundTrip := client.MeasureRoundTrip(ctx)
			log.Info("counting in Redis", "round_trip", roundTrip.Round(10*time.Microsecond), "timeout", client.Timeout())
			pause = pingPause
		}
		if reportHealth {
			health.Set("redis", err == nil, "no connection to Redis")
		} else if err == nil {
			return
		}
		onPing()
		if !wait.Sleep(ctx, pause) {
			return
		}
	}
}
