package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const adminToken = "a-token-for-tests"

// startReplicas starts n services with one Redis, overrides and the admin API.
func startReplicas(t *testing.T, n int, redis *redistest.Server, limits string, env ...string) []*testService {
	t.Helper()
	return startReplicasWithEnv(t, n, append([]string{"REDIS_URL=" + redis.Addr}, env...), limits)
}

// admin calls the admin API and returns its status code and answer.
func (r *testService) admin(method, path, target, body string) (code int, answer string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.debug+"/admin/"+path+"?target="+url.QueryEscape(target), strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(text)
}

// override puts a valid override.
func (r *testService) override(target, value string) {
	r.t.Helper()
	code, answer := r.admin(http.MethodPut, "overrides", target, value)
	require.Equal(r.t, http.StatusOK, code, answer)
}

// newLimitReader returns a function that reads the limit of tenant acme from r.
func (r *testService) newLimitReader() func() uint32 {
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = conn.Close() })
	client := rlsv3.NewRateLimitServiceClient(conn)
	req := &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Entries:    []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}},
		HitsAddend: wrapperspb.UInt64(0),
	}}}
	return func() uint32 {
		resp, err := client.ShouldRateLimit(r.t.Context(), req)
		require.NoError(r.t, err)
		return resp.Statuses[0].CurrentLimit.GetRequestsPerUnit()
	}
}

// TestOverrideReachesAllReplicasSoon measures the time from a call until an override is in
// force on all replicas. It measures again if the machine was busy, and does not run in
// parallel.
func TestOverrideReachesAllReplicasSoon(t *testing.T) {
	const changes = 200
	replicas := startReplicas(t, 3, redistest.Start(t), perYear(5))
	var readers []func() uint32
	for _, replica := range replicas {
		readers = append(readers, replica.newLimitReader())
	}
	measure := func(firstLimit uint32) (p99 time.Duration) {
		var durations []time.Duration
		for i := range changes {
			want, start := firstLimit+uint32(i), time.Now()
			writer := replicas[i%len(replicas)]
			writer.override("shop|tenant=acme", fmt.Sprintf(`{"requests_per_unit": %d}`, want))
			require.Equal(t, want, readers[i%len(replicas)](), "in force on the replica that answers")
			for _, read := range readers {
				polltest.Until(t, maxWait, func() bool { return read() == want })
			}
			durations = append(durations, time.Since(start))
		}
		slices.Sort(durations)
		p99 = durations[len(durations)*99/100]
		t.Logf("%d overrides to %d replicas: p50 %v, p99 %v, max %v", changes, len(replicas), durations[len(durations)/2], p99, durations[len(durations)-1])
		return p99
	}
	p99 := measure(1000)
	for i := uint32(2); p99 >= time.Second && i < 5; i++ {
		p99 = measure(1000 * i)
	}
	assert.Less(t, p99, time.Second)
}

func TestFirstCallMeetsOverrides(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	require.NoError(t, redis.Client(t).HSet(t.Context(), "rls:overrides", "shop|tenant=acme", `{"requests_per_unit": 2}`).Err())
	replica := startReplicas(t, 1, redis, perYear(5))[0]
	assert.EqualValues(t, 2, replica.newLimitReader()())
}

func TestInvalidPutIsRejected(t *testing.T) {
	t.Parallel()
	replica := startReplicas(t, 1, redistest.Start(t), perYear(5))[0]
	replica.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
	code, answer := replica.admin(http.MethodPut, "overrides", "shop|tenant=acme", `{"requests_per_unti": 8, "unit": "fortnight"}`)
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, answer, "did you mean requests_per_unit?")
	replica.awaitPeek("7 per year")
}

func TestOverridesStayWhileRedisIsDown(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	replica := startReplicas(t, 1, redis, perYear(5))[0]
	replica.override("shop|tenant=acme", `{"requests_per_unit": 7}`)
	redis.Kill()
	replica.awaitLog("overrides can't be read; the last overrides stay in force")
	replica.awaitPeek("7 per year")
	status, health := get(t, "http://"+replica.http+"/healthcheck")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, health, "overrides: unreadable since")
	code, answer := replica.admin(http.MethodPut, "overrides", "shop|tenant=acme", `{"requests_per_unit": 8}`)
	assert.Equal(t, http.StatusServiceUnavailable, code, answer)
	out, _, _ := rls(t, "limits", "show", "--changes", "--admin", replica.debug, "--token", adminToken)
	assert.Regexp(t, `^warning: this list can lack the last changes: read all overrides: .*\nKIND`, out)
	replica.awaitPeek("7 per year")

	redis.Restart(t) // Redis restarts without data
	replica.awaitLog("overrides can be read again")
	replica.awaitPeek("5 per year")
}

