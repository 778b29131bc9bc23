package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/server"
	"github.com/seed-81f232ab/rls/service"
)

func newServe() *cobra.Command {
	var limits string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve rate-limit calls (the default)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limits != "" {
				_ = os.Setenv("LIMITS_PATH", limits)
			}
			s, warnings, err := env.Load()
			log := s.Logger(cmd.ErrOrStderr())
			for _, w := range warnings {
				log.Warn(w.Message, "setting", w.Setting, "reason", w.Reason)
			}
			if err == nil {
				err = serve(cmd.Context(), s, log)
			}
			return logProblems(err, log)
		},
	}
	cmd.Flags().StringVar(&limits, "limits", "", "limits file, or directory of them (LIMITS_PATH)")
	return cmd
}

// logProblems logs each line of err and returns exit code 1, or nil if err is nil.
func logProblems(err error, log *slog.Logger) error {
	if err == nil {
		return nil
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		log.Error("service failed", "problem", line)
	}
	return exitCode(1)
}

// serve runs the service until ctx is done.
func serve(ctx context.Context, s *env.Settings, log *slog.Logger) error {
	if os.Getenv("GOGC") == "" {
		// A call leaves garbage behind, but little lives on: collecting it less
		// often costs some megabytes and saves a part of each call.
		debug.SetGCPercent(400)
	}
	// Nine tenths of a container's memory, unless GOMEMLIMIT says otherwise: nearer to
	// it, garbage is collected sooner.
	most, err := memlimit.Set()
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("the container's memory limit can't be found; GOMEMLIMIT sets one", "error", err)
	case most < math.MaxInt64:
		log.Info("garbage is collected to stay below a share of the memory limit", "bytes", most)
	}
	health := server.NewHealth()
	count := metrics.New()
	limits := newLimits(s, health, count, log)

	// What runs beside the listeners ends after them, not with ctx: calls in
	// flight still count.
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := followLimits(beside, s, limits, health, log); err != nil {
		return err
	}
	counts, err := newBackend(beside, s, health, count, log)
	if err != nil {
		return err
	}
	defer counts.close()
	var kept *redisOverrides
	if s.OverridesEnabled {
		var leave func()
		if kept, leave, err = followOverrides(beside, s, limits, admin.Resets{Limits: limits.store, Caches: counts.caches}, log); err != nil {
			return err
		}
		defer leave()
	}

	options := service.Options{
		Limits:          limits.store,
		Limiter:         counts,
		Observer:        count.Service(),
		ShadowMode:      s.ShadowMode,
		QuotaMode:       s.QuotaMode,
		DynamicMetadata: s.ResponseDynamicMetadata,
	}
	if s.ResponseHeadersEnabled {
		options.Headers = &service.Headers{Limit: s.LimitHeader, Remaining: s.RemainingHeader, Reset: s.ResetHeader}
	}
	listeners, err := serverOptions(s, health, count, log)
	if err != nil {
		return err
	}
	limiter := service.New(options)
	listeners.JSON = limiter
	listeners.Services = []func(grpc.ServiceRegistrar){
		func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, limiter) },
	}
	listeners.DebugPages = append(append(listeners.DebugPages, limits.pages()...), adminPages(s, limits, counts, kept, log)...)
	srv, err := server.New(listeners)
	if err != nil {
		return err
	}
	if err := srv.Serve(ctx); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// serverOptions are the listeners, but for the service and the pages of others.
func serverOptions(s *env.Settings, health *server.Health, count *metrics.Metrics, log *slog.Logger) (server.Options, error) {
	o := server.Options{
		Health: health,
		GRPC: server.GRPC{
			Addr:                  server.Addr{Host: s.GRPCHost, Port: s.GRPCPort},
			UDS:                   s.GRPCUDS,
			MaxMessageBytes:       s.GRPCMaxMessageBytes,
			MaxConnectionAge:      orNever(s.GRPCMaxConnectionAge),
			MaxConnectionAgeGrace: orNever(s.GRPCMaxConnectionAgeGrace),
		},
		HTTP:  server.Addr{Host: s.Host, Port: s.Port},
		Debug: server.Addr{Host: s.DebugHost, Port: s.DebugPort},
		DebugPages: []server.Page{{
			Path: "/metrics", Help: "metrics for Prometheus", Handler: count.Handler(),
		}},
		DrainDelay:   s.DrainDelay,
		DrainTimeout: max(s.DrainTimeout, time.Nanosecond), // 0 would be the default
		Log:          log,
	}
	if s.GRPCServerUseTLS {
		o.GRPC.TLS = &server.TLS{
			CertFile:     s.GRPCServerTLSCert,
			KeyFile:      s.GRPCServerTLSKey,
			ClientCAFile: s.GRPCClientTLSCACert,
			ClientSAN:    s.GRPCClientTLSSAN,
		}
	}
	if s.DebugTLSCert != "" {
		o.DebugTLS = &server.TLS{
			CertFile:           s.DebugTLSCert,
			KeyFile:            s.DebugTLSKey,
			ClientCAFile:       s.DebugTLSClientCACert,
			ClientCertOptional: s.DebugTLSClientCACert != "",
		}
	}
	if s.UsePrometheus {
		addr, err := server.ParseAddr(s.PrometheusAddr)
		if err != nil {
			return o, fmt.Errorf("PROMETHEUS_ADDR=%w", err)
		}
		o.Metrics = &server.MetricsListener{Addr: addr, Path: s.PrometheusPath, Handler: count.Handler()}
	}
	return o, nil
}

// orNever is d, where 0 means no bound, as package server has it.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
