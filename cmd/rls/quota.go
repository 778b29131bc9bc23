package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service/quota"
)

const quotaTimeout = 200 * time.Millisecond

// addQuotas adds Envoy's RateLimitQuotaService to serverOptions. The service ends when the process ends. memcached can't
// keep quotas, so with memcached, addQuotas adds no service and returns nil, and limits files with quotas are invalid.
func addQuotas(process *process, settings *env.Settings, serviceEvents *events.Events, limits limits, access pageAccess, checkDomain func(context.Context, string) error, serverOptions *server.Options) (*quota.Service, error) {
	options := quota.Options{
		Limits: limits.store, ShadowMode: settings.ShadowMode, FallbackRatio: settings.RedisFallbackRatio,
		MaxBuckets: settings.QuotaMaxBuckets, MaxEntries: settings.MaxEntries, CheckDomain: checkDomain, Log: serviceEvents.Log,
	}
	options.FailureMode, _ = limit.ParseFailureMode(settings.RedisFailureMode)
	switch settings.Backend() {
	case env.BackendRedis:
		mainServer, err := addTLS(settings, settings.Redis(), settings.RedisTLS)
		if err != nil {
			return nil, err
		}
		store, err := redis.NewQuotas(mainServer, settings.CacheKeyPrefix, quotaTimeout)
		if err != nil {
			return nil, err
		}
		process.addCloser(func() { _ = store.Close() })
		// When a limit has a quota, KeepMarks keeps a key in Redis. Without this key, the state of the quota counts as lost.
		process.start(func(ctx context.Context) {
			for isRunning := true; isRunning && !limits.store.Load().HasQuota(); {
				isRunning = wait.Sleep(ctx, time.Second)
			}
			store.KeepMarks(ctx)
		})
		options.Store = store
	case env.BackendMemcache:
		return nil, nil
	default:
		options.Store = local.NewQuotas()
	}
	quotas := quota.New(options)
	serviceEvents.Metrics.Quotas(quotas.Stats)
	process.start(quotas.Run)
	serverOptions.Services = append(serverOptions.Services, func(r grpc.ServiceRegistrar) { rlqsv3.RegisterRateLimitQuotaServiceServer(r, quotas) })
	serverOptions.DebugPages = append(serverOptions.DebugPages, access.protect(server.Page{
		Path: quotaPath, Help: "which Envoys share which limits, as JSON; ?filter=TEXT; " + access.help(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(quotas.Shares(r.URL.Query().Get(filterParam), maxShownCounters))
		}),
	}, false))
	return quotas, nil
}

// quotaPath is the path of the page about shares. The page shows at most maxShownCounters.
const (
	quotaPath        = "/quota"
	filterParam      = "filter"
	maxShownCounters = 1000
)

func newQuota() *cobra.Command {
	client := &adminClient{}
	cmd := &cobra.Command{
		Use:   "quota [TEXT]",
		Short: "Show which Envoys share which limits",
		Long: "Shows the shares of Envoys with the filter rate_limit_quota, in requests a second. With TEXT,\n" +
			"the command shows only counters whose names contain TEXT. A replica knows only the Envoys that are connected to it.",
		Example: "  rls quota 'shop|tenant=acme'\n" +
			"  rls quota --admin https://rls:6070 --json",
		Args: argCount(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var counters []quota.CounterShares
			query := url.Values{filterParam: {strings.Join(args, "")}}
			if err := client.call(cmd.Context(), http.MethodGet, quotaPath, query, nil, &counters); err != nil {
				return err
			}
			return printAs(cmd.OutOrStdout(), client.asJSON, counters, func(w io.Writer) error { return writeShares(w, counters) })
		},
	}
	client.addFlags(cmd.Flags())
	client.addAnswerFlags(cmd.Flags())
	return cmd
}

func writeShares(out io.Writer, counters []quota.CounterShares) error {
	var w strings.Builder
	if len(counters) == 0 {
		fmt.Fprintln(&w, "no Envoy shares a limit")
	}
	for i := range counters {
		w.WriteString(counters[i].Text())
	}
	_, err := io.WriteString(out, w.String())
	return err
}