func TestAdminAPIIsOffWithoutToken(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", perYear(5)))
	_, answer := service.admin(http.MethodGet, "counters", "shop|tenant=acme", "")
	assert.NotContains(t, answer, "capacity")
	assert.NotContains(t, answer, "admin", "the answer is the list of pages, as for any unknown path")
}

func TestAdminAPIReadsAndResetsCountersWithoutRedis(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"ADMIN_TOKEN=" + adminToken}, "--limits", writeFile(t, "limits.yaml", perYear(5)))
	_, _, _ = rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "3")
	code, answer := service.admin(http.MethodGet, "counters", "shop|tenant=acme", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, answer, `"spent": 3`)
	code, _ = service.admin(http.MethodDelete, "counters", "shop|tenant=acme", "")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, service.peek(), "remaining 5")
	service.override("shop|tenant=acme", `{"factor": 2}`)
	assert.Contains(t, service.peek(), "remaining 10", "overrides are in memory")
}

func TestOverridesAndResetsReachAllReplicasOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false)
	path := writeFile(t, "limits.yaml", perYear(5))
	var replicas []*testService
	for range 2 {
		replicas = append(replicas, start(t, []string{
			"REDIS_TYPE=cluster", "REDIS_URL=" + cluster.URL(), "REDIS_TIMEOUT=20s", "CACHE_KEY_PREFIX=mine:",
			"OVERRIDES_ENABLED=true", "ADMIN_TOKEN=" + adminToken,
		}, "--limits", path))
	}
	replicas[0].override("shop|tenant=acme", `{"requests_per_unit": 7}`)
	for _, replica := range replicas {
		replica.awaitPeek("7 per year, remaining 7")
	}
	_, _, code := rls(t, "hit", "-a", replicas[1].grpc, "-d", "shop", "tenant=acme", "-n", "8")
	require.Equal(t, 2, code)
	code, answer := replicas[0].admin(http.MethodDelete, "counters", "shop|tenant=acme", "")
	require.Equal(t, http.StatusOK, code, answer)
	replicas[1].awaitPeek("7 per year, remaining 7")
	code, _ = replicas[1].admin(http.MethodDelete, "overrides", "shop|tenant=acme", "")
	assert.Equal(t, http.StatusOK, code)
	for _, replica := range replicas {
		replica.awaitPeek("5 per year, remaining 5")
	}
}

func TestAdminAPIAcceptsClientCertificate(t *testing.T) {
	t.Parallel()
	ca, otherCA := certtest.New(t), certtest.New(t)
	serverPair := ca.Issue("localhost")
	service := start(t, []string{
		"DEBUG_TLS_CERT=" + serverPair.CertFile, "DEBUG_TLS_KEY=" + serverPair.KeyFile, "DEBUG_TLS_CLIENT_CACERT=" + ca.File,
	}, "--limits", writeFile(t, "limits.yaml", perYear(5)))
	_, port, err := net.SplitHostPort(service.debug)
	require.NoError(t, err)
	reset := func(p certtest.Pair) (stderr string, code int) {
		_, stderr, code = rls(t, "reset", "--admin", "https://localhost:"+port, "--ca", ca.File, "--cert", p.CertFile, "--key", p.KeyFile, "-d", "shop", "tenant=acme")
		return stderr, code
	}
	stderr, code := reset(ca.Issue("alice.example"))
	assert.Zero(t, code, stderr)
	service.awaitLog("msg=audit action=reset by=alice.example")
	_, code = reset(otherCA.Issue("mallory.example"))
	assert.Equal(t, 1, code)
	assert.Equal(t, 1, service.count("msg=audit"))

	_, stderr, code = rls(t, "reset", "--admin", "https://localhost:"+port, "--ca", ca.File, "-d", "shop", "tenant=acme")
	assert.Equal(t, 1, code)
	assert.Contains(t, stderr, "or --cert and --key")
}

func TestClientCertificatesRequireTLS(t *testing.T) {
	t.Parallel()
	cmd := command(t, []string{"DEBUG_TLS_CLIENT_CACERT=" + certtest.New(t).File}, "--limits", writeFile(t, "limits.yaml", perYear(5)))
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "DEBUG_TLS_CLIENT_CACERT needs DEBUG_TLS_CERT and DEBUG_TLS_KEY")
}

func TestOverridesRequireRedis(t *testing.T) {
	t.Parallel()
	cmd := command(t, []string{"OVERRIDES_ENABLED=true"}, "--limits", writeFile(t, "limits.yaml", perYear(5)))
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "OVERRIDES_ENABLED=true needs REDIS_URL")
}
