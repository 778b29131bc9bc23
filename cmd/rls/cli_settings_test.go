package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/cmd/rls/env"
)

// runDoctorSettings runs rls doctor --settings with an environment and returns its output.
func runDoctorSettings(t *testing.T, env []string, args ...string) (out, errOut string, code int) {
	t.Helper()
	cmd := command(t, env, append([]string{"doctor", "--settings"}, args...)...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func TestSettingsShowValuesAndEffects(t *testing.T) {
	t.Parallel()
	environment := []string{"REDIS_URL=redis://user:s3cret@redis:6379", "REDIS_PIPELINE_LIMIT=5", "DRAIN_DELAY=5s"}
	out, errOut, code := runDoctorSettings(t, environment)
	assert.Zero(t, code, errOut)
	assert.NotContains(t, out, "s3cret")
	assert.Regexp(t, `(?m)^REDIS_URL +redis://\(secret\)@redis:6379 +set +different: there is no default`, out)
	assert.Regexp(t, `(?m)^REDIS_PIPELINE_LIMIT +5 +set +no effect: a batch has at most 256 hits`, out)
	assert.Regexp(t, `(?m)^DRAIN_DELAY +5s +set +only in rls$`, out)
	assert.Regexp(t, `(?m)^HOST +0\.0\.0\.0 +default +same$`, out)
	assert.Regexp(t, `(?m)^REDIS_PIPELINE_WINDOW +not set +no effect: `, out)

	out, _, code = runDoctorSettings(t, environment, "--json")
	assert.Zero(t, code)
	var list []env.Variable
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	var names []string
	for _, v := range list {
		if v.IsSet {
			names = append(names, v.Name)
		}
	}
	assert.Equal(t, []string{"DRAIN_DELAY", "REDIS_URL", "REDIS_PIPELINE_LIMIT"}, names)
}

func TestSettingsReportProblems(t *testing.T) {
	t.Parallel()
	out, errOut, code := runDoctorSettings(t, []string{"GRPC_PORT=http", "DRAIN_DELAY=5s"})
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `GRPC_PORT: got "http", want a whole number`)
	assert.Regexp(t, `(?m)^DRAIN_DELAY +5s`, out, "the table is printed in spite of the problem")
}
