//go:build !race

package override

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A search through all overrides for each single value would exceed the timeout of go test.
func TestManySingleValuesApplyInLinearTime(t *testing.T) {
	base := compile(t, "domain: d\ndescriptors: [{key: tenant, rate_limit: {unit: minute, requests_per_unit: 5}}]")
	overrides := []*Override{parseOverride(t, "d|tenant", `{"factor": 2}`)}
	for i := range maxCopies / 2 {
		overrides = append(overrides, parseOverride(t, fmt.Sprintf("d|tenant=t%d", i), `{"factor": 3}`))
	}
	changedLimits, outcomes := base.withOverrides(overrides...)
	for _, o := range outcomes {
		require.Empty(t, o.Problem)
	}
	assert.Equal(t, "30 per minute", matchedLimits(changedLimits.Config, "d", "tenant", "t77"))
	assert.Equal(t, "10 per minute", matchedLimits(changedLimits.Config, "d", "tenant", "other"))
}
