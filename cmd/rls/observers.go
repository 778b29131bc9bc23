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

// callObservers returns the observers of calls: the others, and the observers that count metrics.
func callObservers(s *env.Settings, e *events.Events, others ...service.Observer) []service.Observer {
	if observers == "off" {
		return nil
	}
	rules := metrics.RuleOptions{NearLimitRatio: float32(s.NearLimitRatio), MaxSeries: s.MetricsMaxSeries, NoRuleLabel: !s.MetricsRuleLabel, Log: e.Log}
	return append(others, e.Metrics.Service(), e.Metrics.RuleObserver(rules))
}

// closeTimeout bounds the time in which the last records of the decision log and the last spans are written.
const closeTimeout = 3 * time.Second

// newDecisions starts the decision log. It returns the observers that describe decisions. One of them is the hub, which
// sends live decisions to its subscribers, such as rls tail.
func newDecisions(p *process, s *env.Settings, e *events.Events) (*decisionlog.Hub, []service.Observer) {
	hash := decisionlog.NewHash(s.DecisionLogHashKey)
	hub := decisionlog.NewHub(nil, hash)
	observers := []service.Observer{hub, decisionlog.CallLog{Log: e.Log, Hash: hash}}
	if s.DecisionLog == env.DecisionLogOff {
		return hub, observers
	}
	l := decisionlog.NewLog(decisionlog.LogOptions{
		All:          s.DecisionLog == env.DecisionLogAll,
		Sample:       s.DecisionLogSample,
		MaxPerSecond: s.DecisionLogMaxPerSecond,
		Path:         s.DecisionLogPath,
		Writer:       os.Stdout,
		Hash:         hash,
		Log:          e.Log,
	})
	e.Metrics.DecisionLog(l.Stats)
	if s.DecisionLogPath == "" {
		// If the reader of stdout ends, SIGPIPE must not end the service.
		signal.Ignore(syscall.SIGPIPE)
	} else {
		p.onHangup(l.Reopen)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Run(ctx)
	}()
	p.addCloser(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(closeTimeout):
			e.Log.Warn("decision log cut", "reason", "its file or stdout takes no more lines")
		}
	})
	return hub, append(observers, l)
}

func startTracing(p *process, s *env.Settings, log *slog.Logger) (*tracing.Tracer, error) {
	if !s.TracesCalls() {
		return nil, nil
	}
	o := tracing.Options{
		Version:     thisBuild().Version,
		ServiceName: s.TracingServiceName,
		Namespace:   s.TracingServiceNamespace,
		InstanceID:  s.TracingServiceInstanceID,
		Protocol:    s.TracingProtocol(),
		Log:         log,
	}
	if os.Getenv("OTEL_SERVICE_NAME") == "" {
		o.ServiceName = cmp.Or(o.ServiceName, "RateLimit")
	}
	if os.Getenv("TRACING_SAMPLING_RATE") != "" || os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		o.SamplingRate = &s.TracingSamplingRate
	}
	tracer, err := tracing.Start(p.ctx, o)
	if err != nil {
		return nil, err
	}
	log.Info("calls traced", "protocol", o.Protocol)
	p.addCloser(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			log.Warn("last spans not exported", "error", err)
		}
	})
	return tracer, nil
}

func sendStats(p *process, s *env.Settings, e *events.Events) {
	o := statsd.Options{
		Gatherer:  e.Metrics,
		Rules:     e.Metrics.KeyCounts,
		ExtraTags: s.ExtraTags,
		Interval:  s.StatsFlushInterval,
		Log:       e.Log,
	}
	switch s.StatsSink() {
	case env.SinkNone:
		return
	case env.SinkStatsd:
		o.Server = &statsd.Server{Network: s.StatsdProtocol, Host: s.StatsdHost, Port: s.StatsdPort}
	case env.SinkDogStatsd:
		mogrifiers, _ := s.Mogrifiers() // package env has reported errors at the start
		o.Server = &statsd.Server{Network: "udp", Host: s.StatsdHost, Port: s.StatsdPort, DogStatsD: true, Mogrifiers: mogrifiers}
	}
	e.Log.Info("metrics sent at intervals", "to", s.StatsSink(), "interval", s.StatsFlushInterval)
	p.addCloser(statsd.New(o).Close)
}

// startCandidate evaluates the limits at LIMITS_CANDIDATE until p ends. It returns the candidate and its Explainer, or
// nil if LIMITS_CANDIDATE is empty.
func startCandidate(p *process, s *env.Settings, e *events.Events) (*candidate.Candidate, *explain.Explainer, error) {
	if s.LimitsCandidate == "" {
		return nil, nil, nil
	}
	o := candidate.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	explainOptions := explain.Options{AllOrNone: s.AllOrNone, QuotaMode: s.QuotaMode}
	switch keyPrefix := s.CacheKeyPrefix + "candidate:"; s.Backend() {
	case env.BackendRedis:
		// The candidate has its own connections and its own queue, so that it never delays a call.
		client, err := newRedis(s, keyPrefix, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		p.addCloser(func() { _ = client.Close() })
		o.Limiter, explainOptions.RedisKey = client, client.Counter
	case env.BackendMemcache:
		client, err := newMemcached(s, keyPrefix, e.Log)
		if err != nil {
			return nil, nil, err
		}
		p.addCloser(func() { _ = client.Close() })
		o.Limiter = client
	default:
		o.Limiter = newLocalCounters(p, s)
	}
	c := candidate.New(o)
	e.Metrics.Candidate(c.Status)
	explainOptions.Limits, explainOptions.Layer = c.Store(), backend.Counters{Limiter: o.Limiter}
	files := filesource.New(filesource.Options{
		Place:    filesource.Place{Root: s.LimitsCandidate, IgnoreDotFiles: s.RuntimeIgnoreDotFiles},
		Interval: s.SourcePollInterval,
		Parse:    s.LimitsOptions(),
		Log:      e.Log.With("limits", "candidate"),
	})
	p.start(func(ctx context.Context) { c.Follow(ctx, files, e.Log) })
	p.start(c.Run)
	return c, explain.New(explainOptions), nil
}
