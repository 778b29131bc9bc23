package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// TestReplicasSurviveOutageOfRedis kills Redis and restarts it.
func TestReplicasSurviveOutageOfRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	limits := writeFile(t, "limits.yaml", "domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 100}}\n")
	var replicas []*testService
	for range 2 {
		replicas = append(replicas, start(t, []string{"REDIS_URL=" + redis.Addr, "LOCAL_CACHE_SIZE_IN_BYTES=0"}, "--limits", limits))
	}
	for _, replica := range replicas {
		polltest.Until(t, maxWait, func() bool { return strings.Contains(replica.logText(), "counting in Redis") })
	}

	redis.Kill()
	for _, replica := range replicas {
		out, _, _ := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme", "-n", "80")
		assert.Contains(t, out, "50 OK, 30 OVER_LIMIT, 0 errors", "each replica admits half the limit")
	}
	time.Sleep(200 * time.Millisecond) // then three more failures open the breaker
	for _, replica := range replicas {
		out, _, _ := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=other", "-n", "80")
		assert.Contains(t, out, "50 OK, 30 OVER_LIMIT, 0 errors")
		_, body := get(t, "http://"+replica.http+"/healthcheck")
		assert.Contains(t, body, "OK\nredis: down since ")
	}

	redis.Restart(t)
	for _, replica := range replicas {
		polltest.Until(t, maxWait, func() bool { return strings.Contains(replica.logText(), "Redis outage ended") })
		assert.Equal(t, 1, replica.count("Redis outage started"))
		assert.Equal(t, 1, replica.count("msg=\"Redis outage ended"))
		status, body := get(t, "http://"+replica.http+"/healthcheck")
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, "OK", body)
	}
	out, _, _ := rls(t, "hit", "-a", replicas[0].grpc, "-d", "shop", "tenant=other", "--hits", "10")
	assert.Contains(t, out, "0 OK, 1 OVER_LIMIT", "both replicas have replayed their hits")
}

// TestCallersWithShortDeadlinesAreAnswered calls with a deadline shorter than REDIS_TIMEOUT
// while Redis hangs, as Envoy does by default.
func TestCallersWithShortDeadlinesAreAnswered(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=1m"}, "--limits", writeFile(t, "limits.yaml", tenPerYear))
	polltest.Until(t, maxWait, func() bool { return strings.Contains(service.logText(), "counting in Redis") })
	redis.Pause()
	defer redis.Resume()
	out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4", "--timeout", "2s")
	assert.Contains(t, out, "4 OK, 0 OVER_LIMIT, 0 errors")
	service.awaitLog("Redis outage started")
}
