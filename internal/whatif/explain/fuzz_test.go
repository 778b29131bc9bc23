package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/testkit/limitsgen"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/service"
)

// explainAndSend explains each request just before it sends the request: with the counters, with counters that
// fail, and without counters. If the service returns an error, the report must have an error too.
func explainAndSend(t require.TestingT, limits string, allOrNone, shadowMode, quotaMode bool, requests ...*rlsv3.RateLimitRequest) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	if err != nil {
		return
	}
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	now := start
	counters := local.New(local.Options{MaxKeys: 1000})
	rateLimiter := service.New(service.Options{Limits: store, Limiter: counters, Now: func() time.Time { return now }, ShadowMode: shadowMode, QuotaMode: quotaMode, AllOrNone: allOrNone})
	for _, req := range requests {
		for i, layer := range []backend.Layer{backend.Counters{Limiter: counters}, backend.Counters{Limiter: &brokenCounters{err: errors.New("broken")}}, nil} {
			o := explain.Options{Limits: store, Layer: layer, Now: func() time.Time { return now }, AllOrNone: allOrNone, ShadowMode: shadowMode, QuotaMode: quotaMode}
			o.Candidate = explain.New(o)
			report := explain.New(o).Explain(context.Background(), req)
			require.NoError(t, report.WriteText(io.Discard))
			_, err := json.Marshal(report)
			require.NoError(t, err)
			if i > 0 {
				continue
			}
			resp, err := rateLimiter.ShouldRateLimit(context.Background(), req)
			require.Equal(t, err != nil, report.Error != "")
			if err == nil {
				require.Equal(t, resp.OverallCode.String(), report.Code, "%s %v", limits, requests)
			}
		}
		now = now.Add(700 * time.Millisecond)
	}
}

// FuzzExplain explains requests of the fuzzer with limits of the fuzzer.
func FuzzExplain(f *testing.F) {
	limits, err := os.ReadFile("../../../examples/limits.yaml")
	require.NoError(f, err)
	req, err := explain.NewRequest("shop", []string{"remote_address=10.0.0.1,path=/login", "tenant=free"}, "3/minute")
	require.NoError(f, err)
	message, err := proto.Marshal(req)
	require.NoError(f, err)
	f.Add(string(limits), message, false, false, false)
	f.Add("domain: shop\ndescriptors: [{key: tenant, refunds: false, rate_limits: [{unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]}]}]", message, true, true, true)
	f.Fuzz(func(t *testing.T, limits string, message []byte, allOrNone, shadowMode, quotaMode bool) {
		var req rlsv3.RateLimitRequest
		if proto.Unmarshal(message, &req) == nil {
			explainAndSend(t, limits, allOrNone, shadowMode, quotaMode, &req, &req)
		}
	})
}

// FuzzDrawnExplain explains drawn requests with drawn limits.
func FuzzDrawnExplain(f *testing.F) { f.Fuzz(rapid.MakeFuzz(explainRandomRequests)) }

func TestExplanationOfARandomRequestHasTheCodeOfTheAnswer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, explainRandomRequests)
}

// A refund of more hits than are spent gives the later hits of the request no room beyond the limit.
func TestExplanationAfterALargeRefundHasTheCodeOfTheAnswer(t *testing.T) {
	descriptor := func(n uint64, isRefund bool) *ratelimitv3.RateLimitDescriptor {
		return &ratelimitv3.RateLimitDescriptor{
			Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "a", Value: "x"}},
			HitsAddend: wrapperspb.UInt64(n), IsNegativeHits: isRefund,
		}
	}
	for _, limit := range []string{
		"{requests_per_unit: 0, algorithm: concurrency, hold: 30s}", "{requests_per_unit: 2, algorithm: concurrency, hold: 30s}",
		"{requests_per_unit: 2, unit: day}", "{requests_per_unit: 2, unit: day, algorithm: sliding_log}", "{requests_per_unit: 2, unit: day, algorithm: token_bucket}",
	} {
		for n := range uint64(4) {
			explainAndSend(t, "domain: d\ndescriptors: [{key: a, rate_limits: ["+limit+"]}]", false, false, false,
				&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{descriptor(1<<40, true), descriptor(n, false)}})
		}
	}
}

func explainRandomRequests(t *rapid.T) {
	explainAndSend(t, limitsgen.File(t), rapid.Bool().Draw(t, "all or none"), rapid.Bool().Draw(t, "shadow mode"), rapid.Bool().Draw(t, "quota mode"),
		rapid.SliceOfN(rapid.Custom(limitsgen.Request), 1, 6).Draw(t, "requests")...)
}
