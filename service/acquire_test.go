package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

const acquireLimits = `
domain: d
descriptors:
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: both
    rate_limits:
      - {unit: second, requests_per_unit: 2}
      - {unit: hour, requests_per_unit: 5}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 10, burst: 5, algorithm: token_bucket}
  - key: small
    max_hits: 3
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: small_shadow
    shadow_mode: true
    max_hits: 3
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: large_shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: two_scopes
    rate_limits:
      - {unit: second, requests_per_unit: 2}
      - {unit: hour, requests_per_unit: 100, scope: instance}
`

// headerStream records the headers of an answer.
type headerStream struct {
	grpc.ServerTransportStream
	header metadata.MD
}

func (s *headerStream) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

// acquire sends a call that is marked with limit.AcquireKey, with these ids of a hold.
func (f *fixture) acquire(req *rlsv3.RateLimitRequest, holdIDs ...string) (*rlsv3.RateLimitResponse, metadata.MD) {
	f.t.Helper()
	stream := &headerStream{}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{limit.AcquireKey: {"true"}, limit.HoldKey: holdIDs})
	resp, err := f.svc.ShouldRateLimit(grpc.NewContextWithServerTransportStream(ctx, stream), req)
	require.NoError(f.t, err)
	return resp, stream.header
}

func TestAcquireHeaderSaysWhenAnswerChanges(t *testing.T) {
	for name, test := range map[string]struct {
		spentBefore, n uint64
		entry          string
		want           metadata.MD
	}{
		"allowed":                        {0, 1, "minute=x", metadata.Pairs(limit.ResetAfterKey, "22.5")},
		"denied until the window ends":   {8, 3, "minute=x", metadata.Pairs(limit.RetryAfterKey, "22.5")},
		"longest wait of two limits":     {2, 1, "both=x", metadata.Pairs(limit.RetryAfterKey, "0.5")},
		"longest reset of two limits":    {0, 1, "both=x", metadata.Pairs(limit.ResetAfterKey, "3562.5")},
		"token bucket":                   {5, 2, "bucket=x", metadata.Pairs(limit.RetryAfterKey, "0.2")},
		"above the limit":                {0, 11, "minute=x", metadata.Pairs(limit.RetryAfterKey, "never")},
		"above the burst":                {0, 6, "bucket=x", metadata.Pairs(limit.RetryAfterKey, "never")},
		"above max_hits":                 {0, 4, "small=x", metadata.Pairs(limit.RetryAfterKey, "never")},
		"in shadow mode, never denied":   {0, 2, "shadow=x", metadata.Pairs(limit.ResetAfterKey, "3562.5")},
		"without a rule, without header": {0, 1, "other=x", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, acquireLimits)
			if test.spentBefore > 0 {
				f.request(withHits(test.spentBefore, desc(test.entry)))
			}
			_, header := f.acquire(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{withHits(test.n, desc(test.entry))}})
			assert.Equal(t, test.want, header)
		})
	}
}

func TestDeniedAcquireChargesNothing(t *testing.T) {
	for _, allOrNone := range []bool{false, true} {
		f := newFixture(t, acquireLimits, func(o *Options) {
			o.AllOrNone = allOrNone
		})
		req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
			withHits(4, desc("minute=x")), withHits(4, desc("both=x")), withHits(4, desc("shadow=x")),
		}}
		for range 5 {
			resp, _ := f.acquire(req)
			require.Equal(t, codeOverLimit, resp.OverallCode)
		}
		peek := f.request(withHits(0, desc("minute=x")), withHits(0, desc("both=x")), withHits(0, desc("shadow=x")))
		assert.Equal(t, []uint32{10, 2, 1}, []uint32{peek.Statuses[0].LimitRemaining, peek.Statuses[1].LimitRemaining, peek.Statuses[2].LimitRemaining}, "all_or_none: %v", allOrNone)
	}
}

