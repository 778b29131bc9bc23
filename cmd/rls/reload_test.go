package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/internal/testkit/xdstest"
)

// perYear is a limits file with one limit for each tenant. Tests don't last until a year ends.
func perYear(n int) string {
	return fmt.Sprintf("domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: year, requests_per_unit: %d}\n", n)
}

const invalidLimits = "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: fortnight, requests_per_unit: 5}\n"

// peek returns the limit of tenant acme and its remaining hits. It charges nothing.
func (r *testService) peek() string {
	out, _, _ := rls(r.t, "hit", "-a", r.grpc, "-d", "shop", "tenant=acme", "--hits", "0")
	return out
}

// awaitPeek waits until peek contains want.
func (r *testService) awaitPeek(want string) {
	r.t.Helper()
	polltest.Until(r.t, maxWait, func() bool { return strings.Contains(r.peek(), want) }, want)
}

// awaitLog waits until the log contains want.
func (r *testService) awaitLog(want string) {
	r.t.Helper()
	polltest.Until(r.t, maxWait, func() bool { return strings.Contains(r.logText(), want) }, want)
}

// count returns how often the log contains text.
func (r *testService) count(text string) int { return strings.Count(r.logText(), text) }

// editedService is a service whose limit for tenant acme, n a year, changes while it runs.
type editedService struct {
	*testService
	setLimit    func(n int)
	breakLimit  func() // makes the limit invalid
	wantProblem string // the problem that the service reports after breakLimit
}

// waysToEdit has a function for each way to edit a limit. The function starts a service with a limit of 100,000.
var waysToEdit = map[string]func(t *testing.T) editedService{
	"a file": func(t *testing.T) editedService {
		path := writeFile(t, "limits.yaml", perYear(100_000))
		put := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
		return editedService{
			start(t, nil, "--limits", path),
			func(n int) { put(perYear(n)) },
			func() { put(invalidLimits) },
			path + ":4:24: shop > tenant: unit: got fortnight, want millisecond, second",
		}
	},
	"a ConfigMap": func(t *testing.T) editedService {
		dir := t.TempDir()
		version := 0
		put := func(text string) {
			version++
			name := fmt.Sprint("..", version)
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "shop.yaml"), []byte(text), 0o600))
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
			require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		}
		put(perYear(100_000))
		require.NoError(t, os.Symlink("..data/shop.yaml", filepath.Join(dir, "shop.yaml")))
		return editedService{
			start(t, nil, "--limits", dir),
			func(n int) { put(perYear(n)) },
			func() { put(invalidLimits) },
			filepath.Join(dir, "shop.yaml") + ":4:24: shop > tenant: unit: got fortnight, want millisecond, second",
		}
	},
	"xDS": func(t *testing.T) editedService {
		server := xdstest.Serve(t, "127.0.0.1:0")
		version := 0
		put := func(change func(*confv3.RateLimitPolicy)) {
			version++
			config := xdstest.Config("shop", 0)
			config.Descriptors[0].RateLimit.Unit = confv3.RateLimitUnit_YEAR
			change(config.Descriptors[0].RateLimit)
			server.Set(fmt.Sprint(version), config)
		}
		set := func(n int) { put(func(p *confv3.RateLimitPolicy) { p.RequestsPerUnit = uint32(n) }) }
		set(100_000)
		return editedService{
			start(t, []string{"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=" + server.Addr, "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit"}),
			set,
			func() { put(func(p *confv3.RateLimitPolicy) { p.Unit = confv3.RateLimitUnit_UNKNOWN }) },
			"shop: shop > tenant: unit is missing",
		}
	},
	"rls limits set": func(t *testing.T) editedService {
		redis := redistest.Start(t)
		r := startReplicas(t, 1, redis, perYear(100_000))[0]
		set := func(field string) int {
			_, _, code := rls(t, "limits", "set", "--admin", r.debug, "--token", adminToken, "-d", "shop", "tenant=acme", field)
			return code
		}
		return editedService{
			r,
			func(n int) { assert.Zero(t, set(fmt.Sprint("requests_per_unit=", n))) },
			func() {
				assert.Equal(t, 1, set("unit=fortnight"), "rejected and not stored")
				c := redis.Client(t)
				require.NoError(t, c.HSet(t.Context(), "rls:overrides", "shop|tenant=acme", `{"unit": "fortnight"}`).Err())
				require.NoError(t, c.Publish(t.Context(), "rls:overrides", "RELOAD_ALL").Err())
			},
			`override shop|tenant=acme: unit: got "fortnight", want millisecond, second`,
		}
	},
}

