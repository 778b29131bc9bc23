//go:build e2e

package e2e_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

// TestEveryExampleActionReachesItsLimit spends each limit of examples/limits.yaml through
// its action in examples/envoy.yaml.
func TestEveryExampleActionReachesItsLimit(t *testing.T) {
	const second, minute, hour, day = time.Second, time.Minute, time.Hour, 24 * time.Hour
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	for _, test := range []struct {
		name      string
		call      call
		limit     int
		window    time.Duration
		algorithm limit.Algorithm
		policy    string // x-ratelimit-limit
	}{
		{"remote_address", call{"/", "x-forwarded-for: 10.9.9.9, 10.0.0.1"}, 5, second, limit.FixedWindow, `5, 5;w=1;name="ip-second"`},
		{"generic_key", call{"/login?try", "x-forwarded-for: 10.0.0.1"}, 3, 15 * minute, limit.SlidingLog, `3, 3;w=900;name="login"`},
		{"masked_remote_address", call{"/net", "x-forwarded-for: 10.0.0.1"}, 20, minute, limit.FixedWindow, `20, 20;w=60`},
		{"request_headers", call{"/tenant", "x-tenant: t1"}, 60, minute, limit.FixedWindow, `60, 60;w=60`},
		{"request_headers x-real-ip", call{"/real-ip", "x-real-ip: 10.0.0.1"}, 15, minute, limit.SlidingWindow, `15, 15;w=60`},
		{"two descriptors", call{"/checkout/pay"}, 100, minute, limit.FixedWindow, `100, 600;w=60;name="checkout", 100;w=60`},
		{"query_parameters", call{"/search?q=x&key=k1"}, 30, minute, limit.SlidingLog, `30, 30;w=60`},
		{"header_value_match", call{"POST /orders"}, 40, minute, limit.FixedWindow, `40, 40;w=60`},
		{"override", call{"/plan"}, 2, hour, limit.FixedWindow, `2, 2;w=3600`},
		{"domain override", call{"/partner", "x-partner: p1"}, 5, day, limit.SlidingWindow, `5, 5;w=86400`},
	} {
		t.Run(test.name, func(t *testing.T) {
			awaitTimeLeft(test.window, min(test.window/2, 5*time.Second))
			for i := range test.limit {
				answer := envoy.send(t, test.call)
				require.Equal(t, http.StatusOK, answer.status, "call %d", i+1)
				answer.assertHeaders(t, test.policy, test.limit-1-i)
				if i == 0 {
					answer.assertReset(t, test.algorithm, test.window)
				}
				assert.Empty(t, answer.Get("retry-after"))
			}
			answer := envoy.send(t, test.call)
			require.Equal(t, http.StatusTooManyRequests, answer.status)
			answer.assertHeaders(t, test.policy, 0)
			assert.Equal(t, "true", answer.Get("x-envoy-ratelimited"))
			wait, err := strconv.Atoi(answer.Get("retry-after"))
			require.NoError(t, err)
			assert.Positive(t, wait)
			assert.LessOrEqual(t, wait, int(2*test.window.Seconds()))
		})
	}
	for name, test := range map[string]call{
		"another address":           {"/", "x-forwarded-for: 10.0.0.2"},
		"another address's login":   {"/login", "x-forwarded-for: 10.0.0.2"},
		"another network":           {"/net", "x-forwarded-for: 10.0.1.1"},
		"another tenant":            {"/tenant", "x-tenant: t2"},
		"another path of a service": {"/checkout/cart"},
		"another key":               {"/search?key=k2"},
		"a read":                    {"GET /orders"},
		"another partner":           {"/partner", "x-partner: p2"},
		"no key at all":             {"/search"},
	} {
		t.Run(name+" passes", func(t *testing.T) {
			assert.Equal(t, http.StatusOK, envoy.send(t, test).status)
		})
	}
	for name, test := range map[string]call{
		"an address of the same network":      {"/net", "x-forwarded-for: 10.0.0.99"},
		"the same address after a forged one": {"/login", "x-forwarded-for: 10.8.8.8, 10.0.0.1"},
	} {
		t.Run(name+" is denied", func(t *testing.T) {
			assert.Equal(t, http.StatusTooManyRequests, envoy.send(t, test).status)
		})
	}
}