func TestDeniedAcquireRefundsHitsThatAreNotInTheDeniedGroup(t *testing.T) {
	for _, allOrNone := range []bool{false, true} {
		for name, entries := range map[string][]string{
			"a rule in shadow mode is above its max_hits": {"minute=x", "both=x", "small_shadow=x"},
			"a rule in shadow mode has hits left":         {"both=x", "large_shadow=x"},
			"a limit of another scope has hits left":      {"minute=x", "two_scopes=x"},
		} {
			t.Run(fmt.Sprintf("%s, all or none %v", name, allOrNone), func(t *testing.T) {
				global := local.New(local.Options{})
				instance := local.New(local.Options{})
				f := newFixture(t, acquireLimits, func(o *Options) {
					o.AllOrNone, o.Limiter = allOrNone, backend.Scopes{Shared: backend.Counters{Limiter: global}, Instance: backend.Counters{Limiter: instance}}
				})
				req := &rlsv3.RateLimitRequest{Domain: "d"}
				for _, e := range entries {
					req.Descriptors = append(req.Descriptors, withHits(4, desc(e)))
				}
				for range 5 {
					resp, _ := f.acquire(req)
					require.Equal(t, codeOverLimit, resp.OverallCode)
				}
				assert.Zero(t, global.Keys())
				assert.Zero(t, instance.Keys())
			})
		}
	}
}

func TestDeniedAcquireKeepsTheHoldThatItRenewed(t *testing.T) {
	for _, otherKey := range []string{"quota", "none"} { // hits beside a rule in quota mode are charged one by one
		f := newFixture(t, slotLimits)
		resp, err := f.sendHoldHits("slot", 1, "a")
		require.NoError(t, err)
		require.Equal(t, codeOK, resp.OverallCode)
		resp, _ = f.acquire(&rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
			desc("slot=x"), desc(otherKey + "=x"), desc("nothing=x"),
		}}, "a")
		require.Equal(t, codeOverLimit, resp.OverallCode)
		resp, err = f.sendHoldHits("slot", 1, "b")
		require.NoError(t, err)
		assert.Equal(t, codeOverLimit, resp.OverallCode, "a has the slot, beside %s", otherKey)
	}
}

func TestAllowedAcquireIsChargedOnce(t *testing.T) {
	f := newFixture(t, acquireLimits)
	req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("minute=x"), desc("both=x")}}
	resp, _ := f.acquire(req)
	assert.Equal(t, codeOK, resp.OverallCode)
	assert.Equal(t, uint32(9), resp.Statuses[0].LimitRemaining)
	assert.Equal(t, uint32(9), f.request(withHits(0, desc("minute=x"))).Statuses[0].LimitRemaining)
}

func TestDeniedAcquireRefundsHitsThatAreChargedOneByOne(t *testing.T) {
	f := newFixture(t, acquireLimits, func(o *Options) { o.QuotaMode = true })
	for second := range 2 {
		req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{withHits(2, desc("both=x"))}}
		resp, _ := f.acquire(req)
		require.Equal(t, codeOK, resp.OverallCode, "second %d", second)
		for range 5 {
			resp, header := f.acquire(req)
			require.Equal(t, codeOverLimit, resp.OverallCode)
			if second == 0 { // the limit of an hour has hits left
				assert.Equal(t, metadata.Pairs(limit.RetryAfterKey, "0.5"), header, "a refunded hit has no wait")
			}
		}
		f.now = f.now.Add(time.Second)
	}
}

func TestWaitForAnotherLimitIsNoWaitForASlot(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: job
    rate_limits:
      - {algorithm: concurrency, requests_per_unit: 1, hold: 10s}
      - {unit: second, requests_per_unit: 1}
`)
	req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("job=x")}}
	f.acquire(req)
	_, header := f.acquire(req)
	assert.Equal(t, []string{"0.5"}, header.Get(limit.RetryAfterKey), "a slot may be free after this time")
	f.now = f.now.Add(time.Second)
	_, header = f.acquire(req)
	assert.Equal(t, []string{"9"}, header.Get(limit.RetryAfterKey), "the wait until the hold expires")
}
