package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

const threePerYear = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 3, name: yearly}
`

const tenPerYear = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 10}
`

func TestServeLimitsAsFileDeclares(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))

	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4")
	assert.Equal(t, 2, code, "over limit")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 5)
	assert.Contains(t, lines[0], `OK          tenant=acme: OK 3 per year "yearly", remaining 2, reset `)
	assert.Contains(t, lines[3], `OVER_LIMIT  tenant=acme: OVER_LIMIT 3 per year "yearly", remaining 0, reset `)
	assert.Contains(t, lines[4], "4 calls: 3 OK, 1 OVER_LIMIT, 0 errors")

	code, body := post(t, "http://"+service.http+"/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"acme"}]}]}`)
	assert.Equal(t, http.StatusTooManyRequests, code, "/json uses the same counters")
	assert.Contains(t, body, "OVER_LIMIT")
	code, _ = get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusOK, code)
	_, body = get(t, "http://"+service.debug+"/rlconfig")
	assert.Equal(t, "shop.tenant: unit=YEAR requests_per_unit=3, shadow_mode: false, quota_mode: false\n", body)

	_, body = get(t, "http://"+service.debug+"/metrics")
	assert.Contains(t, body, "\nratelimit_service_config_load_success 1\n")

	assert.NoError(t, service.stop(), "exit code 0")
	assert.Contains(t, service.logText(), `msg="service stopped"`)
}

func TestServeReadsIncumbentsLayoutUnderItsName(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	config := filepath.Join(root, "ratelimit", "config")
	require.NoError(t, os.MkdirAll(config, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(config, "shop.yaml"), []byte(threePerYear), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(config, "README.md"), []byte("not limits"), 0o600))

	service := startAs(t, "/bin/ratelimit", []string{"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit"})
	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	assert.Zero(t, code)
	assert.Contains(t, out, "remaining 2")
	assert.Contains(t, service.logText(), "README.md")
}

func TestIncumbentsNameIgnoresArguments(t *testing.T) {
	t.Parallel()
	assert.Equal(t, []string{}, commandArgs([]string{"/bin/ratelimit", "-anything"}))
	assert.Equal(t, []string{}, commandArgs([]string{"rls", "/bin/ratelimit"}), "a command of a deployment of the incumbent")
	assert.Equal(t, []string{}, commandArgs([]string{"rls", "service_cmd", "-anything"}))
	assert.Equal(t, []string{"hit"}, commandArgs([]string{"/bin/rls", "hit"}))
	assert.Equal(t, []string{"check", "ratelimit"}, commandArgs([]string{"rls", "check", "ratelimit"}))
	assert.Equal(t, []string{}, commandArgs([]string{"rls"}))
}

func TestServeFailsWithoutLimits(t *testing.T) {
	t.Parallel()
	badFile := writeFile(t, "bad.yaml", "domain: shop\ndescriptors:\n  - key: a\n    rate_limit: {unit: minutes}\n")
	for name, test := range map[string]struct {
		env  []string
		want []string
	}{
		"missing path":    {[]string{"LIMITS_PATH=/no/such/place"}, []string{"no limits to start with", "/no/such/place"}},
		"empty directory": {[]string{"LIMITS_PATH=" + t.TempDir()}, []string{"no limits to start with"}},
		"bad file":        {[]string{"LIMITS_PATH=" + badFile}, []string{"bad.yaml:4:", "minutes", "minute"}},
		"bad setting":     {[]string{"PORT=tcp://10.0.0.1:80"}, []string{`PORT: got \"tcp://10.0.0.1:80\", want a whole number from 0 to 65535`}},
		"bad log level":   {[]string{"LOG_LEVEL=loud"}, []string{`LOG_LEVEL: got \"loud\", want one of debug, info, warn, error`}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, test.env, "serve").CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 1, exit.ExitCode())
			for _, want := range test.want {
				assert.Contains(t, string(out), want)
			}
		})
	}
}

func TestServeStartsWithoutLimitsIfForced(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"LIMITS_PATH=/no/such/place", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"})
	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "FailedPrecondition: no rate limit configuration loaded")
	code, body := get(t, "http://"+service.http+"/healthcheck")
	assert.Equal(t, http.StatusInternalServerError, code)
	assert.Contains(t, body, "no limits loaded")
}

func TestDebugListenerIsOnLoopbackByDefault(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	host, port, err := net.SplitHostPort(service.debug)
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1", host)
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", port)) // an address of this machine that only 0.0.0.0 has
	if !assert.Error(t, err) {
		_ = conn.Close()
	}
}

