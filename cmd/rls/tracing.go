package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/tracing"
)

// traceCloseTimeout bounds the time that the last spans have to reach the collector.
const traceCloseTimeout = 3 * time.Second

// startTracing returns the tracer of the settings, or nil if tracing is off.
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
	p.atEnd(func() {
		ctx, cancel := context.WithTimeout(context.Background(), traceCloseTimeout)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			log.Warn("last spans not exported", "error", err)
		}
	})
	return tracer, nil
}
