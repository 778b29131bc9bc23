package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/cmd/rls/env"
	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// runDoctor runs rls doctor with an environment.
func runDoctor(t *testing.T, env []string, args ...string) (out string, code int) {
	t.Helper()
	cmd := command(t, append([]string{"GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0"}, env...),
		append([]string{"doctor"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	assert.Empty(t, stderr.String())
	return stdout.String(), cmd.ProcessState.ExitCode()
}

func writeDoctorLimits(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(path, []byte("domain: shop\ndescriptors:\n  - key: ip\n    rate_limit: {unit: minute, requests_per_unit: 5}\n"), 0o600))
	return path
}

func TestDoctorChecksRedisOfAllRegions(t *testing.T) {
	t.Parallel()
	server, global, limits := redistest.Start(t), redistest.Start(t), writeDoctorLimits(t)
	environment := []string{"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=1s", "REDIS_GLOBAL_URL=" + global.Addr, "REGION=eu", "REGIONS=3"}
	out, code := runDoctor(t, environment, "--limits", limits)
	assert.Contains(t, out, "ok       redis: REDIS_GLOBAL_URL: the Redis of all regions answers")
	assert.Zero(t, code, out)

	global.Kill()
	out, code = runDoctor(t, environment, "--limits", limits)
	assert.Regexp(t, "problem  redis: REDIS_GLOBAL_URL: .*connection refused", out)
	assert.Equal(t, 1, code)
}

func TestDoctorFindsNothingWrongWithGoodService(t *testing.T) {
	t.Parallel()
	server, limits := redistest.Start(t, "--appendonly", "yes"), writeDoctorLimits(t)
	environment := []string{"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=1s"}
	out, code := runDoctor(t, environment, "--strict", "--limits", limits)
	assert.NotContains(t, out, "problem ")
	assert.Zero(t, code, out)
	assert.Equal(t, 3, strings.Count(out, "the address is free"), out)
	assert.Contains(t, out, "connection, rights, role and state are good")

	service := start(t, environment, "--limits", limits)
	for variable, address := range map[string]string{"GRPC_PORT=": service.grpc, "PORT=": service.http, "DEBUG_PORT=": service.debug} {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		environment = append(environment, variable+port)
	}
	out, code = runDoctor(t, environment, "--limits", limits)
	assert.Zero(t, code, out)
	assert.Equal(t, 3, strings.Count(out, "rls serves this address"), out)
}

func TestDoctorNamesEachProblem(t *testing.T) {
	t.Parallel()
	server, limits := redistest.Start(t), writeDoctorLimits(t)
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha").Err())
	require.NoError(t, os.WriteFile(limits, []byte("domain: shop\ndescriptors:\n  - kex: ip\n"), 0o600))
	otherListener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer otherListener.Close()
	go func() {
		for {
			c, err := otherListener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	_, port, err := net.SplitHostPort(otherListener.Addr().String())
	require.NoError(t, err)
	out, code := runDoctor(t, []string{
		"REDIS_URL=redis://" + server.Addr, "REDIS_TIMEOUT=10s", "PORT=" + port, "MEMCACHE_SRV=x",
	}, "--json", "--limits", limits)
	assert.Equal(t, 1, code)
	var results []diagnosis
	require.NoError(t, json.Unmarshal([]byte(out), &results), out)
	assertResult := func(level redis.Level, area, subject, text, advice string) {
		t.Helper()
		for _, r := range results {
			if r.Level == level && r.Area == area && strings.Contains(r.Subject, subject) && strings.Contains(r.Text, text) && strings.Contains(r.Advice, advice) {
				return
			}
		}
		assert.Fail(t, "result missing", "%s %s %s\n%s", area, subject, text, out)
	}
	assertResult(redis.LevelWarning, "settings", "MEMCACHE_SRV", "", "")
	assertResult(redis.LevelProblem, "limits", limits, "kex", "")
	assertResult(redis.LevelProblem, "listeners", "PORT 127.0.0.1:"+port, fmt.Sprintf(" (process %d) uses the address", os.Getpid()), "set another port")
	assertResult(redis.LevelProblem, "redis", server.Addr+" rights", "may not run evalsha", "ACL SETUSER default +evalsha")

	out, code = runDoctor(t, []string{"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=x"}, "--limits", limits)
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "problem  settings: environment: REDIS_TIMEOUT")
}

func TestDoctorWithoutRedisSaysThatItReadsThisEnvironment(t *testing.T) {
	t.Parallel()
	out, code := runDoctor(t, nil, "--limits", writeDoctorLimits(t))
	assert.Zero(t, code, out)
	assert.Contains(t, out, "with the settings of this environment, each replica counts alone")
	assert.Contains(t, out, "set REDIS_URL to share counters; to check a running service, run rls doctor with its settings")
}

func TestDoctorExaminesSocket(t *testing.T) {
	t.Parallel()
	directory, limits := t.TempDir(), writeDoctorLimits(t)
	socket, file := filepath.Join(directory, "rls.sock"), filepath.Join(directory, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	diagnose := func(path string) string {
		out, _ := runDoctor(t, []string{"GRPC_UDS=" + path}, "--limits", limits)
		return out
	}
	assert.Contains(t, diagnose(socket), "ok       listeners: GRPC_UDS "+socket+": the path is free")
	assert.Contains(t, diagnose(file), "problem  listeners: GRPC_UDS "+file+": the path has a file that is no socket")
	assert.Contains(t, diagnose(directory+"/none/rls.sock"), "the directory of the socket does not exist")
	start(t, []string{"GRPC_UDS=" + socket}, "--limits", limits)
	assert.Contains(t, diagnose(socket), "ok       listeners: GRPC_UDS "+socket+": rls serves this socket")
}

func TestDoctorChecksCertificates(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	pair, otherPair := ca.Issue("rls.test"), ca.Issue("rls.test")
	emptyFile := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(emptyFile, nil, 0o600))
	require.NoError(t, os.Chmod(pair.KeyFile, 0o600))
	for _, test := range []struct {
		name      string
		cert, key string
		delay     time.Duration // the time from now until the doctor checks the files
		want      []string      // the level and the start of the text
	}{
		{"good", pair.CertFile, pair.KeyFile, 0, []string{"warning a certificate expires in "}},
		{"expired", pair.CertFile, pair.KeyFile, 10 * 365 * 24 * time.Hour, []string{"problem a certificate has expired at "}},
		{"not yet valid", pair.CertFile, pair.KeyFile, -10 * 365 * 24 * time.Hour, []string{"problem a certificate is valid only from "}},
		{"key of another certificate", pair.CertFile, otherPair.KeyFile, 0, []string{"warning a certificate expires in ", "problem the key can't be used"}},
		{"missing", emptyFile + "x", pair.KeyFile, 0, []string{"problem open ", "problem the key can't be used"}},
		{"empty", emptyFile, pair.KeyFile, 0, []string{"problem the file has no certificate", "problem the key can't be used"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.NoError(t, os.Chmod(otherPair.KeyFile, 0o600))
			d := &doctor{settings: &env.Settings{DebugTLSCert: test.cert, DebugTLSKey: test.key}, now: time.Now().Add(test.delay)}
			d.checkCertificates()
			require.Len(t, d.results, len(test.want), "%+v", d.results)
			for i, r := range d.results {
				assert.Contains(t, string(r.Level)+" "+r.Text, test.want[i])
			}
		})
	}
	for mode, want := range map[os.FileMode]redis.Level{0o604: redis.LevelNote, 0o620: redis.LevelWarning} {
		require.NoError(t, os.Chmod(pair.KeyFile, mode))
		d := &doctor{settings: &env.Settings{}, now: time.Now()}
		d.checkKeyRights("key", pair.KeyFile)
		if assert.Len(t, d.results, 1) {
			assert.Equal(t, want, d.results[0].Level)
		}
	}
}
