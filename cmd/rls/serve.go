package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/docs/openapi"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/base/heap"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/statsd"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/server/admission"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/callers"
	"github.com/seed-81f232ab/rls/service/check"
)

func newServe() *cobra.Command {
	var limits string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve rate-limit calls (the same as rls without a command)",
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
			if err == nil {
				return nil
			}
			for line := range strings.SplitSeq(err.Error(), "\n") {
				log.Error("service failed", "problem", line)
			}
			return exitCode(1)
		},
	}
	cmd.Flags().StringVar(&limits, "limits", "", "limits file, or directory of limits files (LIMITS_PATH)")
	return cmd
}

func serve(ctx context.Context, s *env.Settings, log *slog.Logger) error {
	setMemoryLimits(ctx, log)
	e := newEvents(s, log)
	limits := newLimits(s, e)

	p := newProcess(ctx)
	defer p.end()
	if err := followLimits(p, s, limits, e); err != nil {
		return err
	}
	recorder := live.NewRecorder(e.Metrics.OverHits, s.TopKeys != string(live.KeysOff))
	tracer, err := startTracing(p, s, log)
	if err != nil {
		return err
	}
	counters, err := newBackend(p, s, e, recorder, tracer)
	if err != nil {
		return err
	}
	sendStats(p, s, e)
	adminCallers, err := newCallers(p, s, log)
	if err != nil {
		return err
	}
	overrides, err := newOverrides(p, s, limits, admin.Resets{Limits: limits.store, Layer: counters.Layer}, log)
	if err != nil {
		return err
	}
	candidate, candidateExplainer, err := startCandidate(p, s, e)
	if err != nil {
		return err
	}

	options := serverOptions(s, e, recorder)
	hub, observers := newDecisions(p, s, e)
	observers = append(observers, recorder)
	if tracer != nil {
		observers = append(observers, tracer)
	}
	if candidate != nil {
		observers = append(observers, candidate)
	}
	rateLimitService := newRateLimitService(s, limits, counters, e, callObservers(s, e, observers...)...)
	checkOptions := check.Options{Service: rateLimitService, Refunds: s.JSONRefunds, MaxChecks: s.MaxDescriptors}
	var rateLimitServer rlsv3.RateLimitServiceServer = rateLimitService
	options.HTTPContext = func(r *http.Request) context.Context { return callers.HTTPContext(r, s.CallerHeader) }
	if tracer != nil {
		rateLimitServer, checkOptions.StartCall = tracer.Service(rateLimitServer), tracer.StartCall
		options.HTTPContext = func(r *http.Request) context.Context {
			return tracer.HTTPContext(callers.HTTPContext(r, s.CallerHeader), r.Header)
		}
	}
	if rateLimitServer, checkOptions.CheckDomain, err = bindCallers(p, s, rateLimitServer, e); err != nil {
		return err
	}
	options.JSON, options.JSONRefunds = rateLimitServer, s.JSONRefunds
	options.Check = check.New(checkOptions)
	options.HTTPPages = []server.Page{{Path: openapi.CheckPath, Handler: http.HandlerFunc(openapi.CheckHandler)}}
	options.Services = []func(grpc.ServiceRegistrar){
		func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, rateLimitServer) },
	}
	access := pageAccess{adminCallers, log}
	quotas, err := addQuotas(p, s, e, limits, tracer, access, checkOptions.CheckDomain, &options)
	if err != nil {
		return err
	}
	liveHandlers := live.Handlers{Live: newLive(ctx, p, s, limits, counters, overrides, candidate, recorder, quotas, e), SeesKeys: access.mayOpen}
	explainOptions := counters.explain
	explainOptions.Limits, explainOptions.Candidate = limits.store, candidateExplainer
	explainOptions.AllOrNone, explainOptions.ShadowMode, explainOptions.QuotaMode = s.AllOrNone, s.ShadowMode, s.QuotaMode
	if quotas != nil {
		explainOptions.Shares = quotas.SharesOf
	}
	explainer := explain.New(explainOptions)
	options.DebugPages = slices.Concat(options.DebugPages, limits.pages(), livePages(liveHandlers), livePage(s, access, liveHandlers, explainer), adminPages(adminCallers, limits, counters, overrides, log),
		[]server.Page{
			access.protect(server.Page{Path: explain.Path, Help: "why a request is limited or not; ?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE", Handler: explainer}),
			access.protect(server.Page{Path: decisionsPath, Help: "a stream of live decisions, for rls tail; " + access.help(), Handler: hub, IsStream: true}),
		})
	if counters.firstPing != nil { // the first calls then need not wait until rls has connected to the store
		select {
		case <-counters.firstPing:
		case <-time.After(time.Second):
		}
	}
	srv, err := server.New(options)
	if err != nil {
		return err
	}
	if err := srv.Serve(ctx); err != nil {
		return err
	}
	log.Info("service stopped")
	return nil
}

