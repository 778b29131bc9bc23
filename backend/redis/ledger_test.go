package redis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// ledgerTest sells the hits of one counter.
type ledgerTest struct {
	*testing.T
	redis.Ledger
	order backend.Order
}

func newLedgerTest(t *testing.T, spec limit.Spec) *ledgerTest {
	client, err := redis.New(redis.Options{Main: redis.Server{URL: redistest.Start(t).Addr}, Timeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	spec.Scope = limit.Global
	l := backendtest.NewLimit(t, spec)
	share := l.RegionShare(limit.Regions{Count: 3, Floor: 0, Waste: 1})
	o := backend.Order{Key: []byte("k"), Limit: l, Share: share}
	o.WindowStart, o.WindowEnd = share.Purchases.WindowAt(time.Now().UnixMicro())
	return &ledgerTest{t, redis.Ledger{Limiter: client}, o}
}

// buy returns the granted hits and the free hits. windows is added to the number of the window.
func (l *ledgerTest) buy(region string, windows, want, unused int64, rate float64) (granted, free int64) {
	o := l.order
	length := o.WindowEnd - o.WindowStart
	o.Region, o.Want, o.Unused, o.Rate = region, want, unused, rate
	o.WindowStart, o.WindowEnd = o.WindowStart+windows*length, o.WindowEnd+windows*length
	l.Buy(l.Context(), []*backend.Order{&o})
	require.NoError(l, o.Err)
	return o.Granted, o.Free
}

func TestLedgerSellsEachHitOnce(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Requests: 100, Unit: limit.Day, ChargeDenied: true})
	for _, step := range []struct{ windows, want, granted, free int64 }{{0, 30, 30, 70}, {0, 0, 0, 70}, {0, 80, 70, 0}, {0, 1, 0, 0}, {1, 40, 40, 60}, {-5, 40, 40, 60}} {
		granted, free := l.buy("eu", step.windows, step.want, 0, 1)
		assert.Equal(t, []int64{step.granted, step.free}, []int64{granted, free}, step)
	}
	require.NoError(t, l.Reset(t.Context(), &l.order))
	_, free := l.buy("eu", 0, 0, 0, 1)
	assert.EqualValues(t, 100, free)
}

func TestLedgerOfASlidingWindowCountsTheWindowsBesides(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Algorithm: limit.SlidingWindow, Requests: 100, Unit: limit.Year})
	granted, _ := l.buy("eu", -1, 100, 0, 1)
	assert.Zero(t, granted, "the window has ended")
	granted, _ = l.buy("eu", 1, 60, 0, 1)
	assert.EqualValues(t, 60, granted, "the next window")
	granted, _ = l.buy("eu", 0, 100, 0, 1)
	assert.EqualValues(t, 40, granted, "when the next window begins, all hits of this window still count")
}

func TestLedgerOfABucketSellsTheBurstAndTheRefill(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 100, Burst: 400, Unit: limit.Second})
	var sold int64
	for range 10 {
		granted, _ := l.buy("eu", 0, 1000, 0, 1)
		sold += granted
	}
	assert.InDelta(t, l.order.Share.Pool, sold, 100, "the refill in less than a second")
	granted, _ := l.buy("eu", 3, 1000, 0, 1)
	assert.Zero(t, granted, "a window of the future")
}

func TestScarceHitsAreDividedByNeed(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Requests: 900, Unit: limit.Year, ChargeDenied: true})
	l.buy("us", 0, 1, 0, 1000)
	l.buy("asia", 0, 1, 0, 0.000001) // needs some hits until the end of the year
	granted, free := l.buy("eu", 0, 900, 0, 1000)
	assert.InDelta(t, 435, granted, 20, "eu and us get equal parts of what asia does not need")
	assert.Equal(t, 898-granted, free)
}

func TestUnusedHitsFollowTheDemand(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Requests: 1000, Unit: limit.Year, ChargeDenied: true})
	l.order.Share = l.order.Limit.RegionShare(limit.Regions{Count: 3, Waste: 0.25})
	granted, _ := l.buy("eu", 0, 900, 0, 10)
	assert.EqualValues(t, 250, granted, "eu has all demand, so it can have all unused hits")
	granted, _ = l.buy("eu", 0, 900, 200, 10)
	assert.EqualValues(t, 50, granted)
	granted, _ = l.buy("us", 0, 900, 0, 10)
	assert.EqualValues(t, 125, granted, "half of the demand")
}

func TestRegionsWithOtherSettingsAreFound(t *testing.T) {
	l := newLedgerTest(t, limit.Spec{Requests: 1, Unit: limit.Day, ChargeDenied: true})
	for _, step := range []struct {
		region, settings string
		want             map[string]string
	}{{"eu", "3", map[string]string{}}, {"us", "4", map[string]string{"eu": "3"}}, {"eu", "4", map[string]string{}}} {
		others, err := l.CompareRegions(t.Context(), step.region, step.settings)
		require.NoError(t, err)
		assert.Equal(t, step.want, others)
	}
}
