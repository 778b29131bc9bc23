package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/guard"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/scope"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/server"
)

// memory is what a replica remembers of counters that others can reset.
type memory interface {
	Invalidate(*backend.Hit)
	InvalidateAll()
}

// counting is what counts for the service.
type counting struct {
	backend.Limiter

	// below asks what counts itself, past what this process remembers of it.
	below backend.Limiter

	// own tells that this process counts for itself alone.
	own bool

	// memories are what this process remembers of counters that others can reset.
	memories []memory

	close func()
}

// newBackend makes what the settings ask for. What runs beside it ends with ctx;
// close releases the rest.
func newBackend(ctx context.Context, s *env.Settings, health *server.Health, count *metrics.Metrics, log *slog.Logger) (*counting, error) {
	counters := local.New(local.Options{MaxKeys: s.LocalMaxKeys, AllOrNone: s.AllOrNone})
	count.Local(counters)
	switch s.Backend() {
	case env.BackendLocal:
		go counters.Run(ctx, time.Minute)
		log.Info("counting in this process; replicas don't share budgets", "max_keys", s.LocalMaxKeys)
		return &counting{Limiter: counters, below: counters, own: true, close: func() {}}, nil
	case env.BackendRedis:
		inRedis, err := newRedis(s)
		if err != nil {
			return nil, err
		}
		redis.LogTo(log)
		mode, _ := limit.ParseFailureMode(s.RedisFailureMode)
		always := fallback.New(fallback.Options{
			Primary:   inRedis,
			Secondary: counters,
			Ratio:     s.RedisFallbackRatio,
			Mode:      mode,
			Shards:    inRedis.Shards(),
			ShardOf:   inRedis.ShardOf,
			Probe:     inRedis.Probe,
			Observer:  redisObserver{count.Fallback(), s, health, log},
		})
		go counters.Run(ctx, time.Minute)
		if s.RedisHealthCheckActive {
			health.Set("redis", false, "Redis has not been reached yet")
		}
		watching, stopWatching := context.WithCancel(ctx)
		go watchRedis(watching, inRedis.Ping, s.RedisHealthCheckActive, health, log)
		var shared backend.Limiter = always
		var memories []memory
		if s.LocalGuardRatio > 0 && !s.AllOrNone {
			guarded := guard.New(guard.Options{Next: shared, Counters: counters, Ratio: s.LocalGuardRatio})
			shared, memories = guarded, append(memories, guarded)
		}
		if s.DenyCacheBytes > 0 {
			cached := denycache.New(shared, denycache.Options{SizeBytes: s.DenyCacheBytes, AllOrNone: s.AllOrNone, Observer: count.DenyCache()})
			shared, memories = cached, append(memories, cached)
		}
		return &counting{
			Limiter:  scope.New(shared, counters),
			below:    scope.New(always, counters),
			memories: memories,
			close:    func() { stopWatching(); always.Close(); _ = inRedis.Close() },
		}, nil
	}
	return nil, fmt.Errorf("BACKEND_TYPE=%q is not redis or local", s.BackendType)
}

func newRedis(s *env.Settings) (*redis.Limiter, error) {
	main, secure, err := redisServer(s)
	if err != nil {
		return nil, err
	}
	o := redis.Options{
		Main:               main,
		KeyPrefix:          s.CacheKeyPrefix,
		Partitions:         s.RedisPartitions,
		Jitter:             time.Duration(max(s.ExpirationJitterMax, 0)) * time.Second,
		AllOrNone:          s.AllOrNone,
		Timeout:            s.RedisTimeout,
		MaxBatchSize:       s.RedisMaxBatchSize,
		MaxInflightBatches: s.RedisMaxInflightBatches,
		MaxQueueSize:       s.RedisMaxQueueSize,
		WaitReplicas:       s.RedisWaitReplicas,
	}
	if s.PerSecond {
		o.PerSecond = &redis.Server{
			Kind:         redis.Kind(s.PerSecondType),
			URL:          s.PerSecondURL,
			SocketType:   s.PerSecondSocketType,
			Auth:         s.PerSecondAuth,
			SentinelAuth: s.PerSecondSentinelAuth,
			PoolSize:     s.PerSecondPoolSize,
		}
		if s.PerSecondTLS {
			o.PerSecond.TLS = secure
		}
	}
	return redis.New(o)
}

// redisServer tells how to reach the Redis of REDIS_URL, and what makes connections to
// any Redis secure: nil if none is to be.
func redisServer(s *env.Settings) (main redis.Server, secure *tls.Config, err error) {
	if s.RedisTLS || s.PerSecond && s.PerSecondTLS {
		if secure, err = redis.LoadTLS(redis.TLSFiles{
			CA:           s.RedisTLSCACert,
			Cert:         s.RedisTLSClientCert,
			Key:          s.RedisTLSClientKey,
			SkipHostname: s.RedisTLSSkipHostname,
		}); err != nil {
			return redis.Server{}, nil, err
		}
	}
	main = redis.Server{
		Kind:         redis.Kind(s.RedisType),
		URL:          s.RedisURL,
		SocketType:   s.RedisSocketType,
		Auth:         s.RedisAuth,
		SentinelAuth: s.RedisSentinelAuth,
		PoolSize:     s.RedisPoolSize,
	}
	if s.RedisTLS {
		main.TLS = secure
	}
	return main, secure, nil
}

// redisObserver reports outages of Redis to the log, to readers of /healthcheck and to
// the metrics.
type redisObserver struct {
	*metrics.Fallback
	settings *env.Settings
	health   *server.Health
	log      *slog.Logger
}

// StateChanged implements fallback.Observer.
func (o redisObserver) StateChanged(c fallback.StateChange) {
	o.Fallback.StateChanged(c)
	mode, ratio := o.settings.RedisFailureMode, o.settings.RedisFallbackRatio
	if c.Down {
		o.health.Note("redis", fmt.Sprintf("down since %s; deciding without Redis (mode %s, ratio %v)",
			time.Now().UTC().Format(time.RFC3339), mode, ratio))
		o.log.Error("Redis outage started", "error", c.Err, "mode", mode, "ratio", ratio)
		return
	}
	o.health.Note("redis", "")
	o.log.Info("Redis outage ended", "lasted", c.Duration.Round(time.Millisecond), "hits_served", c.Served, "hits_replayed", c.Replayed)
}

const (
	pingEvery   = time.Second
	pingAtFirst = 200 * time.Millisecond // until Redis has been reached once
)

// watchRedis logs when Redis is first reached. If follow is set, it goes on to ping
// until ctx is done, and the health component redis says what came of it.
func watchRedis(ctx context.Context, ping func(context.Context) error, follow bool, health *server.Health, log *slog.Logger) {
	reached, told := false, false
	for {
		err := ping(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !told && !reached:
			log.Error("Redis can't be reached yet; going on without it until it can", "error", err)
			told = true
		case err == nil && !reached:
			log.Info("counting in Redis")
			reached = true
			if !follow {
				return
			}
		}
		if follow {
			health.Set("redis", err == nil, "Redis can't be reached")
		}
		pause := pingEvery
		if !reached {
			pause = pingAtFirst
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