// TestEditsDontDisturbCalls raises, lowers, breaks and restores a limit while calls run.
func TestEditsDontDisturbCalls(t *testing.T) {
	t.Parallel()
	for name, startService := range waysToEdit {
		t.Run(name, func(t *testing.T) {
			service := startService(t)
			conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			client := rlsv3.NewRateLimitServiceClient(conn)
			call := func(hits uint32) (*rlsv3.RateLimitResponse_DescriptorStatus, error) {
				resp, err := client.ShouldRateLimit(context.Background(), &rlsv3.RateLimitRequest{
					Domain: "shop", HitsAddend: hits,
					Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}}},
				})
				if err != nil {
					return nil, err
				}
				return resp.Statuses[0], nil
			}
			service.awaitPeek("100000 per year")
			var chargedCalls atomic.Int64
			stop := make(chan struct{})
			var callerGroup sync.WaitGroup
			for range 4 {
				callerGroup.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(time.Millisecond):
							if _, err := call(1); !assert.NoError(t, err) {
								return
							}
							chargedCalls.Add(1)
						}
					}
				})
			}
			problems := func() string {
				_, page := get(t, "http://"+service.debug+"/rlconfig/problems")
				return page
			}

			service.setLimit(200_000)
			service.awaitPeek("200000 per year")
			service.setLimit(50_000)
			service.awaitPeek("50000 per year")
			service.breakLimit()
			polltest.Until(t, maxWait, func() bool { return strings.Contains(problems(), service.wantProblem) }, service.wantProblem)
			problemInLog := strings.ReplaceAll(service.wantProblem, `"`, `\"`)
			_, metrics := get(t, "http://"+service.debug+"/metrics")
			assert.Contains(t, metrics, fmt.Sprintf("rls_config_problems %d\n", strings.Count(problems(), "\n")))
			assert.Contains(t, service.peek(), "50000 per year", "the last good limit stays in force")
			_, page := get(t, "http://"+service.debug+"/rlconfig")
			assert.Contains(t, page, "unit=YEAR requests_per_unit=50000, shadow_mode: false, quota_mode: false")
			service.setLimit(100_000)
			service.awaitPeek("100000 per year")
			assert.Empty(t, problems())

			close(stop)
			callerGroup.Wait()
			_, metrics = get(t, "http://"+service.debug+"/metrics")
			assert.Contains(t, metrics, "rls_config_problems 0\n")
			assert.Equal(t, 1, service.count(problemInLog), "logged once")
			st, err := call(1)
			require.NoError(t, err)
			assert.Equal(t, 100_000-uint32(chargedCalls.Load())-1, st.LimitRemaining, "all hits are counted")
		})
	}
}

