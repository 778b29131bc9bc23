package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/tracing"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/service"
)

// traceCloseTimeout bounds the time that the last spans have to reach the collector.
const traceCloseTimeout = 3 * time.Second

// traces are what tracing adds to the service. Nothing is added if tracing is off.
type traces struct {
	tracer *tracing.Tracer // nil if tracing is off
	log    *slog.Logger
}

// startTraces returns the traces of the settings.
func startTraces(p *process, s *env.Settings, log *slog.Logger) (traces, error) {
	if !s.TracesCalls() {
		return traces{}, nil
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
		return traces{}, err
	}
	log.Info("calls traced", "protocol", o.Protocol)
	t := traces{tracer, log}
	p.atEnd(t.close)
	return t, nil
}

// batches returns the tracer of batches to Redis, or nil.
func (t traces) batches() redis.Tracer {
	if t.tracer == nil {
		return nil
	}
	return t.tracer
}

// observers returns the observers of calls.
func (t traces) observers() []service.Observer {
	if t.tracer == nil {
		return nil
	}
	return []service.Observer{t.tracer}
}

// startCall returns the function that starts the span of a call, or nil.
func (t traces) startCall() func(context.Context) (context.Context, func()) {
	if t.tracer == nil {
		return nil
	}
	return t.tracer.StartCall
}

// wrap returns a service that traces the calls of s, also those over HTTP.
func (t traces) wrap(s rlsv3.RateLimitServiceServer, o *server.Options) rlsv3.RateLimitServiceServer {
	if t.tracer == nil {
		return s
	}
	o.HTTPContext = t.tracer.HTTPContext
	return t.tracer.Service(s)
}

// close exports the last spans.
func (t traces) close() {
	ctx, cancel := context.WithTimeout(context.Background(), traceCloseTimeout)
	defer cancel()
	if err := t.tracer.Close(ctx); err != nil {
		t.log.Warn("last spans not exported", "error", err)
	}
}
