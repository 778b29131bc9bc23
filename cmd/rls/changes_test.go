package main

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// redisKinds are the kinds of Redis with which these tests run.
var redisKinds = []struct {
	name  string
	start func(t *testing.T) (env []string)
}{
	{"single", func(t *testing.T) []string { return []string{"REDIS_URL=" + redistest.Start(t).Addr} }},
	{"cluster", func(t *testing.T) []string {
		return []string{"REDIS_TYPE=cluster", "REDIS_URL=" + redistest.StartCluster(t, 3, false).URL()}
	}},
}

// startReplicasWithEnv starts n services with overrides and the admin API. env names their Redis.
func startReplicasWithEnv(t *testing.T, n int, env []string, limits string) []*testService {
	t.Helper()
	path := writeFile(t, "limits.yaml", limits)
	env = append([]string{"REDIS_TIMEOUT=20s", "OVERRIDES_ENABLED=true", "ADMIN_TOKEN=tester:" + adminToken}, env...)
	var replicas []*testService
	for range n {
		replicas = append(replicas, start(t, env, "--limits", path))
	}
	return replicas
}

// TestChangesReachAllReplicas makes changes through one of three replicas and waits until all of
// them have the change in force. It logs how long this takes (make bench-changes).
func TestChangesReachAllReplicas(t *testing.T) {
	changes := 5
	if os.Getenv("RLS_TEST_FULL") != "" {
		changes = 200
	}
	const target = "shop|tenant=acme"
	for _, kind := range redisKinds {
		t.Run(kind.name, func(t *testing.T) {
			replicas := startReplicasWithEnv(t, 3, kind.start(t), perYear(5))
			var readers []func() uint32
			for _, replica := range replicas {
				readers = append(readers, replica.newLimitReader())
			}
			durations := map[string][]time.Duration{}
			change := func(i int, name, method, path, body string, want uint32) {
				start := time.Now()
				code, answer := replicas[i%3].admin(method, path, target, body)
				require.Equal(t, http.StatusOK, code, answer)
				for _, read := range readers {
					polltest.Until(t, maxWait, func() bool { return read() == want })
				}
				durations[name] = append(durations[name], time.Since(start))
			}
			for i := range changes {
				limit := uint32(1000 + i)
				change(i, "rule created", http.MethodPut, "rules", fmt.Sprintf(`{"rate_limit": {"unit": "year", "requests_per_unit": %d}}`, limit), limit)
				change(i+1, "kill switch", http.MethodPut, "switches", `{"reason": "test"}`, 0)
				change(i+2, "switched on", http.MethodDelete, "switches", "", limit)
				change(i, "rule deleted", http.MethodDelete, "rules", "", 5)
			}
			for _, name := range []string{"rule created", "kill switch", "switched on", "rule deleted"} {
				sortedDurations := durations[name]
				slices.Sort(sortedDurations)
				t.Logf("%s, %s: %d changes on 3 replicas, p50 %v, p99 %v, max %v", kind.name, name, len(sortedDurations),
					sortedDurations[len(sortedDurations)/2].Round(10*time.Microsecond), sortedDurations[len(sortedDurations)*99/100].Round(10*time.Microsecond), sortedDurations[len(sortedDurations)-1].Round(10*time.Microsecond))
			}
		})
	}
}

func TestRollbackAndStatusWorkOnACluster(t *testing.T) {
	t.Parallel()
	replicas := startReplicasWithEnv(t, 3, redisKinds[1].start(t), perYear(5))
	code, answer := replicas[0].admin(http.MethodPut, "rules", "shop|tenant=acme", `{"rate_limit": {"unit": "year", "requests_per_unit": 9}}`)
	require.Equal(t, http.StatusOK, code, answer)
	replicas[1].override("shop|tenant=acme", `{"factor": 10}`)
	for _, replica := range replicas {
		replica.awaitPeek("90 per year")
	}
	run := func(r *testService, args ...string) string {
		out, errOut, code := rls(t, append(args, "--admin", r.debug, "--token", adminToken)...)
		require.Zero(t, code, errOut)
		return out
	}
	var status string
	polltest.Until(t, maxWait, func() bool {
		status = run(replicas[2], "limits", "show", "--replicas")
		return strings.Count(status, "current") == 3
	})
	assert.Len(t, regexp.MustCompile(`current +2 `).FindAllString(status, -1), 3, "all replicas have version 2: %s", status)

	run(replicas[2], "limits", "rollback")
	for _, replica := range replicas {
		replica.awaitPeek("9 per year")
	}
	run(replicas[0], "limits", "rollback", "--to", "0")
	for _, replica := range replicas {
		replica.awaitPeek("5 per year")
	}
	assert.Contains(t, run(replicas[1], "limits", "history"), "rollback")
}