func newEvents(s *env.Settings, log *slog.Logger) *events.Events {
	b := thisBuild()
	meter := metrics.New()
	meter.ResponseTimeMillis = s.ResponseTimeMillis
	meter.Build(metrics.BuildInfo{Version: b.Version, Commit: b.Commit, Date: b.Date, GoVersion: runtime.Version()})
	var changedSettings []any
	for _, v := range s.ChangedVariables() {
		changedSettings = append(changedSettings, slog.String(v.Name, v.Value))
	}
	log.Info("service starting", "version", b.Version, "commit", b.Commit, "date", b.Date, "go", runtime.Version(), "cores", runtime.GOMAXPROCS(0), slog.Group("settings", changedSettings...))
	return events.New(events.Options{Metrics: meter, Health: server.NewHealth(), Log: log, Version: b.Version, Backend: s.Backend()})
}

func setMemoryLimits(ctx context.Context, log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		heap.Bound(ctx)
	}
	// The limit is GOMEMLIMIT, or nine tenths of the container's memory. Near the limit, the
	// garbage collector runs more often.
	limit, err := memlimit.Set()
	switch {
	case errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
	case err != nil:
		log.Warn("memory limit of the container not found; set GOMEMLIMIT", "error", err)
	case limit < math.MaxInt64:
		log.Info("memory limit set", "bytes", limit)
	}
}

func newRateLimitService(s *env.Settings, l limits, counters *counterBackend, e *events.Events, observers ...service.Observer) *service.Service {
	o := service.Options{
		Limits:          l.store,
		Limiter:         counters,
		Observers:       observers,
		CallerHeader:    s.CallerHeader,
		ShadowMode:      s.ShadowMode,
		QuotaMode:       s.QuotaMode,
		DynamicMetadata: s.ResponseDynamicMetadata,
		RuleMetadata:    s.ResponseRuleMetadata,
		PolicyHeaders:   s.PolicyHeadersEnabled,
		MaxDescriptors:  s.MaxDescriptors,
		NoRefunds:       s.NegativeHits == "refuse",
		AllOrNone:       s.AllOrNone,
		MaxEntries:      s.MaxEntries,
		MaxAllEntries:   s.MaxAllEntries(),
	}
	if s.MaxCallerCallsPerSecond > 0 {
		o.AdmitCaller = callers.NewRateBound(s.MaxCallerCallsPerSecond, s.CallerHeader, e.RefusedCalls()).Admit
	}
	if s.ResponseHeadersEnabled {
		o.Headers = &service.Headers{Limit: s.LimitHeader, Remaining: s.RemainingHeader, Reset: s.ResetHeader}
	}
	return service.New(o)
}

