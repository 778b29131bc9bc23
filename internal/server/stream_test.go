package server

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/internal/server/admission"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

func TestStreamsEndWhenTheListenerStops(t *testing.T) {
	t.Parallel()
	streamHandler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("first\n"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		_, _ = w.Write([]byte("last\n"))
	})
	service := start(t, Options{DebugPages: []Page{{Path: "/stream", Handler: streamHandler, IsStream: true}}})
	resp, err := http.Get("http://" + service.DebugAddr().String() + "/stream")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	require.True(t, lines.Scan())
	assert.Equal(t, "first", lines.Text())

	// Only the end of the context lets the handler write its last line.
	require.NoError(t, service.optionalListener("debug").stop(context.Background(), func() {}))
	require.True(t, lines.Scan())
	assert.Equal(t, "last", lines.Text())
}

// echoQuotaServer answers each report with an empty response.
type echoQuotaServer struct {
	rlqsv3.UnimplementedRateLimitQuotaServiceServer
}

func (echoQuotaServer) StreamRateLimitQuotas(stream grpc.BidiStreamingServer[rlqsv3.RateLimitQuotaUsageReports, rlqsv3.RateLimitQuotaResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if err := stream.Send(&rlqsv3.RateLimitQuotaResponse{}); err != nil {
			return err
		}
	}
}

func TestStreamWithManyAnsweredReportsStaysOpen(t *testing.T) {
	t.Parallel()
	gate := admission.New(admission.Options{MaxPendingBytes: 1 << 20})
	service := start(t, Options{
		Services: []func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) { rlqsv3.RegisterRateLimitQuotaServiceServer(r, echoQuotaServer{}) }},
		GRPC:     GRPC{Gate: gate},
	})
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(dial(t, service.GRPCAddr().String())).StreamRateLimitQuotas(t.Context())
	require.NoError(t, err)
	for _, size := range []int{1, 1000, 100_000} { // in bytes; large reports have several frames
		report := &rlqsv3.RateLimitQuotaUsageReports{Domain: strings.Repeat("x", size)}
		for range 500 {
			require.NoError(t, stream.Send(report))
			_, err := stream.Recv()
			require.NoError(t, err)
		}
		polltest.Until(t, maxWait, func() bool { return gate.PendingBytes() == 0 })
	}
}
