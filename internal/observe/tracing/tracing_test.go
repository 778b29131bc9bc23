package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limits = `
domain: shop
descriptors:
  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
`

// limiterFunc is a function that implements Limiter.
type limiterFunc func(ctx context.Context, results []backend.Result)

func (f limiterFunc) Take(ctx context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
	f(ctx, results)
}

// newService returns a service with spans, or without spans if t is nil. If limiter is nil, the service counts in this
// process.
func newService(tb testing.TB, t *Tracer, limiter backend.Limiter) rlsv3.RateLimitServiceServer {
	tb.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(tb, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	if limiter == nil {
		limiter = local.New(local.Options{MaxKeys: 1000})
	}
	o := service.Options{Limits: store, Limiter: limiter}
	if t == nil {
		return service.New(o)
	}
	o.Observers = []service.Observer{t}
	return t.Service(service.New(o))
}

// newTestTracer returns a Tracer, and an exporter that keeps the ended spans.
func newTestTracer(tb testing.TB, samplingRate float64) (*Tracer, *tracetest.InMemoryExporter) {
	tb.Helper()
	spans := tracetest.NewInMemoryExporter()
	t := newTracer(Options{ServiceName: "RateLimit", SamplingRate: &samplingRate, Log: slog.New(slog.DiscardHandler)}, sdktrace.WithSyncer(spans))
	tb.Cleanup(func() { assert.NoError(tb, t.Close(context.Background())) })
	return t, spans
}

func request(keys ...string) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "shop"}
	for _, key := range keys {
		req.Descriptors = append(req.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "secret"}},
		})
	}
	return req
}

// attributes returns the texts of the attributes that begin with rls. The key is the name of the attribute.
func attributes(s tracetest.SpanStub) map[string]string {
	texts := map[string]string{}
	for _, a := range s.Attributes {
		if key := string(a.Key); len(key) > 4 && key[:4] == "rls." {
			texts[key] = fmt.Sprint(a.Value.AsInterface())
		}
	}
	return texts
}

func TestSpanDescribesItsCall(t *testing.T) {
	tracer, spans := newTestTracer(t, 1)
	rateLimiter := newService(t, tracer, nil)
	_, err := rateLimiter.ShouldRateLimit(t.Context(), request("tenant", "free", "tenant", "other"))
	require.NoError(t, err)
	require.Len(t, spans.GetSpans(), 1)
	span := spans.GetSpans()[0]
	assert.Equal(t, "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", span.Name)
	assert.Equal(t, trace.SpanKindServer, span.SpanKind)
	assert.Equal(t, map[string]string{
		"rls.domain": "shop", "rls.descriptors": "4", "rls.rules": "[shop > tenant shop > free]",
		"rls.code": "OVER_LIMIT", "rls.sources": "[local]",
	}, attributes(span), "values of descriptors are not in spans")
	assert.Equal(t, codes.Unset, span.Status.Code)
	name, _ := span.Resource.Set().Value("service.name")
	assert.Equal(t, "RateLimit", name.AsString())
	assert.True(t, span.Resource.Set().HasValue("service.instance.id"))
}

func TestSpanDescribesErrorsAndDegradedDecisions(t *testing.T) {
	tracer, spans := newTestTracer(t, 1)
	rateLimiter := newService(t, tracer, limiterFunc(func(_ context.Context, results []backend.Result) {
		results[0] = backend.Result{Source: backend.SourceFallback, Reason: backend.ReasonLate}
		if len(results) > 1 {
			results[1] = backend.Result{Err: errors.New("broken")}
		}
	}))
	_, err := rateLimiter.ShouldRateLimit(t.Context(), request("tenant"))
	require.NoError(t, err)
	_, err = rateLimiter.ShouldRateLimit(t.Context(), request("tenant", "tenant"))
	require.Error(t, err)
	degradedSpan, failedSpan := spans.GetSpans()[0], spans.GetSpans()[1]
	assert.Equal(t, "[late]", attributes(degradedSpan)["rls.degraded_reasons"])
	assert.Equal(t, "[fallback]", attributes(degradedSpan)["rls.sources"])
	assert.Equal(t, "ERROR", attributes(failedSpan)["rls.code"])
	assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: err.Error()}, failedSpan.Status)
	assert.Contains(t, failedSpan.Attributes, attribute.Int("rpc.grpc.status_code", 14))
}

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
)

