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

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/limit"
)

// TestRetryAfterMatchesTheRealWait repeats a denied call until it passes. rls rounds
// waits up to whole seconds. Envoy rounds them down, but never to 0.
func TestRetryAfterMatchesTheRealWait(t *testing.T) {
	limits := "domain: shop\ndescriptors:\n"
	for _, algorithm := range limit.Algorithms() {
		window := "unit: second, unit_multiplier: 4"
		if algorithm.HasHolds() {
			window = "hold: 4s"
		}
		limits += fmt.Sprintf("  - {key: tenant, value: %s, rate_limit: {%s, requests_per_unit: 2, algorithm: %s}}\n", algorithm, window, algorithm)
	}
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, limitsFile(t, limits))).start()
	for _, algorithm := range limit.Algorithms() {
		t.Run(algorithm.String(), func(t *testing.T) {
			t.Parallel()
			request := call{"/tenant", "x-tenant: " + algorithm.String()}
			awaitTimeLeft(4*time.Second, 2*time.Second)
			for range 2 {
				require.Equal(t, http.StatusOK, envoy.send(t, request).status)
			}
			denied := envoy.send(t, request)
			start := time.Now()
			require.Equal(t, http.StatusTooManyRequests, denied.status)
			retryAfter, err := strconv.Atoi(denied.Get("retry-after"))
			require.NoError(t, err)
			var lastDenied float64 // start of the last denied call, in seconds; a slow machine only makes it earlier
			polltest.Until(t, maxWait, func() bool {
				callStart := time.Since(start).Seconds()
				if envoy.send(t, request).status == http.StatusOK {
					return true
				}
				lastDenied = callStart
				return false
			})
			waitTime := time.Since(start).Seconds()
			t.Logf("retry-after %d s, last denied at %.2f s, waited %.2f s", retryAfter, lastDenied, waitTime)
			assert.GreaterOrEqual(t, waitTime, float64(retryAfter)-1.1, "retry-after is at most a second too long")
			assert.LessOrEqual(t, lastDenied, float64(retryAfter)+0.3, "retry-after is never too short, beyond the time of a call")
		})
	}
}
