package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/whatif/limitsplan"
)

// fiveCalls is a decision log of five calls of one tenant within a second.
var fiveCalls = strings.Repeat(`{"time":"2026-11-20T10:00:37.5Z","domain":"shop","descriptor":[{"key":"tenant","value":"acme"}],"descriptor_index":0,`+
	`"limit":"9 per year","code":"OK","overall_code":"OK","hits":1}`+"\n", 5)

func TestPlanHasAnExitCodeForEachResult(t *testing.T) {
	t.Parallel()
	limits, log := writeFile(t, "new.yaml", threePerYear), writeFile(t, "decisions.log", fiveCalls)
	mapping := writeFile(t, "mapping.yaml", "start: t\n")
	accessLog := writeFile(t, "access.log", `{"start":1795168800,"user":"acme"}`)
	wrongField := writeFile(t, "mapping.yaml", "time: start\ndomain: shop\ndescriptors: [[{key: tenant, field: usr}]]\n")
	otherKey := writeFile(t, "mapping.yaml", "time: start\ndomain: shop\ndescriptors: [[{key: other, field: user}]]\n")
	shadowLimits := writeFile(t, "new.yaml", strings.Replace(threePerYear, "key: tenant\n", "key: tenant\n    shadow_mode: true\n", 1))
	for _, test := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"report", []string{limits, "--from", log}, 0, "denied by the new limits  2 (40.00 %)"},
		{"condition holds", []string{limits, "--from", log, "--fail-if", "denied > 1%"}, 1, `condition "denied > 1%" holds: denied is 40 %`},
		{"one of two conditions holds", []string{limits, "--from", log, "--fail-if", "denied > 1", "--fail-if", "denied > 50%"}, 1, "denied is 40 %"},
		{"no condition holds", []string{limits, "--from", log, "--fail-if", "denied > 2"}, 0, "does not hold: denied is 2"},
		{"no log", []string{limits}, 2, "--from is missing"},
		{"no limits", []string{"--from", log}, 2, "got 0 arguments, want rls plan NEW… --from LOG"},
		{"missing log", []string{limits, "--from", log + "x"}, 2, "no such file"},
		{"mistake in the limits", []string{writeFile(t, "bad.yaml", "domian: x"), "--from", log}, 2, "new limits files have mistakes"},
		{"mistake in the log", []string{limits, "--from", limits}, 2, "new.yaml:2: got no record of a decision log"},
		{"mistake in the mapping", []string{limits, "--from", log, "--access-log", mapping}, 2, "mapping.yaml:1:1: unknown key start"},
		{"mistake in the condition", []string{limits, "--from", log, "--fail-if", "x"}, 2, "want FIGURE > NUMBER"},
		{"no key in the report", []string{limits, "--from", log, "--keys", "0"}, 2, "--keys: got 0, want at least 1"},
		{"access log as a decision log", []string{limits, "--from", accessLog}, 2, "for an access log, give --access-log"},
		{"decision log as an access log", []string{limits, "--from", log, "--access-log", wrongField}, 2, "leave --access-log out"},
		{"mapping with a wrong field", []string{limits, "--from", accessLog, "--access-log", wrongField, "--fail-if", "denied > 1%"}, 2, "no line has a value in the field usr of the mapping; did you mean user?"},
		{"mapping without a match", []string{limits, "--from", accessLog, "--access-log", otherKey}, 2, "no call meets a rule of the new limits; the first call is other=acme in domain shop"},
		{"empty log", []string{limits, "--from", writeFile(t, "empty.log", "")}, 2, "no call to replay"},
		{"shadow mode", []string{shadowLimits, "--from", log, "--fail-if", "denied > 0", "--fail-if", "newly_denied_keys > 0"}, 0, "would deny 2 without shadow mode"},
		{"unknown flag", []string{"--form", log}, 2, "unknown flag"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			out, errOut, code := rls(t, append([]string{"plan"}, test.args...)...)
			assert.Equal(t, test.code, code, out+errOut)
			assert.Contains(t, out+errOut, test.want)
		})
	}
}

func TestPlanWritesJSON(t *testing.T) {
	t.Parallel()
	out, _, code := rls(t, "plan", writeFile(t, "new.yaml", threePerYear), "--from", writeFile(t, "decisions.log", fiveCalls), "--json")
	require.Zero(t, code)
	var report limitsplan.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	assert.Equal(t, limitsplan.Counts{Total: 5, DeniedNow: 2, NewlyDenied: 2}, report.Calls)
}

func TestPlanReadsAccessLogsFromStandardInput(t *testing.T) {
	t.Parallel()
	mapping := writeFile(t, "mapping.yaml", "time: start\ndomain: shop\ndescriptors: [[{key: tenant, field: user}]]\n")
	cmd := command(t, nil, "plan", writeFile(t, "new.yaml", threePerYear), "--from", "-", "--access-log", mapping)
	cmd.Stdin = strings.NewReader(strings.Repeat(`{"start":1795168800,"user":"acme"}`+"\n", 4))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "newly denied              1 (25.00 %)")
}
