// Package tracing sends OpenTelemetry spans of calls and of batches to Redis to a
// collector. If tracing is off, nothing of this package is in use.
package tracing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/propagators/autoprop"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"
)

// Protocols of OTLP.
const (
	HTTP = "http"
	GRPC = "grpc"
)

// Options are the options of Start. The OpenTelemetry SDK reads all other settings from OTEL_….
type Options struct {
	Version string // of this program

	// ServiceName, Namespace and InstanceID describe this process. An empty value leaves
	// the value to the SDK. The default of InstanceID is a random UUID.
	ServiceName, Namespace, InstanceID string

	Protocol     string       // HTTP or GRPC
	SamplingRate *float64     // share of the traces without a sampled parent to record; nil leaves it to the SDK
	Log          *slog.Logger // gets the errors of the SDK
}

// Tracer makes spans. Start makes it.
type Tracer struct {
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// Start returns a Tracer that exports spans in the background, until Close. If the collector is down, the SDK tries
// again, and drops spans if its queue is full.
func Start(ctx context.Context, o Options) (*Tracer, error) {
	otel.SetErrorHandler(errorLog{o.Log, rate.NewLimiter(rate.Every(time.Minute), 1)})
	otel.SetLogger(logr.FromSlogHandler(o.Log.Handler()))
	var exporter sdktrace.SpanExporter
	var err error
	switch o.Protocol {
	case HTTP:
		exporter, err = otlptrace.New(ctx, otlptracehttp.NewClient())
	case GRPC:
		exporter, err = otlptrace.New(ctx, otlptracegrpc.NewClient())
	default:
		err = fmt.Errorf("protocol: got %q, want %s or %s", o.Protocol, HTTP, GRPC)
	}
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return newTracer(o, sdktrace.WithBatcher(exporter)), nil
}

// newTracer returns a Tracer whose spans go to processor.
func newTracer(o Options, processor sdktrace.TracerProviderOption) *Tracer {
	options := []sdktrace.TracerProviderOption{processor, sdktrace.WithResource(newResource(o))}
	if o.SamplingRate != nil {
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(*o.SamplingRate))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	return &Tracer{
		provider: provider,
		tracer:   provider.Tracer("github.com/seed-81f232ab/rls", trace.WithInstrumentationVersion(o.Version)),
		// If a request has both headers, the last propagator wins.
		propagator: autoprop.NewTextMapPropagator(b3.New(), propagation.TraceContext{}),
	}
}

func newResource(o Options) *resource.Resource {
	attributes := []attribute.KeyValue{attribute.String("service.instance.id", cmp.Or(o.InstanceID, uuid.NewString()))}
	for name, value := range map[string]string{
		"service.name": o.ServiceName, "service.namespace": o.Namespace, "service.version": o.Version,
	} {
		if value != "" {
			attributes = append(attributes, attribute.String(name, value))
		}
	}
	r, err := resource.Merge(resource.Default(), resource.NewSchemaless(attributes...))
	if err != nil {
		return resource.Default() // never happens without a schema
	}
	return r
}

// Close exports the spans that wait. It gives up when ctx is done.
func (t *Tracer) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// errorLog logs errors of the SDK, such as a collector that is down.
type errorLog struct {
	log   *slog.Logger
	lines *rate.Limiter
}

func (l errorLog) Handle(err error) {
	if l.lines.Allow() {
		l.log.Error("spans not exported; further errors within a minute are not logged", "error", err)
	}
}
