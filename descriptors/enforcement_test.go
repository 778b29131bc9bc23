package descriptors

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func TestEnforcementGrowsWithItsPercentage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Float64Range(0.001, 100).Draw(t, "small")
		large := rapid.Float64Range(small, 100).Draw(t, "large")
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		few, many := &Rule{enforcement: newEnforcement(small)}, &Rule{enforcement: newEnforcement(large)}
		if !few.IsShadowed(key) {
			assert.False(t, many.IsShadowed(key), "%v %% of the keys include this key", small)
		}
	})
}

func TestEnforcementHasItsShareOfTheKeys(t *testing.T) {
	for _, percent := range []float64{0.5, 5, 50, 99} {
		rule := &Rule{enforcement: newEnforcement(percent)}
		const keys = 100_000
		enforced := 0
		for i := range keys {
			if !rule.IsShadowed([]byte("shop|tenant=" + strconv.Itoa(i))) {
				enforced++
			}
		}
		assert.InDelta(t, percent, 100*float64(enforced)/keys, 0.5)
		assert.Equal(t, percent, rule.EnforcedPercent())
	}
}

// Replicas of all versions must choose the same keys.
func TestAllVersionsEnforceTheSameKeys(t *testing.T) {
	rule := &Rule{enforcement: newEnforcement(10)}
	var enforced []int
	for i := range 40 {
		if !rule.IsShadowed([]byte("shop|tenant=" + strconv.Itoa(i))) {
			enforced = append(enforced, i)
		}
	}
	assert.Equal(t, []int{0, 10, 21, 30, 38}, enforced)
}

func TestRuleWithoutEnforceDeniesAllKeys(t *testing.T) {
	for _, percent := range []float64{0, 100, 150, -1} {
		rule := &Rule{enforcement: newEnforcement(percent)}
		for i := range 100 {
			assert.False(t, rule.IsShadowed([]byte(strconv.Itoa(i))))
		}
		assert.Equal(t, 100.0, rule.EnforcedPercent())
	}
	assert.True(t, (&Rule{RuleFields: limitsfile.RuleFields{ShadowMode: true}, enforcement: newEnforcement(100)}).IsShadowed(nil))
}
