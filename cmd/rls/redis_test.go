package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/observe/events"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// TestReplicasShareOneLimit charges one counter of each algorithm far beyond its limit,
// from three processes with 32 callers each.
func TestReplicasShareOneLimit(t *testing.T) {
	t.Parallel()
	const replicas, callers, calls, capacity = 3, 32, 10, 500
	limits := "domain: shop\ndescriptors:\n"
	for _, algorithm := range limit.Algorithms() {
		window := "unit: year"
		if algorithm.HasHolds() {
			window = "hold: 1h"
		}
		limits += fmt.Sprintf("  - {key: %s, rate_limit: {%s, requests_per_unit: %d, algorithm: %s}}\n", algorithm, window, capacity, algorithm)
	}
	path := writeFile(t, "limits.yaml", limits)
	redis := redistest.Start(t)
	var clients []rlsv3.RateLimitServiceClient
	for range replicas {
		service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s"}, "--limits", path)
		conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		clients = append(clients, rlsv3.NewRateLimitServiceClient(conn))
	}
	for _, algorithm := range limit.Algorithms() {
		t.Run(algorithm.String(), func(t *testing.T) {
			req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: algorithm.String(), Value: "x"}},
			}}}
			var admitted atomic.Int64
			var group sync.WaitGroup
			for i := range replicas * callers {
				group.Go(func() {
					for range calls {
						resp, err := clients[i%replicas].ShouldRateLimit(context.Background(), req)
						if assert.NoError(t, err) && resp.OverallCode == rlsv3.RateLimitResponse_OK {
							admitted.Add(1)
						}
					}
				})
			}
			group.Wait()
			assert.EqualValues(t, capacity, admitted.Load())
		})
	}
}

func TestServeStartsWithoutRedisAndConnectsLater(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Kill()
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_FALLBACK_RATIO=0.4"}, "--limits", writeFile(t, "limits.yaml", tenPerYear))
	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "5")
	assert.Equal(t, 2, code)
	assert.Contains(t, out, "4 OK, 1 OVER_LIMIT, 0 errors", "the fallback ratio of the limit")
	assert.Contains(t, out, "10 per year", "answers have the configured limit")
	service.awaitLog("Redis outage started")
	assert.Regexp(t, `level=ERROR msg="Redis outage started" kind=refused error=".*connection refused"`+
		` advice="check that Redis runs, and that REDIS_URL has its address" address=`+redis.Addr+` hits="counted here, up to 0.4 of each limit, or as its rule says"`, service.logText())
	assert.Equal(t, 1, service.count("connection refused"), "one line about the dead Redis: %s", service.logText())
	status, _ := get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusOK, status, "a lost Redis does not make the service unhealthy")

	redis.Restart(t)
	polltest.Until(t, maxWait, func() bool {
		_, _, _ = rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=other")
		return len(redis.Client(t).Keys(t.Context(), "*fw31536000*").Val()) > 0
	})
}

func TestHealthFollowsRedisIfConfigured(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	awaitHealth := func(want int) {
		polltest.Until(t, maxWait, func() bool {
			status, _, err := fetch("http://" + service.http + "/healthcheck")
			return err == nil && status == want
		})
	}
	awaitHealth(http.StatusOK)
	redis.Kill()
	awaitHealth(http.StatusInternalServerError)
	redis.Restart(t)
	awaitHealth(http.StatusOK)
}

func TestHealthFailsOnRedisTimeout(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Pause()
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=1m", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	status, health := get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Contains(t, health, "no connection to Redis yet")
	redis.Resume()
	polltest.Until(t, maxWait, func() bool {
		status, _ := get(t, "http://"+service.http+"/healthcheck")
		return status == http.StatusOK
	})
}

func TestInstanceLimitsAreCountedInProcess(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	path := writeFile(t, "limits.yaml", `
domain: shop
descriptors:
  - key: tenant
    rate_limits:
      - {unit: year, requests_per_unit: 100}
      - {unit: minute, unit_multiplier: 60, requests_per_unit: 1, algorithm: sliding_log, scope: instance}
`)
	for range 2 {
		service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s"}, "--limits", path)
		out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "2")
		assert.Equal(t, 2, code)
		assert.Contains(t, out, "1 OK, 1 OVER_LIMIT", "one for each replica")
	}
	keys := slices.DeleteFunc(redis.Client(t).Keys(t.Context(), "*").Val(), func(key string) bool { return strings.Contains(key, "rls:probe:") })
	require.Len(t, keys, 1)
	assert.Contains(t, keys[0], "fw31536000")
}