// serverOptions returns the options of the listeners. The function serve adds the services and most debug pages.
func serverOptions(s *env.Settings, e *events.Events, recorder *live.Recorder) server.Options {
	o := server.Options{
		Health:   e.Health,
		Observer: e,
		GRPC: server.GRPC{
			Addr:              server.Addr{Host: s.GRPCHost, Port: s.GRPCPort, Setting: "GRPC_PORT"},
			UDS:               s.GRPCUDS,
			MaxMessageBytes:   s.GRPCMaxMessageBytes,
			MaxDescriptors:    s.MaxDescriptors,
			MaxAllEntries:     s.MaxAllEntries(),
			MaxStreams:        uint32(s.GRPCMaxStreams),
			MaxConnectionIdle: s.GRPCMaxConnectionIdle,
			Gate: newGate("grpc", admission.Options{
				MaxPendingBytes: s.GRPCMaxPendingBytes,
				MaxResets:       s.GRPCMaxPeerResets,
				MaxStreams:      int64(s.GRPCMaxStreams),
				OnReset: func() {
					e.Metrics.CallGivenUp()
					recorder.CallGivenUp()
				},
			}, s, e),
			MaxConnectionAge:      max(s.GRPCMaxConnectionAge, 0),
			MaxConnectionAgeGrace: s.GRPCMaxConnectionAgeGrace,
		},
		HTTP:      server.Addr{Host: s.Host, Port: s.Port, Setting: "PORT"},
		HTTPGate:  newGate("http", admission.Options{}, s, e),
		Debug:     server.Addr{Host: s.DebugHost, Port: s.DebugPort, Setting: "DEBUG_PORT"},
		DebugGate: newGate("debug", admission.Options{}, s, e),
		DebugPages: []server.Page{{
			Path: "/metrics", Help: "metrics for Prometheus", Handler: e.Metrics.Handler(s.ExtraTags),
			AllowsAnyHost: true, // metrics have no secrets, and Prometheus uses any name
		}, {
			Path: "/stats", Help: "metrics with their names in statsd", Handler: statsd.Handler(e.Metrics, e.Metrics.KeyCounts, s.ExtraTags),
		}},
		DebugNames:   s.DebugNames,
		DrainDelay:   s.DrainDelay,
		DrainTimeout: max(s.DrainTimeout, time.Nanosecond), // 0 would mean the default
		Log:          e.Log,
	}
	if observers != "off" {
		o.ObserveMethod = e.Metrics.Server()
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
	if s.UsePrometheus && !s.DisableStats {
		addr, _ := server.ParseAddr(s.PrometheusAddr) // package env has checked it
		addr.Setting = "PROMETHEUS_ADDR"
		o.Metrics = &server.MetricsListener{Addr: addr, Path: s.PrometheusPath, Handler: metricsHandler(s, e)}
	}
	return o
}

func metricsHandler(s *env.Settings, e *events.Events) http.Handler {
	if s.PrometheusMapper != "" {
		mapping, err := statsd.LoadMapping(s.PrometheusMapper)
		if err == nil {
			return e.Metrics.MappedHandler(s.ExtraTags, statsd.FamilyMapper(mapping, e.Metrics.KeyCounts))
		}
		if !errors.Is(err, fs.ErrNotExist) { // Envoy Gateway names a file that need not exist
			e.Log.Warn("mapping of metrics ignored", "setting", "PROMETHEUS_MAPPER_YAML", "error", err)
		}
	}
	return e.Metrics.Handler(s.ExtraTags)
}

// newGate returns the gate of a listener. The gate refuses connections beyond the bounds that newGate adds to o.
func newGate(listener string, o admission.Options, s *env.Settings, e *events.Events) *admission.Gate {
	o.Listener, o.Log = listener, e.Log
	o.MaxConnections, o.MaxPeerConnections = s.MaxConnections, s.MaxPeerConnections
	o.OnRefusal = e.Metrics.Refused(listener)
	gate := admission.New(o)
	e.Metrics.Admission(listener, gate.Connections, gate.PendingBytes)
	return gate
}
