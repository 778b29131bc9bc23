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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// perHour is a limits file with one limit for any tenant.
func perHour(n int) string {
	return fmt.Sprintf("domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", n)
}

const nonsense = "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {unit: fortnight, requests_per_unit: 5}\n"

// peek is what the service says of tenant acme, without charging it.
func (r *running) peek() string {
	out, _, _ := rls(r.t, "hit", "-a", r.grpc, "-d", "shop", "tenant=acme", "--hits", "0")
	return out
}

// eventually waits for the service to say so.
func (r *running) eventually(want string) {
	r.t.Helper()
	said := ""
	if !assert.Eventually(r.t, func() bool {
		said = r.peek()
		return strings.Contains(said, want)
	}, 10*time.Second, 50*time.Millisecond) {
		require.FailNow(r.t, "never said", "%s\nbut %s", want, said)
	}
}

func (r *running) logs(want string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return strings.Contains(r.logged(), want) }, 10*time.Second, 20*time.Millisecond, want)
}

func (r *running) count(text string) int { return strings.Count(r.logged(), text) }

// TestALimitIsEditedWhileCallsRun edits a limit up, down, to nonsense and back,
// with callers who must not notice anything but the limit.
func TestALimitIsEditedWhileCallsRun(t *testing.T) {
	path := file(t, "limits.yaml", perHour(100_000))
	r := start(t, nil, "--limits", path)
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
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
	var charged atomic.Int64
	stop := make(chan struct{})
	var calling sync.WaitGroup
	for range 4 {
		calling.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					if _, err := call(1); !assert.NoError(t, err) {
						return
					}
					charged.Add(1)
				}
			}
		})
	}
	edit := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }

	edit(perHour(200_000))
	r.eventually("200000 per hour")
	edit(perHour(50_000))
	r.eventually("50000 per hour")
	edit(nonsense)
	r.logs(path + ":4:24: shop > tenant: unit fortnight is not known")
	assert.Contains(t, r.peek(), "50000 per hour", "the limit before stays in force")
	_, page := get(t, "http://"+r.debug+"/rlconfig/problems")
	assert.Contains(t, page, path+":4:24: shop > tenant: unit fortnight is not known")
	_, page = get(t, "http://"+r.debug+"/rlconfig")
	assert.Equal(t, "shop.tenant: unit=HOUR requests_per_unit=50000, shadow_mode: false, quota_mode: false\n", page)
	edit(perHour(100_000))
	r.eventually("100000 per hour")
	_, page = get(t, "http://"+r.debug+"/rlconfig/problems")
	assert.Empty(t, page)

	close(stop)
	calling.Wait()
	assert.Equal(t, 1, r.count("fortnight"), "told once")
	assert.Contains(t, r.logged(), `msg="limits in force" files=1 changed_files=`+path+` domains=1 rules=1 changed="shop > tenant"`)
	st, err := call(1)
	require.NoError(t, err)
	assert.Equal(t, 100_000-uint32(charged.Load())-1, st.LimitRemaining, "no hit was forgotten")
}

func TestAConfigMapsNextVersionTakesEffect(t *testing.T) {
	root := t.TempDir()
	config := filepath.Join(root, "ratelimit", "config")
	require.NoError(t, os.MkdirAll(filepath.Join(config, "..1"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(config, "..1", "shop.yaml"), []byte(perHour(3)), 0o600))
	require.NoError(t, os.Symlink("..1", filepath.Join(config, "..data")))
	require.NoError(t, os.Symlink("..data/shop.yaml", filepath.Join(config, "shop.yaml")))
	for _, watchRoot := range []string{"true", "false"} {
		r := start(t, []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=" + watchRoot})
		for i := 4; i < 6; i++ {
			version := fmt.Sprint("..", watchRoot, i)
			require.NoError(t, os.Mkdir(filepath.Join(config, version), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(config, version, "shop.yaml"), []byte(perHour(i)), 0o600))
			require.NoError(t, os.Symlink(version, filepath.Join(config, "..data_tmp")))
			require.NoError(t, os.Rename(filepath.Join(config, "..data_tmp"), filepath.Join(config, "..data")))
			r.eventually(fmt.Sprint(i, " per hour"))
		}
		require.NoError(t, r.stop())
	}
}

func TestReplacingTheRootsLinkTakesEffect(t *testing.T) {
	root := t.TempDir()
	for i, version := range []string{"v1", "v2"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, version, "config"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, version, "config", "shop.yaml"), []byte(perHour(i+1)), 0o600))
	}
	current := filepath.Join(root, "current")
	require.NoError(t, os.Symlink("v1", current))
	r := start(t, []string{"RUNTIME_ROOT=" + current})
	require.NoError(t, os.Symlink("v2", current+"2"))
	require.NoError(t, os.Rename(current+"2", current))
	r.eventually("2 per hour")
}