func TestSpanHasTheParentThatTheHeadersName(t *testing.T) {
	t.Setenv("OTEL_PROPAGATORS", "")
	for name, test := range map[string]struct {
		headers []string
		sampled bool
	}{
		"W3C, sampled":       {[]string{"traceparent", "00-" + traceID + "-" + spanID + "-01"}, true},
		"W3C, not sampled":   {[]string{"traceparent", "00-" + traceID + "-" + spanID + "-00"}, false},
		"B3 in one header":   {[]string{"b3", traceID + "-" + spanID + "-1"}, true},
		"B3, not sampled":    {[]string{"b3", traceID + "-" + spanID + "-0"}, false},
		"B3 in many headers": {[]string{"x-b3-traceid", traceID, "x-b3-spanid", spanID, "x-b3-sampled", "1"}, true},
		"both, W3C wins": {[]string{
			"b3", "11111111111111111111111111111111-2222222222222222-1", "traceparent", "00-" + traceID + "-" + spanID + "-01",
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, spans := newTestTracer(t, 0.5)
			rateLimiter := newService(t, tracer, nil)
			header := http.Header{}
			for i := 0; i < len(test.headers); i += 2 {
				header.Set(test.headers[i], test.headers[i+1])
			}
			for _, ctx := range []context.Context{
				metadata.NewIncomingContext(t.Context(), metadata.Pairs(test.headers...)),
				tracer.HTTPContext(t.Context(), header),
			} {
				spans.Reset()
				_, err := rateLimiter.ShouldRateLimit(ctx, request("tenant"))
				require.NoError(t, err)
				if !test.sampled {
					assert.Empty(t, spans.GetSpans())
					continue
				}
				require.Len(t, spans.GetSpans(), 1)
				parent := spans.GetSpans()[0].Parent
				assert.Equal(t, traceID, parent.TraceID().String())
				assert.Equal(t, spanID, parent.SpanID().String())
				assert.True(t, parent.IsRemote())
			}
		})
	}
}

func TestSpanOfABatchLinksToItsCalls(t *testing.T) {
	tracer, spans := newTestTracer(t, 1)
	start := time.Now()
	firstCtx, firstSpan := tracer.tracer.Start(t.Context(), "first")
	secondCtx, secondSpan := tracer.tracer.Start(t.Context(), "second")
	unsampledCtx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: firstSpan.SpanContext().TraceID(), SpanID: trace.SpanID{1},
	}))
	tracer.BatchAnswered(redis.Batch{Role: redis.RolePerSecond, Hits: 5, QueuedHits: 7, Wait: time.Millisecond, Duration: 3 * time.Millisecond, Err: errors.New("no connection")},
		start, []context.Context{unsampledCtx, firstCtx, firstCtx, secondCtx, t.Context()})
	firstSpan.End()
	secondSpan.End()

	require.Len(t, spans.GetSpans(), 3)
	batch, secondCall := spans.GetSpans()[0], spans.GetSpans()[2]
	assert.Equal(t, firstSpan.SpanContext(), batch.Parent)
	require.Len(t, batch.Links, 1)
	assert.Equal(t, secondSpan.SpanContext(), batch.Links[0].SpanContext)
	require.Len(t, secondCall.Links, 1)
	assert.Equal(t, batch.SpanContext, secondCall.Links[0].SpanContext)
	assert.Equal(t, map[string]string{
		"rls.redis.server": "per_second", "rls.batch.calls": "5", "rls.batch.hits": "5", "rls.batch.queued_hits": "7", "rls.batch.wait_us": "1000",
	}, attributes(batch))
	assert.Equal(t, 3*time.Millisecond, batch.EndTime.Sub(batch.StartTime))
	assert.Equal(t, codes.Error, batch.Status.Code)
}

func TestBatchWithoutRecordedCallsHasNoSpan(t *testing.T) {
	tracer, spans := newTestTracer(t, 0)
	ctx, span := tracer.tracer.Start(t.Context(), "call")
	defer span.End()
	tracer.BatchAnswered(redis.Batch{Hits: 1}, time.Now(), []context.Context{ctx, t.Context()})
	assert.Empty(t, spans.GetSpans())
}

func TestStartRejectsAnUnknownProtocol(t *testing.T) {
	_, err := Start(t.Context(), Options{Protocol: "udp", Log: slog.New(slog.DiscardHandler)})
	assert.EqualError(t, err, `tracing: protocol: got "udp", want http or grpc`)
}

// BenchmarkCall measures calls without tracing, calls that are not sampled, and sampled calls.
func BenchmarkCall(b *testing.B) {
	for _, test := range []struct {
		name string
		isOn bool
		rate float64
	}{{"off", false, 0}, {"not sampled", true, 0}, {"sampled", true, 1}} {
		b.Run(test.name, func(b *testing.B) {
			var tracer *Tracer
			if test.isOn {
				tracer = newTracer(Options{SamplingRate: &test.rate, Log: slog.New(slog.DiscardHandler)}, sdktrace.WithBatcher(tracetest.NewNoopExporter()))
				defer func() { assert.NoError(b, tracer.Close(b.Context())) }()
			}
			rateLimiter := newService(b, tracer, nil)
			ctx := metadata.NewIncomingContext(b.Context(), metadata.Pairs(":authority", "rls", "content-type", "application/grpc", "x-request-id", "a"))
			req := request("tenant")
			b.ReportAllocs()
			for b.Loop() {
				_, _ = rateLimiter.ShouldRateLimit(ctx, req)
			}
		})
	}
}