func TestServeCanRefuseRefunds(t *testing.T) {
	t.Parallel()
	limits := writeFile(t, "limits.yaml", threePerYear)
	for name, env := range map[string][]string{"default": nil, "allow": {"NEGATIVE_HITS=allow"}, "refuse": {"NEGATIVE_HITS=refuse"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			isRefused := name == "refuse"
			service := start(t, env, "--limits", limits)
			hit := func(hits string) (out string, code int) {
				out, _, code = rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "--hits", hits)
				return out, code
			}
			out, _ := hit("2")
			assert.Contains(t, out, "remaining 1")
			out, code := hit("-2")
			assert.Equal(t, isRefused, code != 0)
			assert.Equal(t, isRefused, strings.Contains(out, "PermissionDenied: descriptors[0]: refunds (is_negative_hits) are turned off (NEGATIVE_HITS)"), out)
			out, _ = hit("0")
			assert.Equal(t, isRefused, strings.Contains(out, "remaining 1"), out)
			assert.Equal(t, !isRefused, strings.Contains(out, "remaining 3"), out)
		})
	}
}

func TestServeSendsConfiguredHeaders(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=X-Limit"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	_, body := post(t, "http://"+service.http+"/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"acme"}]}]}`)
	assert.Contains(t, body, "X-Limit")
	assert.Contains(t, body, "RateLimit-Remaining")
}

func TestSecondSignalEndsProcess(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"DRAIN_DELAY=1h"}, "--limits", writeFile(t, "limits.yaml", threePerYear))
	require.NoError(t, service.cmd.Process.Signal(syscall.SIGTERM))
	polltest.Until(t, maxWait, func() bool {
		code, _, err := fetch("http://" + service.http + "/healthcheck")
		return err == nil && code == http.StatusInternalServerError
	}, "the first signal makes the service unhealthy")
	require.NoError(t, service.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-service.done:
		assert.Equal(t, 1, service.cmd.ProcessState.ExitCode())
	case <-time.After(10 * time.Second):
		assert.Fail(t, "still running")
	}
}

func TestJSONLogsHaveIncumbentsFieldNames(t *testing.T) {
	t.Parallel()
	out, err := command(t, []string{"LOG_FORMAT=json", "LIMITS_PATH=/no/such/place", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "GRPC_UDS=/no/such/directory/rls.sock"}, "serve").CombinedOutput()
	require.Error(t, err)
	assert.Regexp(t, `\{"@timestamp":"[^"]+","level":"error","@message":"limits rejected; no limits are in force","problem":"`, string(out))
	assert.Contains(t, string(out), `"service started without limits; calls fail until valid limits arrive"`)
}

func TestEachProblemAtStartIsLogged(t *testing.T) {
	t.Parallel()
	twoMistakes := "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {unit: minutes, requests_per_unit: 1}}\n  - {value: b}\n"
	for name, test := range map[string]struct {
		env  []string
		want []string // one for each line
	}{
		"settings": {[]string{"PORT=http", "REDIS_AUTH=s3cret", "LOG_LEVEL=fatal"}, []string{
			`PORT: got "http", want a whole number`, "REDIS_URL is empty",
		}},
		"limits": {[]string{"LIMITS_PATH=" + writeFile(t, "bad.yaml", twoMistakes), "LOG_LEVEL=error"}, []string{
			"bad.yaml:3:", "bad.yaml:4:", "no limits to start with",
		}},
		"listener": {[]string{"LIMITS_PATH=" + writeFile(t, "limits.yaml", threePerYear), "GRPC_UDS=/no/such/directory/rls.sock", "LOG_LEVEL=error"}, []string{
			"gRPC listener: ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := command(t, append(test.env, "LOG_FORMAT=json"), "serve").CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 1, exit.ExitCode())
			assert.NotContains(t, string(out), "s3cret")
			assert.NotContains(t, string(out), "service started without limits", "the process has ended")
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.Len(t, lines, len(test.want), "%s", out)
			for i, line := range lines {
				var logLine struct {
					Level   string `json:"level"`
					Message string `json:"@message"`
					Problem string `json:"problem"`
				}
				require.NoError(t, json.Unmarshal([]byte(line), &logLine), line)
				assert.Equal(t, "error", logLine.Level)
				assert.Contains(t, logLine.Problem, test.want[i])
				message := "service failed"
				if strings.Contains(logLine.Problem, "bad.yaml") {
					message = "limits rejected; no limits are in force"
				}
				assert.Equal(t, message, logLine.Message)
			}
		})
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	code, body, err := fetch(url)
	require.NoError(t, err)
	return code, body
}

func fetch(url string) (int, string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(answer)
}