// assertHeaders checks the rate-limit headers of Envoy and of rls.
func (a answer) assertHeaders(t *testing.T, policy string, remaining int) {
	t.Helper()
	assert.Equal(t, policy, a.Get("x-ratelimit-limit"))
	assert.Equal(t, strconv.Itoa(remaining), a.Get("x-ratelimit-remaining"))
	limit, _, _ := strings.Cut(policy, ",")
	assert.Equal(t, limit, a.Get("ratelimit-limit"))
	assert.Equal(t, strconv.Itoa(remaining), a.Get("ratelimit-remaining"))
	rlsReset, err := strconv.Atoi(a.Get("ratelimit-reset"))
	require.NoError(t, err)
	envoyReset, err := strconv.Atoi(a.Get("x-ratelimit-reset"))
	require.NoError(t, err)
	assert.InDelta(t, rlsReset, envoyReset, 1, "Envoy rounds down, rls up")
}

// assertReset checks the reset time after one hit on a fresh key.
func (a answer) assertReset(t *testing.T, algorithm limit.Algorithm, window time.Duration) {
	t.Helper()
	// The window starts at a multiple of its length since 1970.
	timeToWindowEnd := window - time.Duration(time.Now().UnixNano())%window
	want := map[limit.Algorithm]time.Duration{
		limit.FixedWindow:    timeToWindowEnd,
		limit.SlidingWindow:  timeToWindowEnd + window, // the hit also weighs in the next window
		limit.SlidingLog:     window,
		limit.FirstHitWindow: window,
	}[algorithm]
	got, err := strconv.Atoi(a.Get("ratelimit-reset"))
	require.NoError(t, err)
	assert.InDelta(t, want.Seconds(), got, 1.5)
}

func TestHeadersShowLargeLimits(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	awaitTimeLeft(time.Minute, 5*time.Second)
	for i := range 5 {
		envoy.send(t, call{"/tenant", "x-tenant: acme"}).assertHeaders(t, `6000, 6000;w=60`, 5999-i)
	}
}

func TestServiceLimitCoversAllPaths(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	awaitTimeLeft(time.Minute, 20*time.Second)
	send := func(i int) answer { return envoy.send(t, call{fmt.Sprintf("/checkout/%d", i%10)}) }
	for i := range 600 {
		require.Equal(t, http.StatusOK, send(i).status, "call %d", i+1)
	}
	assert.Equal(t, http.StatusTooManyRequests, send(600).status)
}

// TestLimitPerHourCountsHitsDeniedByLimitPerSecond sends calls far above the limit per second.
// The limit per hour counts them all.
func TestLimitPerHourCountsHitsDeniedByLimitPerSecond(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	request := call{"/", "x-forwarded-for: 10.0.0.3"}
	awaitTimeLeft(time.Hour, 30*time.Second)
	for range 999 {
		envoy.send(t, request)
	}
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
	answer := envoy.send(t, request)
	assert.Equal(t, http.StatusOK, answer.status, "call 1000")
	answer.assertReset(t, limit.SlidingWindow, time.Hour)
	answer = envoy.send(t, request)
	assert.Equal(t, http.StatusTooManyRequests, answer.status, "call 1001")
	answer.assertHeaders(t, `1000, 1000;w=3600;name="ip-hour"`, 0)
}

func TestShadowModeNeverDenies(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	awaitTimeLeft(time.Minute, 5*time.Second)
	for i := range 15 {
		answer := envoy.send(t, call{"/tenant", "x-tenant: trial"})
		assert.Equal(t, http.StatusOK, answer.status)
		answer.assertHeaders(t, `10, 10;w=60`, max(9-i, 0))
	}
}

func TestTokenBucketAdmitsBurstThenRate(t *testing.T) {
	envoy := exampleConfig(t, "envoy.yaml", startRLS(t, exampleLimits(t))).start()
	for _, test := range []struct {
		path        string
		rate, burst int
		policy      string
	}{
		{"/api/%d?page=2", 50, 100, `50, 50;w=1;name="api"`},
		{"/upstream/%d", 200, 200, `200, 200;w=1`},
	} {
		t.Run(test.path, func(t *testing.T) {
			start, passedCount := time.Now(), 0
			for i := range 5000 {
				answer := envoy.send(t, call{fmt.Sprintf(test.path, i)})
				if i == 0 {
					answer.assertHeaders(t, test.policy, test.burst-1)
					assert.Equal(t, "0", answer.Get("x-ratelimit-reset"), "the bucket is full again within a second")
				}
				if answer.status != http.StatusOK {
					break
				}
				passedCount++
			}
			seconds := time.Since(start).Seconds()
			assert.GreaterOrEqual(t, passedCount, test.burst)
			assert.LessOrEqual(t, passedCount, test.burst+int(seconds*float64(test.rate)))
			assert.Less(t, passedCount, 5000)
		})
	}
}