// TestChangedBucketKeepsTheSpentTokens changes the rate and the burst of buckets of 10 a day and a
// burst of 50, of which 4 tokens are spent.
func TestChangedBucketKeepsTheSpentTokens(t *testing.T) {
	t.Parallel()
	changes := map[string]struct{ rate, burst int }{
		"rate-up": {200, 50}, "rate-down": {5, 50}, "rate-up-to-the-burst": {50, 50},
		"burst-up": {10, 500}, "burst-down": {10, 20},
		"both-up": {200, 500}, "both-down": {5, 20},
		"rate-up-burst-down": {200, 20}, "rate-down-burst-up": {5, 500},
	}
	limits := func(isChanged bool) string {
		text := "domain: shop\ndescriptors:\n"
		for name, change := range changes {
			if !isChanged {
				change.rate, change.burst = 10, 50
			}
			for _, lease := range []bool{false, true} {
				text += fmt.Sprintf("- {key: %s, value: lease-%v, rate_limit: {unit: day, requests_per_unit: %d, burst: %d, algorithm: token_bucket, lease: %v}}\n",
					name, lease, change.rate, change.burst, lease)
			}
		}
		return text
	}
	for name, way := range map[string]struct {
		usesRedis bool
		change    func(t *testing.T, r *testService, path string)
	}{
		"file": {false, func(t *testing.T, _ *testService, path string) {
			require.NoError(t, os.WriteFile(path, []byte(limits(true)), 0o600))
		}},
		"file, Redis": {true, func(t *testing.T, _ *testService, path string) {
			require.NoError(t, os.WriteFile(path, []byte(limits(true)), 0o600))
		}},
		"override, Redis": {true, func(_ *testing.T, r *testService, _ string) {
			for name, change := range changes {
				for _, lease := range []bool{false, true} {
					r.override(fmt.Sprintf("shop|%s=lease-%v", name, lease), fmt.Sprintf(`{"requests_per_unit": %d, "burst": %d}`, change.rate, change.burst))
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, "limits.yaml", limits(false))
			var env []string
			if way.usesRedis {
				env = []string{"REDIS_URL=" + redistest.Start(t).Addr, "REDIS_TIMEOUT=20s", "OVERRIDES_ENABLED=true", "ADMIN_TOKEN=tester:" + adminToken}
			}
			service := start(t, env, "--limits", path)
			conn, err := grpc.NewClient(service.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
			require.NoError(t, err)
			defer conn.Close()
			take := func(key, value string, n uint64) *rlsv3.RateLimitResponse_DescriptorStatus {
				resp, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
					Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}, HitsAddend: wrapperspb.UInt64(n),
				}}})
				require.NoError(t, err)
				return resp.Statuses[0]
			}
			values := []string{"lease-false", "lease-true"}
			for name := range changes {
				for _, value := range values {
					require.Equal(t, uint32(46), take(name, value, 4).LimitRemaining)
				}
			}
			way.change(t, service, path)
			for name, change := range changes {
				for i, value := range values {
					want := uint32(change.burst - 4)
					if i == 1 && change.burst == 500 {
						want -= 5 // the permits of leases
					}
					polltest.Until(t, maxWait, func() bool {
						got := take(name, value, 0)
						return got.CurrentLimit.GetRequestsPerUnit() == uint32(change.rate) && got.LimitRemaining == want
					}, fmt.Sprintf("%s, %s: want %d left, got %v", name, value, want, take(name, value, 0)))
				}
			}
		})
	}
}

func TestReloadLogsChanges(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "limits.yaml", perYear(5))
	service := start(t, nil, "--limits", path)
	require.NoError(t, os.WriteFile(path, []byte(perYear(6)), 0o600))
	service.awaitLog(`msg="limits in force" files=1 domains=1 rules=1 changed="shop > tenant: 5 per year → 6 per year" counters=kept`)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(perYear(6), "unit: year", "unit: month")), 0o600))
	service.awaitLog(`changed="shop > tenant: 6 per year → 6 per month" counters=new`)
}

func TestSIGHUPReadsTheFiles(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", perYear(3)))
	require.NoError(t, service.cmd.Process.Signal(syscall.SIGHUP))
	polltest.Until(t, maxWait, func() bool { return service.count("limits in force") == 2 })
	assert.Contains(t, service.peek(), "3 per year")
	assert.NoError(t, service.stop())
}

func TestLimitsMayArriveAfterTheStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	service := start(t, []string{"LIMITS_PATH=" + dir, "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"})
	awaitHealth := func(want int) {
		t.Helper()
		polltest.Until(t, maxWait, func() bool {
			code, _, err := fetch("http://" + service.http + "/healthcheck")
			return err == nil && code == want
		})
	}
	awaitHealth(http.StatusInternalServerError)
	assert.Contains(t, service.peek(), "FailedPrecondition")
	_, page := get(t, "http://"+service.debug+"/rlconfig/problems")
	assert.Contains(t, page, "no such file or directory")

	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(perYear(3)), 0o600))
	service.awaitPeek("3 per year")
	awaitHealth(http.StatusOK)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(invalidLimits), 0o600))
	service.awaitLog("fortnight")
	awaitHealth(http.StatusOK)
}
