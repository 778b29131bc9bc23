package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/candidate"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/statsd"
	"github.com/seed-81f232ab/rls/internal/observe/tracing"
	filesource "github.com/seed-81f232ab/rls/internal/source/file"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service"
)

// observers is "off" in a build that observes no calls. `make bench-observers` compares such
// a build with a normal build.
var observers string

func callObservers(settings *env.Settings, serviceEvents *events.Events, otherObservers ...service.Observer) []service.Observer {
	if observers == "off" {
		return nil
	}
	rules := metrics.RuleOptions{NearLimitRatio: float32(settings.NearLimitRatio), MaxSeries: settings.MetricsMaxSeries, NoRuleLabel: !settings.MetricsRuleLabel, Log: serviceEvents.Log}
	return append(otherObservers, serviceEvents.Metrics.Service(), serviceEvents.Metrics.RuleObserver(rules))
}

// closeTimeout bounds the time in which the last records of the decision log and the last spans are written.
const closeTimeout = 3 * time.Second

// newDecisionObservers starts the decision log. It returns the observers that describe decisions, and one of these
// observers again: the hub, which sends live decisions to its subscribers, such as rls tail.
func newDecisionObservers(process *process, settings *env.Settings, serviceEvents *events.Events) (*decisionlog.Hub, []service.Observer) {
	hash := decisionlog.NewHash(settings.DecisionLogHashKey)
	hub := decisionlog.NewHub(time.Now, hash)
	decisionObservers := []service.Observer{hub, decisionlog.CallLog{Log: serviceEvents.Log, Hash: hash}}
	if settings.DecisionLog == env.DecisionLogOff {
		return hub, decisionObservers
	}
	decisionLog := decisionlog.NewLog(decisionlog.LogOptions{
		LogsAll:      settings.DecisionLog == env.DecisionLogAll,
		SampledShare: settings.DecisionLogSample,
		MaxPerSecond: settings.DecisionLogMaxPerSecond,
		Path:         settings.DecisionLogPath,
		Writer:       os.Stdout,
		Hash:         hash,
		Log:          serviceEvents.Log,
	})
	serviceEvents.Metrics.DecisionLog(decisionLog.Stats)
	if settings.DecisionLogPath == "" {
		// If the reader of stdout ends, SIGPIPE must not end the service.
		signal.Ignore(syscall.SIGPIPE)
	} else {
		process.onHangup(decisionLog.Reopen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		decisionLog.Run(ctx)
	}()
	process.addCloser(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(closeTimeout):
			serviceEvents.Log.Warn("decision log cut", "reason", "its file or stdout takes no more lines")
		}
	})
	return hub, append(decisionObservers, decisionLog)
}

func startTracing(process *process, settings *env.Settings, log *slog.Logger) (*tracing.Tracer, error) {
	if !settings.TracesCalls() {
		return nil, nil
	}
	options := tracing.Options{
		Version:     thisBuild().Version,
		ServiceName: settings.TracingServiceName,
		Namespace:   settings.TracingServiceNamespace,
		InstanceID:  settings.TracingServiceInstanceID,
		Protocol:    settings.TracingProtocol(),
		Log:         log,
	}
	if os.Getenv("OTEL_SERVICE_NAME") == "" {
		options.ServiceName = cmp.Or(options.ServiceName, "RateLimit")
	}
	if os.Getenv("TRACING_SAMPLING_RATE") != "" || os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		options.SamplingRate = &settings.TracingSamplingRate
	}
	tracer, err := tracing.Start(process.ctx, options)
	if err != nil {
		return nil, err
	}
	log.Info("calls traced", "protocol", options.Protocol)
	process.addCloser(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			log.Warn("last spans not exported", "error", err)
		}
	})
	return tracer, nil
}

func sendStats(process *process, settings *env.Settings, serviceEvents *events.Events) {
	options := statsd.Options{
		Gatherer:  serviceEvents.Metrics,
		Rules:     serviceEvents.Metrics.KeyCounts,
		ExtraTags: settings.ExtraTags,
		Interval:  settings.StatsFlushInterval,
		Log:       serviceEvents.Log,
	}
	switch settings.StatsSink() {
	case env.SinkNone:
		return
	case env.SinkStatsd:
		options.Server = &statsd.Server{Network: settings.StatsdProtocol, Host: settings.StatsdHost, Port: settings.StatsdPort}
	case env.SinkDogStatsd:
		mogrifiers, _ := settings.Mogrifiers() // package env has reported errors at the start
		options.Server = &statsd.Server{Network: "udp", Host: settings.StatsdHost, Port: settings.StatsdPort, DogStatsD: true, Mogrifiers: mogrifiers}
	}
	serviceEvents.Log.Info("metrics sent at intervals", "to", settings.StatsSink(), "interval", settings.StatsFlushInterval)
	process.addCloser(statsd.New(options).Close)
}

// startCandidate evaluates the limits at LIMITS_CANDIDATE until the process ends. It returns the candidate and its
// Explainer, or nil if LIMITS_CANDIDATE is empty.
func startCandidate(process *process, settings *env.Settings, serviceEvents *events.Events) (*candidate.Candidate, *explain.Explainer, error) {
	if settings.LimitsCandidate == "" {
		return nil, nil, nil
	}
	options := candidate.Options{AllOrNone: settings.AllOrNone, QuotaMode: settings.QuotaMode}
	explainOptions := explain.Options{AllOrNone: settings.AllOrNone, QuotaMode: settings.QuotaMode}
	switch keyPrefix := settings.CacheKeyPrefix + "candidate:"; settings.Backend() {
	case env.BackendRedis:
		// The candidate has its own connections and its own queue, so that it never delays a call.
		client, err := newRedis(settings, keyPrefix, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		process.addCloser(func() { _ = client.Close() })
		options.Limiter, explainOptions.RedisKey = client, client.Counter
	case env.BackendMemcache:
		client, err := newMemcached(settings, keyPrefix, serviceEvents.Log)
		if err != nil {
			return nil, nil, err
		}
		process.addCloser(func() { _ = client.Close() })
		options.Limiter = client
	default:
		options.Limiter = newLocalCounters(process, settings)
	}
	newCandidate := candidate.New(options)
	serviceEvents.Metrics.Candidate(newCandidate.Status)
	explainOptions.Limits, explainOptions.Layer = &newCandidate.Limits, backend.Counters{Limiter: options.Limiter}
	files := filesource.New(filesource.Options{
		Place:    filesource.Place{Root: settings.LimitsCandidate, IgnoreDotFiles: settings.RuntimeIgnoreDotFiles},
		Interval: settings.SourcePollInterval,
		Parse:    settings.LimitsOptions(),
		Log:      serviceEvents.Log.With("limits", "candidate"),
	})
	process.start(func(ctx context.Context) { newCandidate.Follow(ctx, files, serviceEvents.Log) })
	process.start(newCandidate.Run)
	return newCandidate, explain.New(explainOptions), nil
}
