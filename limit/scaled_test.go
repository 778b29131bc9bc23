package limit

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestScaledAllocatesOncePerLimit(t *testing.T) {
	limits := make([]*Limit, 20_000)
	for i := range limits {
		limits[i] = mustNew(t, Spec{Requests: uint32(i), Unit: Minute})
		limits[i].Scaled(0.5)
	}
	assert.Zero(t, testing.AllocsPerRun(3, func() {
		for i, l := range limits {
			if want := max(int64(i/2), min(int64(i), 1)); l.Scaled(0.5).Max() != want {
				t.Fatalf("half of %d: got %d, want %d", i, l.Scaled(0.5).Max(), want)
			}
		}
	}))
}

func TestScaledFollowsTheRatio(t *testing.T) {
	l := mustNew(t, Spec{Requests: 100, Unit: Minute})
	assert.EqualValues(t, 50, l.Scaled(0.5).Max())
	assert.EqualValues(t, 29, l.Scaled(0.29).Max(), "the product is 28.999…")
	assert.EqualValues(t, 50, l.Scaled(0.5).Max())
}

func TestWithChargeDeniedOfTrueChangesNothingElse(t *testing.T) {
	l := mustNew(t, Spec{Requests: 10, Unit: Minute, Algorithm: TokenBucket, Burst: 20, Scope: Instance, FallbackRatio: 0.1})
	want := l.Spec
	want.ChargeDenied = true
	chargingLimit := l.WithChargeDenied(true)
	assert.Equal(t, want, chargingLimit.Spec)
	assert.Equal(t, l.Tag(), chargingLimit.Tag())
	assert.Same(t, chargingLimit, chargingLimit.WithChargeDenied(true))
}

func TestScaledTokenBucketScalesItsBurst(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: TokenBucket, Requests: 100, Unit: Minute, Burst: 30}).Scaled(0.5)
	assert.EqualValues(t, 50, l.Max())
	assert.EqualValues(t, 15, l.Capacity())
	l = mustNew(t, Spec{Algorithm: TokenBucket, Requests: 100, Unit: Minute, Burst: 1000, Lease: true, LeaseWaste: 0.1})
	assert.EqualValues(t, 900, l.Capacity())
	assert.EqualValues(t, 500, l.Scaled(0.5).Capacity(), "the fallback holds no permits")
}

func TestWithChargeDeniedOfFalseChangesNothingElse(t *testing.T) {
	l := mustNew(t, Spec{Requests: 10, Unit: Minute, ChargeDenied: true, FallbackRatio: 0.1})
	want := l.Spec
	want.ChargeDenied = false
	assert.Equal(t, want, l.WithChargeDenied(false).Spec)
	assert.Same(t, l.WithChargeDenied(false), l.WithChargeDenied(false), "only the first call makes a limit")
	assert.Same(t, l.WithChargeDenied(false), l.WithChargeDenied(false).WithChargeDenied(false))
}