func TestWindowsByCalendarAreSharedOnACluster(t *testing.T) {
	t.Parallel()
	replicas := startReplicasWithEnv(t, 3, redisKinds[1].start(t), `
domain: shop
descriptors:
- {key: tenant, rate_limit: {unit: year, requests_per_unit: 7, timezone: Europe/Berlin}}
- {key: user, rate_limit: {unit: month, requests_per_unit: 7, timezone: America/New_York, unit_multiplier: 12}}
`)
	for _, descriptor := range []string{"tenant=acme", "user=ann"} {
		admitted := 0
		for i := range 12 {
			if _, _, code := rls(t, "hit", "-a", replicas[i%3].grpc, "-d", "shop", descriptor, "-q"); code == 0 {
				admitted++
			}
		}
		assert.Equal(t, 7, admitted, descriptor)
	}
}

func TestResetByPrefixFreesCountersOnAllReplicas(t *testing.T) {
	t.Parallel()
	for _, kind := range redisKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			replicas := startReplicasWithEnv(t, 2, append(kind.start(t), "LOCAL_CACHE_SIZE_IN_BYTES=1000000"), `
domain: shop
descriptors:
- {key: tenant, rate_limit: {unit: year, requests_per_unit: 2}, descriptors: [{key: path, rate_limit: {unit: year, requests_per_unit: 1}}]}
`)
			isAdmitted := func(r *testService, descriptor string) bool {
				_, _, code := rls(t, "hit", "-a", r.grpc, "-d", "shop", descriptor, "-q")
				return code == 0
			}
			for _, descriptor := range []string{"tenant=a", "tenant=a,path=/x", "tenant=ab"} {
				for range 3 {
					isAdmitted(replicas[0], descriptor)
					isAdmitted(replicas[1], descriptor)
				}
				assert.False(t, isAdmitted(replicas[1], descriptor))
			}
			reset := func(args ...string) string {
				out, errOut, code := rls(t, append([]string{"reset", "-d", "shop", "--prefix", "--admin", replicas[0].debug, "--token", adminToken}, args...)...)
				require.Zero(t, code, errOut)
				return out
			}
			assert.Equal(t, "dry run; would reset 2 counters with the prefix shop|tenant=a\n", reset("tenant=a", "--dry-run"))
			assert.False(t, isAdmitted(replicas[1], "tenant=a"))
			assert.Equal(t, "reset 2 counters with the prefix shop|tenant=a\n", reset("tenant=a"))
			polltest.Until(t, maxWait, func() bool { return isAdmitted(replicas[1], "tenant=a") })
			assert.True(t, isAdmitted(replicas[0], "tenant=a,path=/x"))
			assert.False(t, isAdmitted(replicas[0], "tenant=ab"))
			assert.Equal(t, "reset 3 counters with the prefix shop|tenant\n", reset("tenant"))
			assert.Contains(t, replicas[0].logText(), `action=reset_prefix`)
		})
	}
}

func TestHitShowsWhichSwitchTurnsTheLimitOff(t *testing.T) {
	t.Parallel()
	replica := startReplicas(t, 1, redistest.Start(t), perYear(5))[0]
	code, answer := replica.admin(http.MethodPut, "switches", "shop|tenant", `{"reason": "incident", "expires_at": "2100-01-01T00:00:00Z"}`)
	require.Equal(t, http.StatusOK, code, answer)
	out, _, code := rls(t, "hit", "-a", replica.grpc, "-d", "shop", "tenant=acme")
	assert.Zero(t, code)
	assert.Regexp(t, `tenant=acme: OK, OFF: shop > tenant, by tester, ends in .*, reason: incident\n`, out)
	assert.NotContains(t, out, "rls explain", "the switch is the explanation")
}
