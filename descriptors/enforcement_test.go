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
		smallPercentage := rapid.Float64Range(0.001, 100).Draw(t, "small")
		largePercentage := rapid.Float64Range(smallPercentage, 100).Draw(t, "large")
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		smallRule, largeRule := &Rule{enforcement: newEnforcement(smallPercentage)}, &Rule{enforcement: newEnforcement(largePercentage)}
		if !smallRule.IsShadowed(key) {
			assert.False(t, largeRule.IsShadowed(key), "%v %% of the keys include this key", smallPercentage)
		}
	})
}

func TestEnforcementHasItsShareOfTheKeys(t *testing.T) {
	for _, percent := range []float64{0.5, 5, 50, 99} {
		rule := &Rule{enforcement: newEnforcement(percent)}
		const keys = 100_000
		enforcedCount := 0
		for i := range keys {
			if !rule.IsShadowed([]byte("shop|tenant=" + strconv.Itoa(i))) {
				enforcedCount++
			}
		}
		assert.InDelta(t, percent, 100*float64(enforcedCount)/keys, 0.5)
		assert.Equal(t, percent, rule.EnforcedPercent())
	}
}

// Replicas of all versions must choose the same keys.
func TestAllVersionsEnforceTheSameKeys(t *testing.T) {
	rule := &Rule{enforcement: newEnforcement(10)}
	var enforcedKeys []int
	for i := range 40 {
		if !rule.IsShadowed([]byte("shop|tenant=" + strconv.Itoa(i))) {
			enforcedKeys = append(enforcedKeys, i)
		}
	}
	assert.Equal(t, []int{0, 10, 21, 30, 38}, enforcedKeys)
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
