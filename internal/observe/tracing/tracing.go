// Package tracing sends OpenTelemetry spans of calls and of batches to Redis to a
// collector. If tracing is off, rls does not use this package.
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

// Options are the options of Start. The OpenTelemetry SDK reads all other settings from variables OTEL_….
type Options struct {
	Version string // the version of this program

	// ServiceName, Namespace and InstanceID describe this process. If a value is empty, the
	// SDK chooses the value. The default of InstanceID is a random UUID.
	ServiceName, Namespace, InstanceID string

	Protocol     string       // HTTP or GRPC
	SamplingRate *float64     // the share of the traces without a parent span that are recorded; if nil, the SDK chooses
	Log          *slog.Logger // gets the errors of the SDK
}

// Tracer makes spans. Start returns a Tracer.
type Tracer struct {
	provider   *sdktrace.TracerProvider
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

// Start returns a Tracer that exports spans in the background until Close. If the collector is down, the SDK tries to
// export the spans again later. If the queue of the SDK is full, the SDK drops spans.
func Start(ctx context.Context, options Options) (*Tracer, error) {
	otel.SetErrorHandler(errorLog{options.Log, rate.NewLimiter(rate.Every(time.Minute), 1)})
	otel.SetLogger(logr.FromSlogHandler(options.Log.Handler()))
	var exporter sdktrace.SpanExporter
	var err error
	switch options.Protocol {
	case HTTP:
		exporter, err = otlptrace.New(ctx, otlptracehttp.NewClient())
	case GRPC:
		exporter, err = otlptrace.New(ctx, otlptracegrpc.NewClient())
	default:
		err = fmt.Errorf("protocol: got %q, want %s or %s", options.Protocol, HTTP, GRPC)
	}
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return newTracer(options, sdktrace.WithBatcher(exporter)), nil
}

func newTracer(o Options, processor sdktrace.TracerProviderOption) *Tracer {
	options := []sdktrace.TracerProviderOption{processor, sdktrace.WithResource(newResource(o))}
	if o.SamplingRate != nil {
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(*o.SamplingRate))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	return &Tracer{
		provider: provider,
		tracer:   provider.Tracer("github.com/seed-81f232ab/rls", trace.WithInstrumentationVersion(o.Version)),
		// If a request has the headers of both propagators, the last propagator wins.
		propagator: autoprop.NewTextMapPropagator(b3.New(), propagation.TraceContext{}),
	}
}

func newResource(options Options) *resource.Resource {
	attributes := []attribute.KeyValue{attribute.String("service.instance.id", cmp.Or(options.InstanceID, uuid.NewString()))}
	for name, value := range map[string]string{
		"service.name": options.ServiceName, "service.namespace": options.Namespace, "service.version": options.Version,
	} {
		if value != "" {
			attributes = append(attributes, attribute.String(name, value))
		}
	}
	mergedResource, err := resource.Merge(resource.Default(), resource.NewSchemaless(attributes...))
	if err != nil {
		return resource.Default() // can't fail, because the attributes have no schema
	}
	return mergedResource
}

// Close exports the spans that are in the queue. It returns an error if ctx is done before all spans are exported.
func (t *Tracer) Close(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}

// errorLog logs errors of the SDK, such as a collector that is down.
type errorLog struct {
	log     *slog.Logger
	limiter *rate.Limiter
}

func (l errorLog) Handle(err error) {
	if l.limiter.Allow() {
		l.log.Error("spans not exported; further errors within a minute are not logged", "error", err)
	}
}
