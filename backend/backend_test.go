package backend_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
)

func TestOnlyHitsThatChargeAndCanDenyBind(t *testing.T) {
	for n, binds := range map[int64]bool{1: true, math.MaxInt64: true, 0: false, -1: false, math.MinInt64: false} {
		assert.Equal(t, binds, (&backend.Hit{N: n}).AllOrNone(), n)
		assert.False(t, (&backend.Hit{N: n, Shadow: true}).AllOrNone(), n)
	}
}

// A probe that didn't charge would find a backend well that can only be read.
func TestAProbeChargesEvenWhereItIsDenied(t *testing.T) {
	h := backend.Probe("probe")
	assert.Equal(t, "probe", string(h.Key))
	assert.Positive(t, h.N)
	assert.True(t, h.Limit.ChargeDenied)
	assert.False(t, h.AllOrNone())
}
