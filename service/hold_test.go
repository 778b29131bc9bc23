package service

import (
	"context"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/limit"
)

const slotLimits = `
domain: d
descriptors:
  - key: job
    rate_limits:
      - {algorithm: concurrency, requests_per_unit: 2, hold: 10s, name: slots}
      - {unit: hour, requests_per_unit: 10, name: hourly}
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: slot
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 10s}
  - key: quota
    quota_mode: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: nothing
    rate_limit: {unit: hour, requests_per_unit: 0}
`

// sendHoldHits sends n hits of the descriptor key=x, with ids as the values of the hold header.
func (f *fixture) sendHoldHits(key string, n int64, ids ...string) (*rlsv3.RateLimitResponse, error) {
	d := &ratelimitv3.RateLimitDescriptor{
		Entries:        []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: "x"}},
		HitsAddend:     wrapperspb.UInt64(uint64(max(n, -n))),
		IsNegativeHits: n < 0,
	}
	ctx := metadata.NewIncomingContext(context.Background(), metadata.MD{limit.HoldKey: ids})
	return f.svc.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{d}})
}

func TestMetadataOfACallNamesItsHold(t *testing.T) {
	f := newFixture(t, slotLimits)
	for _, step := range []struct {
		n    int64
		id   string
		want rlsv3.RateLimitResponse_Code
		free uint32
	}{
		{1, "a", codeOK, 1},
		{1, "b", codeOK, 0},
		{1, "c", codeOverLimit, 0},
		{1, "a", codeOK, 0}, // a renewal
		{-1, "c", codeOK, 0},
		{-1, "a", codeOK, 1},
		{-1, "a", codeOK, 1}, // a late release
		{1, "c", codeOK, 0},
	} {
		resp, err := f.sendHoldHits("job", step.n, step.id)
		require.NoError(t, err)
		assert.Equal(t, step.want, resp.OverallCode, "%+v", step)
		assert.Equal(t, "slots", resp.Statuses[0].CurrentLimit.Name)
		assert.Equal(t, step.free, resp.Statuses[0].LimitRemaining, "%+v", step)
	}
}

func TestReleaseRefundsNoOtherLimitOfTheRule(t *testing.T) {
	f := newFixture(t, slotLimits)
	for range 10 {
		_, err := f.sendHoldHits("job", 1, "a")
		require.NoError(t, err)
		_, err = f.sendHoldHits("job", -1, "a")
		require.NoError(t, err)
	}
	resp, err := f.sendHoldHits("job", 1, "a")
	require.NoError(t, err)
	assert.Equal(t, codeOverLimit, resp.OverallCode)
	assert.Equal(t, "hourly", resp.Statuses[0].CurrentLimit.Name)
}

func TestReleaseIsNeverAReset(t *testing.T) {
	f := newFixture(t, slotLimits)
	_, err := f.sendHoldHits("job", 1, "a")
	require.NoError(t, err)
	resp, err := f.sendHoldHits("job", -limit.MaxHits)
	require.NoError(t, err)
	assert.EqualValues(t, 1, resp.Statuses[0].LimitRemaining, "the named hold stays")
}

func TestInvalidHoldIsAnError(t *testing.T) {
	f := newFixture(t, slotLimits)
	for want, ids := range map[string][]string{
		"rls-hold: got 65 bytes, want 1 to 64":                                 {strings.Repeat("x", 65)},
		"rls-hold: got byte 0x20 at position 2, want visible ASCII characters": {"a b"},
		"rls-hold: got 2 values, want one":                                     {"a", "b"},
	} {
		_, err := f.sendHoldHits("job", 1, ids...)
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.Equal(t, want, status.Convert(err).Message())
		_, err = f.sendHoldHits("path", 1, ids...)
		assert.NoError(t, err, "a rule without holds ignores the id")
	}
}

func TestHoldHeaderIsSentOnlyIfAReleaseCanHelp(t *testing.T) {
	const restOfHour = "3562.5" // seconds until the hour ends
	for name, test := range map[string]struct {
		spentHits int      // hits of the hour
		heldIDs   []string // ids of taken slots
		want      metadata.MD
	}{
		"allowed":                    {0, nil, metadata.Pairs(limit.HoldKey, "10", limit.ResetAfterKey, restOfHour)},
		"denied for lack of a slot":  {0, []string{"a", "b"}, metadata.Pairs(limit.HoldKey, "10", limit.RetryAfterKey, "10")},
		"denied by the hourly limit": {10, nil, metadata.Pairs(limit.RetryAfterKey, restOfHour)},
		"denied for lack of a slot, and by the hourly limit": {8, []string{"a", "b"}, metadata.Pairs(limit.RetryAfterKey, restOfHour)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, slotLimits)
			hold := func(n int64, id string) {
				_, err := f.sendHoldHits("job", n, id)
				require.NoError(t, err)
			}
			for range test.spentHits {
				hold(1, "spent")
				hold(-1, "spent")
			}
			for _, id := range test.heldIDs {
				hold(1, id)
			}
			stream := &headerStream{}
			ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(limit.AcquireKey, "true", limit.HoldKey, "new"))
			_, err := f.svc.ShouldRateLimit(grpc.NewContextWithServerTransportStream(ctx, stream), &rlsv3.RateLimitRequest{
				Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("job=x")},
			})
			require.NoError(t, err)
			assert.Equal(t, test.want, stream.header)
		})
	}
}

func TestReleaseOfADisabledLimitRefundsNoOtherLimit(t *testing.T) {
	f := newFixture(t, `
domain: d
descriptors:
  - key: job
    rate_limits:
      - {algorithm: concurrency, requests_per_unit: 2, hold: 10s, enabled: false}
      - {unit: hour, requests_per_unit: 10}
`)
	for i := range uint32(3) {
		resp, err := f.sendHoldHits("job", 1)
		require.NoError(t, err)
		assert.Equal(t, 9-i, resp.Statuses[0].LimitRemaining)
		resp, err = f.sendHoldHits("job", -1)
		require.NoError(t, err)
		assert.Equal(t, 9-i, resp.Statuses[0].LimitRemaining, "after the release")
	}
}
