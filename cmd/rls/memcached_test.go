package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/testkit/memcachedtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/limit"
)

// startOnMemcached starts a service that counts in memcached, and waits until it has connected.
func startOnMemcached(t *testing.T, servers string, env []string, limits string) *testService {
	service := start(t, append([]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + servers}, env...), "--limits", writeFile(t, "limits.yaml", limits))
	service.awaitLog("counting in memcached")
	return service
}

// limitOfEachAlgorithmWithoutHolds returns a limits file with a rule for each algorithm that memcached can count.
func limitOfEachAlgorithmWithoutHolds(requests int) (text string, names []string) {
	text = "domain: shop\ndescriptors:\n"
	for _, algorithm := range limit.Algorithms() {
		if !algorithm.HasHolds() {
			text += fmt.Sprintf("  - {key: %s, rate_limit: {unit: year, requests_per_unit: %d, algorithm: %s}}\n", algorithm, requests, algorithm)
			names = append(names, algorithm.String())
		}
	}
	return text, names
}

func TestReplicasShareOneLimitInMemcached(t *testing.T) {
	t.Parallel()
	const replicas, callers, calls, capacity = 3, 8, 25, 400
	servers := memcachedtest.Start(t).Addr + "," + memcachedtest.Start(t).Addr
	limits, algorithms := limitOfEachAlgorithmWithoutHolds(capacity)
	var clients []rlsv3.RateLimitServiceClient
	for range replicas {
		service := startOnMemcached(t, servers, []string{"REDIS_TIMEOUT=20s", "LOCAL_CACHE_SIZE_IN_BYTES=0"}, limits)
		conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		clients = append(clients, rlsv3.NewRateLimitServiceClient(conn))
	}
	for _, a := range algorithms {
		t.Run(a, func(t *testing.T) {
			req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
				Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: a, Value: "x"}},
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

// TestMemcachedCountsAsTheIncumbentsUsersExpect has the cases of the incumbent's own tests of memcached.
func TestMemcachedCountsAsTheIncumbentsUsersExpect(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	service := startOnMemcached(t, server.Addr, []string{"REDIS_TIMEOUT=20s", "CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=0", "NEAR_LIMIT_RATIO=0.5"}, `domain: shop
descriptors:
  - {key: year, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: second, rate_limit: {unit: second, requests_per_unit: 50000}}
`)
	counter := func(window string) (value string) {
		for key, timeToLive := range server.Keys(t) {
			if strings.HasPrefix(key, "p:v2:fw"+window+":") {
				assert.Positive(t, timeToLive, "%s never expires", key)
				value = server.Get(t, key)
			}
		}
		return value
	}
	hit := func(want string, args ...string) {
		t.Helper()
		out, _, _ := rls(t, append([]string{"hit", "-a", service.grpc, "-d", "shop"}, args...)...)
		assert.Contains(t, out, want)
	}
	hit("OK 50000 per second", "second=a", "--hits", "5")
	hit("remaining 7", "year=a", "--hits", "3")
	hit("remaining 3", "year=a", "--hits", "4")
	hit("remaining 3", "year=a", "--hits", "0")
	assert.Equal(t, "7", counter("31536000"))
	hit("2 OVER_LIMIT", "year=a", "--hits", "4", "-n", "2")
	assert.Equal(t, "11", counter("31536000"), "the first denied hit is charged, and the deny cache answers the second one")
	hit("remaining 10", "year=a", "--hits", "-20")
	assert.Equal(t, "0", counter("31536000"))

	_, text := get(t, "http://"+service.debug+"/metrics")
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{domain="shop",key1="year"`, `ratelimit_service_rate_limit_near_limit{domain="shop",key1="year"`,
		`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="year"`,
	} {
		assert.Regexp(t, `(?m)^`+strings.ReplaceAll(want, "{", `\{`)+`.*\} [1-9]`, text)
	}
	assert.Regexp(t, `rls_decisions_total\{result="ok",source="memcached"\} [1-9]`, text)
}

func TestOutageOfMemcachedIsServedByTheFallback(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ breakServer, repair func(*memcachedtest.Server) }{
		"killed": {(*memcachedtest.Server).Kill, func(s *memcachedtest.Server) { s.Restart(t) }},
		"frozen": {(*memcachedtest.Server).Pause, (*memcachedtest.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			server := memcachedtest.Start(t)
			limits, algorithms := limitOfEachAlgorithmWithoutHolds(100)
			service := startOnMemcached(t, server.Addr, []string{"LOCAL_CACHE_SIZE_IN_BYTES=0", "REDIS_TIMEOUT=100ms"}, limits)
			conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			client, stop := rlsv3.NewRateLimitServiceClient(conn), make(chan struct{})
			var load sync.WaitGroup
			var slowest, answers atomic.Int64
			for i := range 4 {
				load.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						start := time.Now()
						_, err := client.ShouldRateLimit(context.Background(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
							Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: algorithms[n%len(algorithms)], Value: fmt.Sprint(i)}},
						}}})
						assert.NoError(t, err)
						slowest.Store(max(slowest.Load(), int64(time.Since(start))))
						answers.Add(1)
					}
				})
			}
			polltest.Until(t, maxWait, func() bool { return answers.Load() > 100 })
			test.breakServer(server)
			service.awaitLog("memcached outage started")
			_, body := get(t, "http://"+service.http+"/healthcheck")
			assert.Contains(t, body, "OK\nmemcached: down since ")
			test.repair(server)
			service.awaitLog("memcached outage ended")
			close(stop)
			load.Wait()
			assert.Less(t, time.Duration(slowest.Load()), 5*time.Second, "REDIS_TIMEOUT bounds a call, but this machine may be slow")
			status, body := get(t, "http://"+service.http+"/healthcheck")
			assert.Equal(t, http.StatusOK, status)
			assert.Equal(t, "OK", body)
			keys := 0
			polltest.Until(t, maxWait, func() bool {
				keys++
				out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", fmt.Sprintf("token_bucket=new%d", keys))
				return strings.Contains(out, "remaining 99")
			}, "memcached counts again")
		})
	}
}

func TestHealthFollowsMemcachedIfConfigured(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	service := startOnMemcached(t, server.Addr, []string{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true"}, threePerYear)
	awaitHealth := func(want int) {
		polltest.Until(t, maxWait, func() bool {
			status, _, err := fetch("http://" + service.http + "/healthcheck")
			return err == nil && status == want
		})
	}
	awaitHealth(http.StatusOK)
	server.Kill()
	awaitHealth(http.StatusInternalServerError)
	server.Restart(t)
	awaitHealth(http.StatusOK)
}

func TestHoldsInMemcachedAreAProblemOfTheLimitsFile(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	limits := writeFile(t, "limits.yaml", "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {algorithm: concurrency, requests_per_unit: 4}}\n")
	out, err := command(t, []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + server.Addr}, "serve", "--limits", limits).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "shop > a: algorithm: got concurrency, but memcached can't keep holds; want scope: instance, another algorithm, or counters in Redis (BACKEND_TYPE=redis)")

	service := startOnMemcached(t, server.Addr, nil, "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {algorithm: concurrency, requests_per_unit: 4, scope: instance}}\n"+
		"  - {key: b, rate_limit: {unit: day, requests_per_unit: 4000, lease: true}}\n")
	hits, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "a=x")
	assert.Contains(t, hits, "remaining 3")
	assert.Contains(t, service.logText(), "lease has no effect, because memcached can't keep leases; remove lease, or count in Redis (BACKEND_TYPE=redis)")
}

func TestAdminSaysWhatNeedsRedis(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	service := startOnMemcached(t, server.Addr, []string{"REDIS_TIMEOUT=20s", "ADMIN_TOKEN=secret"}, threePerYear)
	admin := func(args ...string) string {
		cmd := command(t, []string{"ADMIN_TOKEN=secret"}, append(args, "--admin", "http://"+service.debug)...)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	assert.Contains(t, admin("limits", "show", "--changes"), "OVERRIDES_ENABLED")
	_, _, _ = rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4")
	assert.Contains(t, admin("reset", "-d", "shop", "tenant=acme"), "4 -> 0")
	out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	assert.Contains(t, out, "remaining 2")
	assert.Contains(t, admin("reset", "-d", "shop", "--prefix", "tenant"), "memcached can't list its keys")
}

func TestDoctorAsksMemcached(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t)
	doctor := func() string {
		out, _ := command(t, []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + server.Addr, "LIMITS_PATH=" + writeFile(t, "limits.yaml", threePerYear), "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0"}, "doctor").CombinedOutput()
		return string(out)
	}
	assert.Regexp(t, `ok +memcached: MEMCACHE_HOST_PORT: all servers answer`, doctor())
	server.Kill()
	assert.Regexp(t, `problem +memcached: MEMCACHE_HOST_PORT: .*`+server.Addr, doctor())
}