func TestHangupReadsTheFilesAndEndsNothing(t *testing.T) {
	r := start(t, nil, "--limits", file(t, "limits.yaml", perHour(3)))
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGHUP))
	require.Eventually(t, func() bool { return r.count("limits in force") == 2 }, 10*time.Second, 20*time.Millisecond)
	assert.Contains(t, r.peek(), "3 per hour")
	assert.NoError(t, r.stop())
}

func TestLimitsThatComeLaterTakeEffect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	r := start(t, []string{"LIMITS_PATH=" + dir, "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"})
	health := func(want int) {
		t.Helper()
		require.Eventually(t, func() bool {
			code, _, err := fetch("http://" + r.http + "/healthcheck")
			return err == nil && code == want
		}, 10*time.Second, 20*time.Millisecond)
	}
	health(http.StatusInternalServerError)
	assert.Contains(t, r.peek(), "FailedPrecondition")
	_, page := get(t, "http://"+r.debug+"/rlconfig/problems")
	assert.Contains(t, page, "no such file or directory")

	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(perHour(3)), 0o600))
	r.eventually("3 per hour")
	health(http.StatusOK)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(nonsense), 0o600))
	r.logs("fortnight")
	health(http.StatusOK)
}

func TestManyProblemsAreLoggedInPart(t *testing.T) {
	path := file(t, "limits.yaml", perHour(3))
	r := start(t, nil, "--limits", path)
	bad := "domain: shop\ndescriptors:\n"
	for i := range 100 {
		bad += fmt.Sprintf("  - {key: k%d, rate_limit: {unit: eon, requests_per_unit: 1}}\n", i)
	}
	require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
	r.logs("and_more_problems=80 see=/rlconfig/problems")
	assert.Equal(t, 20, r.count("unit eon is not known"))
	_, page := get(t, "http://"+r.debug+"/rlconfig/problems")
	assert.Equal(t, 100, strings.Count(page, "unit eon is not known"))
}

// TestWhatWasSpentSurvivesAChangeOfAlgorithm changes how a limit counts, and its
// window, under a caller who has spent some of it.
func TestWhatWasSpentSurvivesAChangeOfAlgorithm(t *testing.T) {
	redis := redistest.Start(t)
	for name, env := range map[string][]string{"local": nil, "redis": {"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=5s"}} {
		t.Run(name, func(t *testing.T) {
			limitOf := func(text string) string {
				return "domain: shop\ndescriptors:\n  - key: tenant\n    rate_limit: {" + text + "}\n"
			}
			path := file(t, "limits.yaml", limitOf("unit: year, requests_per_unit: 100"))
			r := start(t, env, "--limits", path)
			_, _, code := rls(t, "hit", "-a", r.grpc, "-d", "shop", "tenant=acme", "--hits", "60")
			require.Zero(t, code)
			for i, change := range []struct{ text, says string }{
				{"unit: year, requests_per_unit: 100, algorithm: sliding_log", "100 per year, remaining 40"},
				{"unit: year, requests_per_unit: 200, algorithm: token_bucket", "200 per year, remaining 140"},
				{"unit: month, requests_per_unit: 80, algorithm: sliding_window", "80 per month, remaining 20"},
				{"unit: year, requests_per_unit: 90", "90 per year, remaining 30"},
			} {
				require.NoError(t, os.WriteFile(path, []byte(limitOf(change.text)), 0o600))
				require.Eventually(t, func() bool { return r.count("limits in force") == i+2 }, 10*time.Second, 20*time.Millisecond)
				assert.Contains(t, r.peek(), change.says, change.text)
			}
		})
	}
}
