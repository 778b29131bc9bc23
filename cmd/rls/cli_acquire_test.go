package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

const acquireLimits = `
domain: jobs
descriptors:
  - key: queue
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: api
    rate_limit: {unit: second, requests_per_unit: 100}
`

func TestAcquireExitsWithTheCodesOfTheTimeoutCommand(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", acquireLimits))
	require.Equal(t, 0, acquireIn(t, service, "queue=full", "-n", "2", "--", "true").code)
	for name, test := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"success":                     {[]string{"api=x", "--", "echo", "-n", "hello"}, 0, "hello", ""},
		"code of the command":         {[]string{"api=x", "--", "sh", "-c", "exit 3"}, 3, "", ""},
		"killed command":              {[]string{"api=x", "--", "sh", "-c", "kill -9 $$"}, 137, "", ""},
		"no permit in time":           {[]string{"queue=full", "--timeout", "20s", "--", "echo", "ran"}, 124, "", "at the earliest, after the deadline of --timeout"},
		"weight above the limit":      {[]string{"queue=x", "-n", "3", "--", "echo", "ran"}, 125, "", "can never pass"},
		"command that is a directory": {[]string{"api=x", "--", "/"}, 126, "", "command /: "},
		"command that is not found":   {[]string{"api=x", "--", "no-such-command"}, 127, "", "command no-such-command: "},
		"no command":                  {[]string{"api=x"}, 125, "", "want KEY=VALUE -- COMMAND"},
		"no descriptor":               {[]string{"--", "true"}, 125, "", "want KEY=VALUE -- COMMAND"},
		"wrong descriptor":            {[]string{"api", "--", "true"}, 125, "", "KEY=VALUE"},
		"wrong timeout":               {[]string{"api=x", "--timeout", "1y", "--", "true"}, 125, "", `--timeout: got "1y", want a duration such as 90s or 1h`},
		"wrong number":                {[]string{"api=x", "-n", "0", "--", "true"}, 125, "", "-n: got 0"},
		"unknown flag":                {[]string{"api=x", "--maybe", "--", "true"}, 125, "", "unknown flag"},
		"no rule":                     {[]string{"api2=x", "--", "echo", "-n", "ran"}, 0, "ran", "no rule of domain jobs limits api2=x"},
		"no domain":                   {[]string{"-d", "", "api=x", "--", "true"}, 125, "", "domain: got none"},
		"no service listens":          {[]string{"-a", "127.0.0.1:1", "api=x", "--timeout", "1s", "--", "true"}, 124, "", "no permit came within 1s; 127.0.0.1:1: connection refused; set --addr"},
		"long wait":                   {[]string{"-a", "127.0.0.1:1", "api=x", "--timeout", "3s", "--", "true"}, 124, "", "rls: still waiting for a permit; rls hit shows whether 127.0.0.1:1 answers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := acquireIn(t, service, test.args...)
			assert.Equal(t, test.code, r.code, r.stderr)
			assert.Equal(t, test.stdout, r.stdout)
			assert.Contains(t, r.stderr, test.stderr)
			if test.stderr == "" {
				assert.Empty(t, r.stderr)
			}
		})
	}
}

type acquireResult struct {
	stdout, stderr string
	code           int
}

