package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// collector is a collector of OpenTelemetry that speaks OTLP over gRPC and HTTP.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	grpc, http string // addresses

	mu        sync.Mutex
	spans     []*tracepb.Span
	resources []string
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	h := httptest.NewServer(c)
	t.Cleanup(h.Close)
	c.grpc, c.http = "http://"+listener.Addr().String(), h.URL
	return c
}

// Export receives spans over gRPC.
func (c *collector) Export(_ context.Context, req *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.ResourceSpans {
		c.resources = append(c.resources, r.Resource.String())
		for _, s := range r.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// ServeHTTP receives spans over HTTP.
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var req collectorpb.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &req); err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), &req)
}

// spansByName returns the spans with this name.
func (c *collector) spansByName(name string) []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var spans []*tracepb.Span
	for _, s := range c.spans {
		if s.Name == name {
			spans = append(spans, s)
		}
	}
	return spans
}

func TestCallsAndBatchesAreTraced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env      []string
		endpoint func(*collector) string
		service  string
	}{
		"settings of the incumbent, http": {[]string{"TRACING_ENABLED=true", "TRACING_SERVICE_NAMESPACE=edge"}, func(c *collector) string { return c.http }, "RateLimit"},
		"settings of the incumbent, grpc": {[]string{"TRACING_ENABLED=true", "TRACING_EXPORTER_PROTOCOL=grpc", "TRACING_SERVICE_NAMESPACE=edge"}, func(c *collector) string { return c.grpc }, "RateLimit"},
		"settings of OpenTelemetry": {[]string{
			"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_SERVICE_NAME=limits", "OTEL_RESOURCE_ATTRIBUTES=service.namespace=edge",
		}, func(c *collector) string { return c.grpc }, "limits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			collector, db := startCollector(t), redistest.Open(t)
			env := append(test.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+test.endpoint(collector), "REDIS_URL="+db.Addr, "CACHE_KEY_PREFIX="+db.Prefix, "REDIS_TIMEOUT=10s")
			service := start(t, env, "--limits", writeFile(t, "limits.yaml", threePerYear))
			service.awaitLog("counting in Redis")

			conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
			_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{
				{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}},
			}})
			require.NoError(t, err)
			require.NoError(t, service.stop(), "the end exports the last spans")

			calls := collector.spansByName("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
			batches := collector.spansByName("redis batch")
			require.Len(t, calls, 1)
			require.Len(t, batches, 1)
			assert.Equal(t, "\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", string(calls[0].ParentSpanId))
			assert.Equal(t, calls[0].SpanId, batches[0].ParentSpanId)
			assert.Equal(t, calls[0].TraceId, batches[0].TraceId)
			text := prototext.Format(calls[0])
			for _, want := range []string{`"shop"`, `"shop > tenant"`, `"OK"`, `"redis"`} {
				assert.Contains(t, text, want)
			}
			resource := strings.Join(collector.resources, "\n")
			for _, want := range []string{test.service, "edge", "service.instance.id"} {
				assert.Contains(t, resource, want)
			}
		})
	}
}

func TestCollectorThatIsDownDelaysNothing(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_BSP_SCHEDULE_DELAY=50"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	_, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	assert.Zero(t, code)
	service.awaitLog(`level=ERROR msg="spans not exported`)
	assert.NoError(t, service.stop())
}

func TestTracesOfJSONCallsHaveTheirParent(t *testing.T) {
	t.Parallel()
	collector := startCollector(t)
	service := start(t, []string{"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.http, "OTEL_BSP_SCHEDULE_DELAY=50"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+service.http+"/json", strings.NewReader(`{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"acme"}]}]}`))
	require.NoError(t, err)
	req.Header.Set("b3", "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	resp.Body.Close()
	polltest.Until(t, maxWait, func() bool {
		return len(collector.spansByName("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")) == 1
	})
	assert.Equal(t, "\x00\xf0\x67\xaa\x0b\xa9\x02\xb7", string(collector.spansByName("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")[0].ParentSpanId))
}
