package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// secretText is a part of every secret of the tests below.
const secretText = "PLANTED"

// secretSettings are valid settings that contain secrets. They leave out the address of Redis.
var secretSettings = []string{
	"ADMIN_TOKEN=alice:PLANTED-token,bob:PLANTED-other", "DECISION_LOG_HASH_KEY=PLANTED-hash", "DECISION_LOG=all",
	"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:PLANTED-xds",
	"REDIS_AUTH=user:PLANTED-auth", "REDIS_SENTINEL_AUTH=PLANTED-sentinel",
	"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=redis://user:PLANTED-second@127.0.0.1:2", "REDIS_PERSECOND_AUTH=PLANTED-second-auth",
	"REDIS_PERSECOND_SENTINEL_AUTH=PLANTED-second-sentinel",
	"TRACING_ENABLED=true", "OTEL_EXPORTER_OTLP_ENDPOINT=http://user:PLANTED-otel@127.0.0.1:3", "OTEL_EXPORTER_OTLP_HEADERS=authorization=PLANTED-header",
	"OTEL_EXPORTER_OTLP_TRACES_HEADERS=api-key=PLANTED-traces-header", "OTEL_BSP_SCHEDULE_DELAY=10",
	"MEMCACHE_TLS_KEY=PLANTED-memcache", "OVERRIDES_ENABLED=true", "LOG_LEVEL=debug",
}

// redisSecrets are settings of a Redis that does not answer, each with a secret.
var redisSecrets = map[string][]string{
	"URL":                  {"REDIS_URL=redis://user:PLANTED@127.0.0.1:1"},
	"URL with parameter":   {"REDIS_URL=redis://127.0.0.1:1?password=PLANTED"},
	"host with parameter":  {"REDIS_URL=127.0.0.1:1?password=PLANTED"},
	"host with user":       {"REDIS_URL=user:PLANTED@127.0.0.1:1"},
	"bad escape":           {"REDIS_URL=redis://user:PLANTED%zz@127.0.0.1:1"},
	"bad port":             {"REDIS_URL=redis://user:PLANTED#x@127.0.0.1:port"},
	"space":                {"REDIS_URL=redis://user:PLANTED x@127.0.0.1:1"},
	"no scheme":            {"REDIS_URL=//user:PLANTED@127.0.0.1:1/x"},
	"unix":                 {"REDIS_URL=unix://user:PLANTED@/no/redis.sock"},
	"path":                 {"REDIS_URL=/no/redis.sock?password=PLANTED"},
	"Sentinel":             {"REDIS_TYPE=sentinel", "REDIS_URL=master,redis://user:PLANTED@127.0.0.1:1"},
	"Sentinel with user":   {"REDIS_TYPE=sentinel", "REDIS_URL=master,user:PLANTED@127.0.0.1:1,127.0.0.1:2"},
	"Sentinel, parameter":  {"REDIS_TYPE=sentinel", "REDIS_URL=master,127.0.0.1:1?password=PLANTED"},
	"Sentinel, URL first":  {"REDIS_TYPE=sentinel", "REDIS_URL=redis://user:PLANTED@master,127.0.0.1:1"},
	"Cluster":              {"REDIS_TYPE=cluster", "REDIS_URL=redis://user:PLANTED@127.0.0.1:1,127.0.0.1:2"},
	"Cluster, second node": {"REDIS_TYPE=cluster", "REDIS_URL=127.0.0.1:1,user:PLANTED@127.0.0.1:2"},
	"Cluster, parameter":   {"REDIS_TYPE=cluster", "REDIS_URL=127.0.0.1:1?password=PLANTED,127.0.0.1:2"},
}

// assertNoSecret checks that text has no secret.
func assertNoSecret(t *testing.T, place, text string) {
	t.Helper()
	if i := strings.Index(text, secretText); i >= 0 {
		assert.Fail(t, "secret shown", "%s: …%s…", place, text[max(0, i-200):min(len(text), i+40)])
	}
}

func TestNoOutputOfCommandsHasASecret(t *testing.T) {
	t.Parallel()
	limits := writeFile(t, "limits.yaml", "domain: d\n")
	settingsByName := map[string][]string{
		"bad tokens":         {"ADMIN_TOKEN=alice:PLANTED,alice:PLANTED2", "REDIS_URL=127.0.0.1:1"},
		"bad xDS headers":    {"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=PLANTED", "REDIS_URL=127.0.0.1:1"},
		"bad OTLP endpoint":  {"OTEL_EXPORTER_OTLP_ENDPOINT=user:PLANTED@collector:4318", "REDIS_URL=127.0.0.1:1"},
		"bad OTLP headers":   {"OTEL_EXPORTER_OTLP_HEADERS=PLANTED%zz", "REDIS_URL=127.0.0.1:1"},
		"bad OTLP URL":       {"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:PLANTED%zz@collector:4318", "REDIS_URL=127.0.0.1:1"},
		"no Redis":           {"BACKEND_TYPE=redis"},
		"bad kind of Redis":  {"REDIS_TYPE=other", "REDIS_URL=redis://user:PLANTED@127.0.0.1:1"},
		"secret in xDS URL":  {"CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=user:PLANTED@127.0.0.1:4", "REDIS_URL=127.0.0.1:1"},
		"secret as mistyped": {"REDIS_PASSWORD=PLANTED", "REDIS_URL=127.0.0.1:1"},
	}
	for name, settings := range redisSecrets {
		settingsByName[name] = settings
	}
	for name, settings := range settingsByName {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range [][]string{{"doctor", "--settings"}, {"doctor", "--settings", "--json"}, {"doctor"}, {"doctor", "--json"}, {"explain", "-d", "d", "k=v"}, {"explain", "-d", "d", "k=v", "--limits", limits}} {
				cmd := command(t, append(append(append([]string{}, secretSettings...), "LIMITS_PATH="+limits), settings...), args...)
				out, _ := cmd.CombinedOutput() // most settings are invalid
				assertNoSecret(t, strings.Join(args, " "), string(out))
			}
		})
	}
}

