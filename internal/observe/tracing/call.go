package tracing

import (
	"context"
	"net/http"
	"slices"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/service"
)

const callSpan = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

var callSpanOptions = []trace.SpanStartOption{
	trace.WithSpanKind(trace.SpanKindServer),
	trace.WithAttributes(
		attribute.String("rpc.system", "grpc"),
		attribute.String("rpc.service", "envoy.service.ratelimit.v3.RateLimitService"),
		attribute.String("rpc.method", "ShouldRateLimit"),
	),
}

type tracedService struct {
	rlsv3.RateLimitServiceServer
	*Tracer
}

// Service returns a service that makes a span for each call of s. The metadata of a call names the parent of the span.
// The Tracer must also be an Observer of the service that s calls.
func (t *Tracer) Service(s rlsv3.RateLimitServiceServer) rlsv3.RateLimitServiceServer {
	return tracedService{s, t}
}

func (s tracedService) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	carrier := propagation.MapCarrier{}
	callMetadata, _ := metadata.FromIncomingContext(ctx)
	for key, values := range callMetadata {
		if len(values) > 0 {
			carrier[key] = values[0]
		}
	}
	ctx, end := s.StartCall(s.propagator.Extract(ctx, carrier))
	defer end()
	return s.RateLimitServiceServer.ShouldRateLimit(ctx, req)
}

// StartCall starts the span of a call. The caller must call end after the answer.
func (t *Tracer) StartCall(ctx context.Context) (_ context.Context, end func()) {
	ctx, span := t.tracer.Start(ctx, callSpan, callSpanOptions...)
	return ctx, func() { span.End() }
}

// HTTPContext returns ctx with the parent span that the header of an HTTP request names.
func (t *Tracer) HTTPContext(ctx context.Context, header http.Header) context.Context {
	return t.propagator.Extract(ctx, propagation.HeaderCarrier(header))
}

// CallAnswered implements service.Observer. It describes the call in the span of the call.
func (t *Tracer) CallAnswered(ctx context.Context, call *service.Call) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	var rules, sources, reasons []string
	addText := func(list *[]string, text string) {
		if text != "" && !slices.Contains(*list, text) {
			*list = append(*list, text)
		}
	}
	for _, rule := range call.Rules {
		if rule != nil {
			addText(&rules, rule.Path)
		}
	}
	for i := range call.DecisionCount() {
		if d := call.Decision(i); d.Result.Err == nil {
			addText(&sources, d.Result.Source.String())
			addText(&reasons, d.Result.Reason.String())
		}
	}
	code := call.Response.GetOverallCode().String()
	if call.Err != nil {
		code = "ERROR"
		span.SetStatus(codes.Error, call.Err.Error())
		span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(status.Code(call.Err))))
	}
	span.SetAttributes(
		attribute.String("rls.domain", call.Request.GetDomain()),
		attribute.Int("rls.descriptors", len(call.Request.GetDescriptors())),
		attribute.StringSlice("rls.rules", rules),
		attribute.String("rls.code", code),
		attribute.StringSlice("rls.sources", sources),
	)
	if len(reasons) > 0 {
		span.SetAttributes(attribute.StringSlice("rls.degraded_reasons", reasons))
	}
}
