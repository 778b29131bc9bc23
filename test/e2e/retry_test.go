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

	"github.com/seed-81f232ab/rls/internal/polltest"
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
			var stillDenied float64 // when it was asked for in vain last; a slow machine only makes that earlier
			polltest.Until(t, ample, func() bool {
				asked := time.Since(begin).Seconds()
				if e.send(t, c).status == http.StatusOK {
					return true
				}
				stillDenied = asked
				return false
			})
			waited := time.Since(begin).Seconds()
			t.Logf("told %ds, denied until %.2fs, waited %.2fs", told, stillDenied, waited)
			assert.GreaterOrEqual(t, waited, float64(told)-1.1, "told in whole seconds, rounded up")
			assert.LessOrEqual(t, stillDenied, float64(told)+0.3, "never told too early, but for the time of the asking")
		})
	}
}
