package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLeasePermitsAreTheWasteShareOfTheCapacity(t *testing.T) {
	for want, spec := range map[int64]Spec{
		0:         {Requests: 199, Unit: Minute, Lease: true},
		10:        {Requests: 1000, Unit: Minute, Lease: true},
		29:        {Requests: 100, Unit: Minute, Lease: true, LeaseWaste: 0.29},
		500:       {Algorithm: TokenBucket, Requests: 10, Burst: 5000, Unit: Second, Lease: true, LeaseWaste: 0.1},
		1<<31 - 1: {Requests: 1<<32 - 1, Unit: Second, Lease: true, LeaseWaste: 0.5},
	} {
		l := mustNew(t, spec)
		assert.Equal(t, want, l.MaxLeasePermits())
		if want > 0 {
			assert.Equal(t, want, l.LeaseBudget().Max())
			assert.Equal(t, l.Period(), l.LeaseBudget().Period())
		}
	}
	assert.Zero(t, mustNew(t, Spec{Requests: 1000, Unit: Minute}).MaxLeasePermits(), "the limit has no lease")
}

func TestLeaseNeedsASharedCounterOfWholeSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want bool
	}{
		"fixed window":     {Spec{Unit: Second}, true},
		"token bucket":     {Spec{Algorithm: TokenBucket, Unit: Second}, true},
		"sliding log":      {Spec{Algorithm: SlidingLog, Unit: Second}, false},
		"scope instance":   {Spec{Unit: Second, Scope: Instance}, false},
		"with a time zone": {Spec{Unit: Day, Timezone: "Asia/Tokyo"}, false},
		"milliseconds":     {Spec{Unit: Millisecond, Multiplier: 100}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Requests = 1000
			assert.Equal(t, c.want, c.spec.CanLease())
			c.spec.Lease = true
			_, err := New(c.spec)
			assert.Equal(t, c.want, err == nil, "CanLease and New agree: %v", err)
		})
	}
}

func TestBucketRegainsWholeTokens(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: TokenBucket, Requests: 3, Unit: Second, Burst: 100})
	largestLimit := mustNew(t, Spec{Algorithm: TokenBucket, Requests: math.MaxUint32, Unit: Second})
	for _, c := range []struct {
		limit        *Limit
		micros, want int64
	}{
		{l, -1, 0},
		{l, 0, 0},
		{l, 333_333, 0},
		{l, 333_334, 1},
		{l, 1_000_000, 3},
		{l, 10_000_000, 30},
		{largestLimit, math.MaxInt64, MaxHits},
	} {
		assert.Equal(t, c.want, c.limit.RefilledTokens(c.micros), "after %d µs", c.micros)
	}
}
