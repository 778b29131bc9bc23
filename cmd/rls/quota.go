package main

import (
	"context"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service/quota"
)

// quotaTimeout bounds each trip to Redis about quotas.
const quotaTimeout = 200 * time.Millisecond

// addQuotas adds Envoy's RateLimitQuotaService to o. The service ends with p. memcached can't keep quotas, so with
// memcached there is no such service, and limits files with quotas are invalid.
func addQuotas(p *process, s *env.Settings, e *events.Events, l limits, checkDomain func(context.Context, string) error, o *server.Options) error {
	options := quota.Options{
		Limits: l.store, ShadowMode: s.ShadowMode, FallbackRatio: s.RedisFallbackRatio,
		MaxBuckets: s.QuotaMaxBuckets, MaxEntries: s.MaxEntries, CheckDomain: checkDomain, Log: e.Log,
	}
	options.FailureMode, _ = limit.ParseFailureMode(s.RedisFailureMode)
	switch s.Backend() {
	case env.BackendRedis:
		mainServer, err := addTLS(s, s.Redis(), s.RedisTLS)
		if err != nil {
			return err
		}
		store, err := redis.NewQuotas(mainServer, s.CacheKeyPrefix, quotaTimeout)
		if err != nil {
			return err
		}
		p.addCloser(func() { _ = store.Close() })
		p.start(store.KeepMarks)
		options.Store = store
	case env.BackendMemcache:
		return nil
	default:
		options.Store = local.NewQuotas()
	}
	quotas := quota.New(options)
	e.Metrics.Quotas(quotas.Stats)
	p.start(quotas.Run)
	o.Services = append(o.Services, func(r grpc.ServiceRegistrar) { rlqsv3.RegisterRateLimitQuotaServiceServer(r, quotas) })
	return nil
}
