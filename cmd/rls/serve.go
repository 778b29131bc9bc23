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
		Args:  noArgs("--limits PATH (or LIMITS_PATH) names the limits file or its directory"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limits != "" {
				_ = os.Setenv("LIMITS_PATH", limits)
			}
			settings, warnings, err := env.Load()
			log := settings.Logger(cmd.ErrOrStderr())
			for _, w := range warnings {
				log.Warn(w.Message, "setting", w.Setting, "reason", w.Reason)
			}
			if err == nil {
				err = serve(cmd.Context(), settings, log)
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

func serve(ctx context.Context, settings *env.Settings, log *slog.Logger) error {
	setMemoryLimits(ctx, log)
	serviceEvents := newEvents(settings, log)
	limits := newLimits(settings, serviceEvents)

	process := newProcess(ctx)
	defer process.end()
	if err := followLimits(process, settings, limits, serviceEvents); err != nil {
		return err
	}
	recorder := live.NewRecorder(serviceEvents.Metrics.OverHits, settings.TopKeys != string(live.KeysOff))
	tracer, err := startTracing(process, settings, log)
	if err != nil {
		return err
	}
	counters, err := newBackend(process, settings, serviceEvents, recorder, tracer)
	if err != nil {
		return err
	}
	sendStats(process, settings, serviceEvents)
	adminCallers, err := newCallers(process, settings, serviceEvents)
	if err != nil {
		return err
	}
	adminLayer := resetNotifier{counters.Layer, recorder.CountersReset}
	overrides, err := newOverrides(process, settings, limits, admin.Resets{Limits: limits.store, Layer: adminLayer}, log)
	if err != nil {
		return err
	}
	candidate, candidateExplainer, err := startCandidate(process, settings, serviceEvents)
	if err != nil {
		return err
	}

	options := serverOptions(settings, serviceEvents, recorder)
	hub, observers := newDecisionObservers(process, settings, serviceEvents)
	observers = append(observers, recorder)
	if tracer != nil {
		observers = append(observers, tracer)
	}
	if candidate != nil {
		observers = append(observers, candidate)
	}
	rateLimitService := newRateLimitService(settings, limits, counters, serviceEvents, callObservers(settings, serviceEvents, observers...)...)
	checkOptions := check.Options{Service: rateLimitService, Refunds: settings.JSONRefunds, MaxChecks: settings.MaxDescriptors}
	var rateLimitServer rlsv3.RateLimitServiceServer = rateLimitService
	options.HTTPContext = func(r *http.Request) context.Context { return callers.HTTPContext(r, settings.CallerHeader) }
	if tracer != nil {
		rateLimitServer, checkOptions.StartCall = tracer.Service(rateLimitServer), tracer.StartCall
		options.HTTPContext = func(r *http.Request) context.Context {
			return tracer.HTTPContext(callers.HTTPContext(r, settings.CallerHeader), r.Header)
		}
	}
	if rateLimitServer, checkOptions.CheckDomain, err = checkCallerDomains(process, settings, rateLimitServer, serviceEvents); err != nil {
		return err
	}
	options.JSON, options.JSONRefunds = rateLimitServer, settings.JSONRefunds
	options.Check = check.New(checkOptions)
	options.HTTPPages = []server.Page{{Path: openapi.CheckPath, Handler: http.HandlerFunc(openapi.CheckHandler)}}
	options.Services = []func(grpc.ServiceRegistrar){
		func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, rateLimitServer) },
	}
	access := pageAccess{adminCallers, log}
	quotas, err := addQuotas(process, settings, serviceEvents, limits, access, checkOptions.CheckDomain, &options)
	if err != nil {
		return err
	}
	liveHandlers := live.Handlers{Live: newLive(ctx, process, settings, limits, counters, overrides, candidate, recorder, quotas, serviceEvents), SeesKeys: access.mayOpen}
	explainOptions := counters.explain
	explainOptions.Limits, explainOptions.Candidate = limits.store, candidateExplainer
	explainOptions.AllOrNone, explainOptions.ShadowMode, explainOptions.QuotaMode = settings.AllOrNone, settings.ShadowMode, settings.QuotaMode
	if quotas != nil {
		explainOptions.Shares = quotas.SharesOf
	}
	explainer := explain.New(explainOptions)
	options.DebugPages = slices.Concat(options.DebugPages, limits.pages(), liveJSONPages(liveHandlers), livePage(settings, access, liveHandlers, explainer), adminPages(adminCallers, limits, counters, adminLayer, overrides, log),
		[]server.Page{
			access.protect(server.Page{Path: explain.Path, Help: "why a request is limited or not; ?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE", Handler: explainer}, true),
			access.protect(server.Page{Path: decisionsPath, Help: "a stream of live decisions, for rls tail; " + access.help(), Handler: hub, IsStream: true}, true),
		})
	if counters.firstPing != nil { // rls connects to the store before it listens, so the first calls need not wait
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

func newEvents(settings *env.Settings, log *slog.Logger) *events.Events {
	currentBuild := thisBuild()
	meter := metrics.New()
	meter.ResponseTimeMillis = settings.ResponseTimeMillis
	meter.Build(currentBuild.Version, currentBuild.Commit, currentBuild.Date, runtime.Version())
	var changedSettings []any
	for _, variable := range settings.ChangedVariables() {
		changedSettings = append(changedSettings, slog.String(variable.Name, variable.Value))
	}
	log.Info("service starting", "version", currentBuild.Version, "commit", currentBuild.Commit, "date", currentBuild.Date, "go", runtime.Version(), "cores", runtime.GOMAXPROCS(0), slog.Group("settings", changedSettings...))
	return events.New(events.Options{Metrics: meter, Health: server.NewHealth(), Log: log, Version: currentBuild.Version, Backend: settings.Backend()})
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

func newRateLimitService(settings *env.Settings, limits limits, counters *counterBackend, serviceEvents *events.Events, observers ...service.Observer) *service.Service {
	options := service.Options{
		Limits:          limits.store,
		Limiter:         counters,
		Observers:       observers,
		CallerHeader:    settings.CallerHeader,
		ShadowMode:      settings.ShadowMode,
		QuotaMode:       settings.QuotaMode,
		DynamicMetadata: settings.ResponseDynamicMetadata,
		RuleMetadata:    settings.ResponseRuleMetadata,
		PolicyHeaders:   settings.PolicyHeadersEnabled,
		MaxDescriptors:  settings.MaxDescriptors,
		NoRefunds:       settings.NegativeHits == "refuse",
		AllOrNone:       settings.AllOrNone,
		MaxEntries:      settings.MaxEntries,
		MaxAllEntries:   settings.MaxAllEntries(),
	}
	if settings.MaxCallerCallsPerSecond > 0 {
		options.AdmitCaller = callers.NewRateBound(settings.MaxCallerCallsPerSecond, settings.CallerHeader, serviceEvents.RefusedCalls()).Admit
	}
	if settings.ResponseHeadersEnabled {
		options.Headers = &service.Headers{Limit: settings.LimitHeader, Remaining: settings.RemainingHeader, Reset: settings.ResetHeader}
	}
	return service.New(options)
}

// serverOptions returns the options of the listeners. The function serve adds the services and most debug pages.
func serverOptions(settings *env.Settings, serviceEvents *events.Events, recorder *live.Recorder) server.Options {
	options := server.Options{
		Health:   serviceEvents.Health,
		Observer: serviceEvents,
		GRPC: server.GRPC{
			Addr:              server.Addr{Host: settings.GRPCHost, Port: settings.GRPCPort, Setting: "GRPC_PORT"},
			UDS:               settings.GRPCUDS,
			MaxMessageBytes:   settings.GRPCMaxMessageBytes,
			MaxDescriptors:    settings.MaxDescriptors,
			MaxAllEntries:     settings.MaxAllEntries(),
			MaxStreams:        uint32(settings.GRPCMaxStreams),
			MaxConnectionIdle: settings.GRPCMaxConnectionIdle,
			Gate: newGate("grpc", admission.Options{
				MaxPendingBytes: settings.GRPCMaxPendingBytes,
				MaxResets:       settings.GRPCMaxPeerResets,
				MaxStreams:      int64(settings.GRPCMaxStreams),
				OnReset: func() {
					serviceEvents.Metrics.CallGivenUp()
					recorder.CallGivenUp()
				},
			}, settings, serviceEvents, recorder),
			MaxConnectionAge:      max(settings.GRPCMaxConnectionAge, 0),
			MaxConnectionAgeGrace: settings.GRPCMaxConnectionAgeGrace,
		},
		HTTP:      server.Addr{Host: settings.Host, Port: settings.Port, Setting: "PORT"},
		HTTPGate:  newGate("http", admission.Options{}, settings, serviceEvents, recorder),
		Debug:     server.Addr{Host: settings.DebugHost, Port: settings.DebugPort, Setting: "DEBUG_PORT"},
		DebugGate: newGate("debug", admission.Options{}, settings, serviceEvents, recorder),
		DebugPages: []server.Page{{
			Path: "/metrics", Help: "metrics for Prometheus", Handler: serviceEvents.Metrics.Handler(settings.ExtraTags, nil),
			AllowsAnyHost: true, // metrics have no secrets, and Prometheus uses any name
		}, {
			Path: "/stats", Help: "metrics with their names in statsd", Handler: statsd.Handler(serviceEvents.Metrics, serviceEvents.Metrics.KeyCounts, settings.ExtraTags),
		}},
		DebugNames:   settings.DebugNames,
		DrainDelay:   settings.DrainDelay,
		DrainTimeout: settings.DrainTimeout,
		Log:          serviceEvents.Log,
	}
	if observers != "off" {
		options.ObserveMethod = serviceEvents.Metrics.Server()
	}
	if settings.GRPCServerUseTLS {
		options.GRPC.TLS = &server.TLS{
			CertFile:     settings.GRPCServerTLSCert,
			KeyFile:      settings.GRPCServerTLSKey,
			ClientCAFile: settings.GRPCClientTLSCACert,
			ClientSAN:    settings.GRPCClientTLSSAN,
		}
	}
	if settings.DebugTLSCert != "" {
		options.DebugTLS = &server.TLS{
			CertFile:           settings.DebugTLSCert,
			KeyFile:            settings.DebugTLSKey,
			ClientCAFile:       settings.DebugTLSClientCACert,
			ClientCertOptional: settings.DebugTLSClientCACert != "",
		}
	}
	if settings.UsePrometheus && !settings.DisableStats {
		addr, _ := server.ParseAddr(settings.PrometheusAddr) // package env has checked the address
		addr.Setting = "PROMETHEUS_ADDR"
		options.Metrics = &server.MetricsListener{Addr: addr, Path: settings.PrometheusPath, Handler: metricsHandler(settings, serviceEvents)}
	}
	return options
}

func metricsHandler(settings *env.Settings, serviceEvents *events.Events) http.Handler {
	if settings.PrometheusMapper != "" {
		mapping, err := statsd.LoadMapping(settings.PrometheusMapper)
		if err == nil {
			return serviceEvents.Metrics.Handler(settings.ExtraTags, statsd.FamilyMapper(mapping, serviceEvents.Metrics.KeyCounts))
		}
		if !errors.Is(err, fs.ErrNotExist) { // Envoy Gateway names a file that need not exist
			serviceEvents.Log.Warn("mapping of metrics ignored", "setting", "PROMETHEUS_MAPPER_YAML", "error", err)
		}
	}
	return serviceEvents.Metrics.Handler(settings.ExtraTags, nil)
}

func newGate(listener string, options admission.Options, settings *env.Settings, serviceEvents *events.Events, recorder *live.Recorder) *admission.Gate {
	options.Listener, options.Log = listener, serviceEvents.Log
	options.MaxConnections, options.MaxPeerConnections = settings.MaxConnections, settings.MaxPeerConnections
	countRefusal := serviceEvents.Metrics.Refused(listener)
	options.OnRefusal = func(reason admission.Reason) {
		countRefusal(reason)
		if setting := reason.Setting(); setting != "" {
			recorder.ConnectionRefused(setting)
		}
	}
	gate := admission.New(options)
	serviceEvents.Metrics.Admission(listener, gate.Connections, gate.PendingBytes)
	return gate
}
