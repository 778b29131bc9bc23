package limit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/limit"
)

func TestRegionsDivideOnlySomeLimits(t *testing.T) {
	for name, c := range map[string]struct {
		spec limit.Spec
		want string
	}{
		"fixed_window":   {limit.Spec{Requests: 100, Unit: limit.Minute, ChargeDenied: true}, ""},
		"sliding_window": {limit.Spec{Algorithm: limit.SlidingWindow, Requests: 100, Unit: limit.Minute}, ""},
		"token_bucket":   {limit.Spec{Algorithm: limit.TokenBucket, Requests: 100, Unit: limit.Second}, ""},
		"a limit of 0":   {limit.Spec{Algorithm: limit.TokenBucket, Unit: limit.Second}, ""},
		"a small burst": {
			limit.Spec{Algorithm: limit.TokenBucket, Requests: 100, Burst: 20, Unit: limit.Second},
			"regions can divide a bucket only if its burst is at least 10, and at least the hits of 0.4 s; got burst 20 with 100 per second",
		},
		"few tokens":  {limit.Spec{Algorithm: limit.TokenBucket, Requests: 9, Unit: limit.Minute}, "regions can divide a bucket only if its burst is at least 10, and at least the hits of 0.4 s; got burst 9 with 9 per minute"},
		"sliding_log": {limit.Spec{Algorithm: limit.SlidingLog, Requests: 100, Unit: limit.Minute}, "regions can divide only limits with algorithm fixed_window, sliding_window or token_bucket, not sliding_log"},
		"concurrency": {limit.Spec{Algorithm: limit.Concurrency, Requests: 100}, "regions can divide only limits with algorithm fixed_window, sliding_window or token_bucket, not concurrency"},
		"a lease":     {limit.Spec{Requests: 100, Unit: limit.Minute, Lease: true}, "a limit can't have lease: true as well, because regions already buy hits in advance"},
		"charge_denied": {
			limit.Spec{Algorithm: limit.SlidingWindow, Requests: 100, Unit: limit.Minute, ChargeDenied: true},
			"a limit can't have charge_denied: true as well, because regions buy no hits for denied requests",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Scope = limit.Global
			assert.Equal(t, c.want, c.spec.GlobalProblem())
		})
	}
}

func TestFloorsAndPoolOfRegionsStayWithinTheLimit(t *testing.T) {
	specs := rapid.Custom(func(t *rapid.T) limit.Spec {
		spec := limit.Spec{
			Algorithm: rapid.SampledFrom([]limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.TokenBucket}).Draw(t, "algorithm"),
			Requests:  rapid.Uint32().Draw(t, "requests"), Unit: rapid.SampledFrom([]limit.Unit{limit.Second, limit.Minute, limit.Day, limit.Year}).Draw(t, "unit"), Scope: limit.Global,
		}
		if spec.Algorithm.UsesBurst() {
			spec.Burst = rapid.Uint32().Draw(t, "burst")
		}
		return spec
	}).Filter(func(spec limit.Spec) bool {
		_, err := limit.New(spec)
		return err == nil && spec.GlobalProblem() == ""
	})
	rapid.Check(t, func(t *rapid.T) {
		spec := specs.Draw(t, "spec")
		l, err := limit.New(spec)
		require.NoError(t, err)
		regions := limit.Regions{Count: rapid.IntRange(1, 1000).Draw(t, "regions"), Floor: rapid.Float64Range(0, 0.5).Draw(t, "floor"), Waste: rapid.Float64Range(0.01, 1).Draw(t, "waste")}
		share := l.RegionShare(regions)
		floors := int64(regions.Count) * share.Floor
		switch spec.Algorithm {
		case limit.TokenBucket:
			// In a time T, regions use the floors of T / window + 2 windows, and the bucket sells at most its burst and its refill
			// in T. Regions use a hit at most two windows after its purchase.
			assert.LessOrEqual(t, share.Pool+2*(share.RateTokens+floors), l.Capacity(), "burst")
			assert.LessOrEqual(t, float64(share.RateTokens+floors)*float64(l.Period()), float64(l.Max())*float64(share.RateMicros)*(1+1e-9), "rate")
		case limit.SlidingWindow:
			assert.LessOrEqual(t, share.Pool+2*floors, l.Max())
		default:
			assert.LessOrEqual(t, share.Pool+floors, l.Max())
		}
		assert.GreaterOrEqual(t, share.Pool, int64(0))
		assert.GreaterOrEqual(t, share.RateTokens, int64(0))
		assert.LessOrEqual(t, share.MaxUnused, l.Capacity())
	})
}

func TestStockCountsInAlignedWindowsWithATagOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		spec                        limit.Spec
		tag, purchasesTag, buyerTag string
		period                      int64
	}{
		"fixed_window":   {limit.Spec{Requests: 100, Unit: limit.Minute, ChargeDenied: true}, "fw60g", "fw60gp", "fw60gb", 60_000_000},
		"sliding_window": {limit.Spec{Algorithm: limit.SlidingWindow, Requests: 100, Unit: limit.Minute}, "sw60g", "sw60gp", "sw60gb", 60_000_000},
		"token_bucket":   {limit.Spec{Algorithm: limit.TokenBucket, Requests: 100, Burst: 250, Unit: limit.Second}, "tb1gw625", "tb1gw625p", "tb1gw625b", 625_000},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Scope = limit.Global
			l, err := limit.New(c.spec)
			require.NoError(t, err)
			regions := limit.Regions{Count: 3, Floor: 0.1, Waste: 0.25}
			share := l.RegionShare(regions)
			assert.Same(t, share, l.RegionShare(regions))
			stock := share.Stock(7)
			assert.Equal(t, share.Floor+7, stock.Max())
			assert.Equal(t, c.period, stock.Period())
			assert.NotContains(t, stock.String(), "over all regions", "one region has the stock")
			assert.False(t, stock.ChargeDenied)
			for _, variant := range []*limit.Limit{stock, stock.Scaled(0.5), stock.WithChargeDenied(true)} {
				assert.Equal(t, c.tag, variant.Tag())
			}
			assert.Equal(t, c.purchasesTag, share.Purchases.Tag())
			assert.Equal(t, c.buyerTag, share.Buyer.Tag())
		})
	}
}
