package service

import (
	"context"
	"os"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// FuzzRequest sends the bytes of a gRPC message to a Service with the limits of the examples.
// An answer has a status for each descriptor, and can be sent.
func FuzzRequest(f *testing.F) {
	minute := &ratelimitv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: typev3.RateLimitUnit_MINUTE}
	descriptorWithLimit := desc("tenant=free")
	descriptorWithLimit.Limit = minute
	for _, req := range []*rlsv3.RateLimitRequest{
		{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("remote_address=10.0.0.1"), desc("remote_address=10.0.0.1", "path=/login")}},
		{Domain: "shop", HitsAddend: 1 << 31, Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("path=/api/v1"), withHits(1<<63, desc("path=/api/v1"))}},
		{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{withRefund(7, desc("remote_address=10.0.0.1")), descriptorWithLimit, {}}},
		{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{withHits(0, desc("remote_address=127.0.0.1")), desc("=", "x=")}},
		{Domain: "other"},
	} {
		wire, err := proto.Marshal(req)
		require.NoError(f, err)
		f.Add(wire)
	}
	limits, err := os.ReadFile("../examples/limits.yaml")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var req rlsv3.RateLimitRequest
		if proto.Unmarshal(wire, &req) != nil {
			return // grpc refuses the message
		}
		for _, o := range []Options{{}, {DynamicMetadata: true, RuleMetadata: true, PolicyHeaders: true, MaxDescriptors: 4, MaxEntries: 4}} {
			r := newFixture(t, string(limits), func(fixtureOptions *Options) {
				o.Limits, o.Limiter, o.Now = fixtureOptions.Limits, fixtureOptions.Limiter, fixtureOptions.Now
				*fixtureOptions = o
			})
			for range 2 {
				resp, err := r.svc.ShouldRateLimit(context.Background(), &req)
				if err != nil {
					assert.Contains(t, []codes.Code{codes.InvalidArgument, codes.PermissionDenied}, status.Code(err), err)
					continue
				}
				assert.Len(t, resp.Statuses, len(req.Descriptors))
				assert.NotEqual(t, rlsv3.RateLimitResponse_UNKNOWN, resp.OverallCode)
				_, err = proto.Marshal(resp)
				require.NoError(t, err)
				_, err = protojson.Marshal(resp) // /json does this too
				require.NoError(t, err)
				r.now = r.now.Add(time.Second)
			}
		}
	})
}
