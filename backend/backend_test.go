package backend_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
)

func TestAllOrNoneHitsChargeAndCanDeny(t *testing.T) {
	for n, want := range map[int64]bool{1: true, math.MaxInt64: true, 0: false, -1: false, math.MinInt64: false} {
		assert.Equal(t, want, (&backend.Hit{N: n}).AllOrNone(), n)
		assert.False(t, (&backend.Hit{N: n, Shadow: true}).AllOrNone(), n)
	}
}