func TestNoOutputOfServiceHasASecret(t *testing.T) {
	t.Parallel()
	workingRedis := redistest.Start(t)
	require.NoError(t, workingRedis.Client(t).Do(t.Context(), "ACL", "SETUSER", "user", "on", ">PLANTED-auth", "~*", "&*", "+@all").Err())
	settingsByName := map[string][]string{"working Redis": {"REDIS_URL=redis://:PLANTED@" + workingRedis.Addr}}
	for _, name := range []string{"URL", "URL with parameter", "Sentinel", "Cluster", "unix"} {
		settingsByName[name] = redisSecrets[name]
	}
	for name, settings := range settingsByName {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := writeFile(t, "limits.yaml", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]\n")
			var stdout bytes.Buffer
			env := append(append(append([]string{}, secretSettings...), "LIMITS_PATH="+limits, "LOCAL_CACHE_SIZE_IN_BYTES=0"), settings...)
			service := startProgram(t, os.Args[0], &stdout, env, "serve")
			for range 3 {
				resp, err := http.Post("http://"+service.http+"/json", "application/json", strings.NewReader(`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`))
				require.NoError(t, err)
				_ = resp.Body.Close()
			}
			require.NoError(t, os.WriteFile(limits, []byte("domain: ["), 0o600))
			require.NoError(t, service.cmd.Process.Signal(syscall.SIGHUP))
			service.awaitLog("limits rejected")
			for path, code := range secretPages(name == "working Redis") {
				got, body := getWithToken(t, "http://"+service.debug+path, "PLANTED-token")
				assert.Equal(t, code, got, "%s: %s", path, body)
				assertNoSecret(t, path, body)
				for _, token := range []string{"", "PLANTED-wrong"} {
					_, body := getWithToken(t, "http://"+service.debug+path, token)
					assertNoSecret(t, path, body)
				}
			}
			for _, args := range [][]string{
				{"explain", "-d", "d", "k=v", "--admin", service.debug}, {"explain", "-d", "d", "k=v", "--admin", service.debug, "--json"}, {"doctor"}, {"doctor", "--json"},
			} {
				out, err := command(t, env, args...).CombinedOutput()
				if args[0] == "explain" { // doctor finds problems
					require.NoError(t, err, "%s", out)
				}
				assert.NotEmpty(t, out)
				assertNoSecret(t, strings.Join(args, " "), string(out))
			}
			_, health := get(t, "http://"+service.http+"/healthcheck")
			assertNoSecret(t, "/healthcheck", health)
			_ = service.stop()
			assertNoSecret(t, "log", strings.ReplaceAll(service.logText(), "/admin/PLANTED-not-found", ""))
			assertNoSecret(t, "stdout", stdout.String())
			assert.Contains(t, service.logText(), "service starting")
		})
	}
}

// secretPages returns pages of the debug listener, and the status with a valid token.
func secretPages(isRedisUp bool) map[string]int {
	pages := map[string]int{"/no/such/page": http.StatusNotFound, "/admin/PLANTED-not-found": http.StatusNotFound}
	for _, path := range []string{
		"/", "/endpoints", "/rlconfig", "/rlconfig/problems", "/metrics", live.SnapshotPath, live.RulesPath, live.RulePath + "?path=d+%3E+k",
		live.StreamPath, signInPath, explain.Path + "?domain=d&descriptor=k=v", admin.Prefix + "overrides", admin.Prefix + "history",
		admin.Prefix + "counters?target=d%7Ck=v", "/debug/pprof/goroutine?debug=2",
	} {
		pages[path] = http.StatusOK
	}
	if !isRedisUp {
		pages[admin.Prefix+"history"] = http.StatusServiceUnavailable
	}
	return pages
}

// getWithToken returns the answer to a caller with the token. It returns the first event of a stream,
// and leaves out the path that the caller asked for.
func getWithToken(t *testing.T, pageURL, token string) (code int, body string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, pageURL, nil)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	var content []byte
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		content, err = bufio.NewReader(resp.Body).ReadBytes('\n')
	} else {
		content, err = io.ReadAll(resp.Body)
	}
	require.NoError(t, err)
	return resp.StatusCode, strings.ReplaceAll(string(content), req.URL.Path, "")
}
