package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limitsplan"
)

// fiveCalls is a decision log of five calls of one tenant within a second.
var fiveCalls = strings.Repeat(`{"time":"2026-11-20T10:00:37.5Z","domain":"shop","descriptor":[{"key":"tenant","value":"acme"}],"descriptor_index":0,`+
	`"limit":"9 per year","code":"OK","overall_code":"OK","hits":1}`+"\n", 5)

func TestPlanHasAnExitCodeForEachResult(t *testing.T) {
	t.Parallel()
	limits, log := file(t, "new.yaml", threePerYear), file(t, "decisions.log", fiveCalls)
	mapping := file(t, "mapping.yaml", "start: t\n")
	for _, c := range []struct {
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
		{"no limits", []string{"--from", log}, 2, "requires at least 1 arg"},
		{"missing log", []string{limits, "--from", log + "x"}, 2, "no such file"},
		{"mistake in the limits", []string{file(t, "bad.yaml", "domian: x"), "--from", log}, 2, "new limits files have mistakes"},
		{"mistake in the log", []string{limits, "--from", limits}, 2, "new.yaml:2: got no record of a decision log"},
		{"mistake in the mapping", []string{limits, "--from", log, "--access-log", mapping}, 2, "mapping.yaml: unmarshal errors:\n  line 1: field start not found"},
		{"mistake in the condition", []string{limits, "--from", log, "--fail-if", "x"}, 2, "want FIGURE > NUMBER"},
		{"unknown flag", []string{"--form", log}, 2, "unknown flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out, errOut, code := rls(t, append([]string{"plan"}, c.args...)...)
			assert.Equal(t, c.code, code, out+errOut)
			assert.Contains(t, out+errOut, c.want)
		})
	}
}

func TestPlanWritesJSONAndHTML(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "plan.html")
	out, _, code := rls(t, "plan", file(t, "new.yaml", threePerYear), "--from", file(t, "decisions.log", fiveCalls), "--json", "--html", page)
	require.Zero(t, code)
	var report limitsplan.Report
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	assert.Equal(t, limitsplan.Counts{Total: 5, DeniedNow: 2, NewlyDenied: 2}, report.Calls)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Contains(t, string(html), "shop|tenant=acme")
}

func TestPlanReadsAccessLogsFromStandardInput(t *testing.T) {
	t.Parallel()
	mapping := file(t, "mapping.yaml", "time: start\ndomain: shop\ndescriptors: [[{key: tenant, field: user}]]\n")
	cmd := command(t, nil, "plan", file(t, "new.yaml", threePerYear), "--from", "-", "--access-log", mapping)
	cmd.Stdin = strings.NewReader(strings.Repeat(`{"start":1795168800,"user":"acme"}`+"\n", 4))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "newly denied              1 (25.00 %)")
}