func TestBackendSettingsAreChecked(t *testing.T) {
	t.Parallel()
	limits := "LIMITS_PATH=" + writeFile(t, "limits.yaml", threePerYear)
	for name, test := range map[string]struct {
		env  []string
		want string
	}{
		"unknown backend":     {[]string{"BACKEND_TYPE=disk"}, "want one of redis, memcache, local"},
		"Redis without a URL": {[]string{"BACKEND_TYPE=redis"}, "needs REDIS_URL"},
		"unknown type":        {[]string{"REDIS_URL=127.0.0.1:1", "REDIS_TYPE=ring"}, "ring"},
		"missing CA file":     {[]string{"REDIS_URL=127.0.0.1:1", "REDIS_TLS=true", "REDIS_TLS_CACERT=/no/such/file"}, "/no/such/file"},
		"unescaped password":  {[]string{"REDIS_URL=redis://:se#cret@127.0.0.1:1"}, "escape @"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, append(test.env, limits), "serve").CombinedOutput()
			require.Error(t, err)
			assert.Contains(t, string(out), test.want)
			assert.NotContains(t, string(out), "se#cret")
		})
	}
}

// TestCancelledPingIsNotLogged stops the backend while Redis has not answered PING. It
// counts goroutines, so it does not run in parallel.
func TestCancelledPingIsNotLogged(t *testing.T) {
	oldGoroutines := goleak.IgnoreCurrent()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	pingArrived := make(chan struct{})
	go func() {
		if conn, err := listener.Accept(); err == nil {
			defer conn.Close()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				if !strings.HasPrefix(lines.Text(), "*") {
					continue
				}
				// After the start of a command come the length of its name and the name.
				lines.Scan()
				lines.Scan()
				if strings.EqualFold(lines.Text(), "ping") {
					close(pingArrived)
					continue
				}
				_, _ = io.WriteString(conn, "-ERR not known\r\n")
			}
		}
	}()

	var logText bytes.Buffer
	s := &env.Settings{BackendType: env.BackendRedis, RedisURL: listener.Addr().String(), RedisTimeout: env.Timeout(time.Minute)}
	e := events.New(events.Options{Metrics: metrics.New(), Health: server.NewHealth(), Log: slog.New(slog.NewTextHandler(&logText, nil))})
	process := newProcess(t.Context())
	_, err = newBackend(process, s, e, live.NewRecorder(nil, true), nil)
	require.NoError(t, err)
	<-pingArrived
	process.end()
	_ = listener.Close()
	goleak.VerifyNone(t, oldGoroutines)
	assert.Empty(t, logText.String())
}

func TestSettingsWithoutEffectAreLogged(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_POOL_ON_EMPTY_BEHAVIOR=CREATE", "REDIS_PIPELINE_WINDOW=75us"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	assert.Contains(t, service.logText(), "setting=REDIS_POOL_ON_EMPTY_BEHAVIOR")
	assert.Contains(t, service.logText(), "setting=REDIS_PIPELINE_WINDOW")
}

func TestCounterGetShowsDenialsOfDenyCache(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replica := startReplicas(t, 1, redis, threePerYear)[0]
	get := func() (answer struct {
		Note   string
		Limits []struct {
			Over         bool
			CachedDenial *struct {
				Source        string
				EndsInSeconds float64 `json:"ends_in_seconds"`
			} `json:"cached_denial"`
		}
	},
	) {
		code, body := replica.admin(http.MethodGet, "counters", "shop|tenant=acme", "")
		require.Equal(t, http.StatusOK, code, body)
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		return answer
	}
	assert.Nil(t, get().Limits[0].CachedDenial)
	call := replica.newTenantCaller()
	isDenied := func() bool {
		ok, err := call()
		require.NoError(t, err)
		return !ok
	}
	polltest.Until(t, maxWait, isDenied)
	polltest.Until(t, maxWait, func() bool { // a slow machine can need more than a second
		d := get().Limits[0].CachedDenial
		return isDenied() && d != nil && d.Source == "deny_cache" && d.EndsInSeconds > 0
	})

	client := redis.Client(t)
	polltest.Until(t, maxWait, func() bool {
		for isDenied() { // the deny cache remembers each denial for longer
			if get().Limits[0].CachedDenial.EndsInSeconds > 0.5 {
				break
			}
		}
		keys, err := client.Keys(t.Context(), "*tenant=acme*").Result()
		require.NoError(t, err)
		require.NoError(t, client.Del(t.Context(), keys...).Err())
		a := get()
		return strings.Contains(a.Note, "although the counter has hits left") && !a.Limits[0].Over && isDenied()
	})
	code, body := replica.admin(http.MethodDelete, "counters", "shop|tenant=acme", "")
	require.Equal(t, http.StatusOK, code, body)
	assert.Nil(t, get().Limits[0].CachedDenial)
	assert.False(t, isDenied())
}
