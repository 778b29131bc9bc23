//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

// TestRetryAfterIsTheTrueWait asks again and again until a call passes. Envoy tells
// whole seconds, rounded down but never 0; what it is told is rounded up.
func TestRetryAfterIsTheTrueWait(t *testing.T) {
	limits := "domain: shop\ndescriptors:\n"
	for _, a := range limit.Algorithms() {
		limits += fmt.Sprintf("  - {key: tenant, value: %s, rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 2, algorithm: %s}}\n", a, a)
	}
	e := example(t, "envoy.yaml", startRLS(t, limitsFile(t, limits))).start()
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			t.Parallel()
			c := call{"/tenant", "x-tenant: " + a.String()}
			room(4*time.Second, 2*time.Second)
			for range 2 {
				require.Equal(t, http.StatusOK, e.send(t, c).status)
			}
			denied := e.send(t, c)
			begin := time.Now()
			require.Equal(t, http.StatusTooManyRequests, denied.status)
			told, err := strconv.Atoi(denied.Get("retry-after"))
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				return e.send(t, c).status == http.StatusOK
			}, 20*time.Second, 10*time.Millisecond)
			waited := time.Since(begin).Seconds()
			t.Logf("told %ds, waited %.2fs", told, waited)
			assert.InDelta(t, waited, told, 1.1)
			assert.LessOrEqual(t, waited, float64(told)+0.3, "never told too early, but for the time of the asking")
		})
	}
}