// acquireIn runs rls acquire with the domain jobs, and returns when the command has ended.
func acquireIn(t *testing.T, service *testService, args ...string) acquireResult {
	t.Helper()
	cmd := command(t, os.Environ(), append([]string{"acquire", "-a", service.grpc, "-d", "jobs"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code has the error
	return acquireResult{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func TestAcquirePassesSignalsToCommand(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", acquireLimits))
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			// The shell needs two signals. A second signal must not end rls either.
			script := fmt.Sprintf(`trap 'echo signal; n=$((n+1)); [ $n -lt 2 ] || exit 7' %d
				echo ready; while :; do sleep 0.01; done`, signal)
			cmd := command(t, os.Environ(), "acquire", "-a", service.grpc, "-d", "jobs", "api=x", "--", "sh", "-c", script)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			lines := bufio.NewScanner(stdout)
			for _, want := range []string{"ready", "signal", "signal"} {
				require.True(t, lines.Scan())
				require.Equal(t, want, lines.Text())
				if want == "ready" || want == "signal" {
					_ = cmd.Process.Signal(signal) // the third signal can come after the end of the command
				}
			}
			_ = cmd.Wait()
			assert.Equal(t, 7, cmd.ProcessState.ExitCode())
		})
	}
}

func TestSignalAfterPermitStartsNoCommand(t *testing.T) {
	t.Cleanup(func() { signal.Reset(signalsForCommand()...) })
	endSignals := make(chan os.Signal, 1)
	endSignals <- syscall.SIGTERM
	path := filepath.Join(t.TempDir(), "started")
	touchProgram, err := exec.LookPath("touch")
	require.NoError(t, err)
	err = runCommand(io.Discard, touchProgram, []string{"touch", path}, new(client.Hold), endSignals)
	var failure *errorWithCode
	require.ErrorAs(t, err, &failure)
	assert.Equal(t, 143, failure.code)
	assert.NoFileExists(t, path)
}

// Fixed windows in Redis are charged by plain commands, which charge denied hits too. So rls acquire must not use them.
func TestDeniedAcquireChargesNothingInRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s", "ADMIN_TOKEN=" + opsToken}, "--limits", writeFile(t, "limits.yaml", `
domain: jobs
descriptors:
  - key: queue
    rate_limits:
      - {name: tight, unit: day, requests_per_unit: 2}
      - {name: wide, unit: year, requests_per_unit: 50}
`))
	require.Equal(t, 0, acquireIn(t, service, "queue=x", "--", "true").code)
	for range 3 {
		require.Equal(t, 124, acquireIn(t, service, "queue=x", "-n", "2", "--timeout", "1s", "--", "true").code)
	}
	out, errOut, _ := rls(t, "explain", "--admin", service.debug, "--token", opsToken, "-d", "jobs", "queue=x")
	assert.Regexp(t, `(?s)2 per day \(named tight\).*spent: 1 of 2, 1 left.*50 per year \(named wide\).*spent: 1 of 50, 49 left`, out, errOut)
}

func TestAcquireHoldsSlotWhileCommandRuns(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	service := start(t, []string{"REDIS_URL=" + redis.Addr, "REDIS_TIMEOUT=20s"}, "--limits", writeFile(t, "limits.yaml", `
domain: jobs
descriptors:
  - key: job
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 6s}
`))
	acquireSlot := func(name string, args ...string) int {
		return acquireIn(t, service, append([]string{"job=" + name}, args...)...).code
	}
	t.Run("the slot comes back when the command ends or is killed", func(t *testing.T) {
		t.Parallel()
		for _, script := range []string{"exit 0", "exit 5", "kill -9 $$"} {
			acquireSlot("ended", "--", "sh", "-c", script)
			assert.Zero(t, acquireSlot("ended", "--timeout", "2s", "--", "true"), script)
		}
	})
	t.Run("the hold is renewed while the command runs", func(t *testing.T) {
		t.Parallel()
		cmd := startHolder(t, service, "job=long")
		assert.Equal(t, exitTimedOut, acquireSlot("long", "--timeout", "8s", "--", "true"), "longer than a hold")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
		assert.Zero(t, acquireSlot("long", "--timeout", "2s", "--", "true"))
	})
	t.Run("the slot of a killed holder is free after its hold", func(t *testing.T) {
		t.Parallel()
		cmd := startHolder(t, service, "job=killed")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		assert.Equal(t, exitTimedOut, acquireSlot("killed", "--timeout", "100ms", "--", "true"))
		assert.Zero(t, acquireSlot("killed", "--timeout", "30s", "--", "true"))
	})
}

// startHolder starts rls acquire with a command that runs until a signal ends it. It returns when the
// command runs.
func startHolder(t *testing.T, service *testService, descriptor string) *exec.Cmd {
	t.Helper()
	cmd := command(t, os.Environ(), "acquire", "-a", service.grpc, "-d", "jobs", descriptor, "--", "sh", "-c", "echo ready; exec sleep 20")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	return cmd
}
