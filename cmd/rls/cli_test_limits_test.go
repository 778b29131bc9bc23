package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/whatif/limitstest"
)

// testFolder returns a folder with the limits threePerYear and a test file.
func testFolder(t *testing.T, tests string) string {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "limits.yaml"), []byte(threePerYear), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "limits_test.yaml"), []byte("limits: limits.yaml\ndomain: shop\ntests: "+tests+"\n"), 0o600))
	return dir
}

func TestTestsOfExampleLimitsMeetEveryRule(t *testing.T) {
	t.Parallel()
	out, errOut, code := rls(t, "test", "../../examples/limits_test.yaml", "--coverage-min", "100")
	assert.Zero(t, code, out+errOut)
	assert.Contains(t, out, "(100.0 %)")
	assert.Empty(t, errOut)
}

func TestWrongNumberFailsWithExplanation(t *testing.T) {
	t.Parallel()
	dir := testFolder(t, "[{name: three, requests: [{descriptor: tenant=a, repeat: 4, want: {admitted: 4}}]}]")
	out, errOut, code := rls(t, "test", dir)
	assert.Equal(t, 1, code)
	assert.Empty(t, errOut)
	for _, want := range []string{"limits_test.yaml:3: three\n", "admitted: got 3, want 4", "spent: 3 of 3, 0 left", "next hit: OVER_LIMIT"} {
		assert.Contains(t, out, want)
	}
}

func TestReportOfTestsIsJSON(t *testing.T) {
	t.Parallel()
	dir := testFolder(t, "[{name: one, requests: [{descriptor: tenant=a, want: {code: OK}}]}, {name: two, requests: [{descriptor: tenant=a, want: {remaining: 0}}]}]")
	out, _, code := rls(t, "test", dir, "--json")
	assert.Equal(t, 1, code)
	var r limitstest.Report
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	assert.Equal(t, 1, r.Passed)
	assert.Equal(t, 1, r.Failed)
	assert.Equal(t, limitstest.Mismatch{Field: "remaining", Got: "2", Want: "0"}, r.Files[0].Tests[1].Failures[0].Mismatches[0])
	assert.NotNil(t, r.Files[0].Tests[1].Failures[0].Explanation)
}

func TestLowCoverageFailsTests(t *testing.T) {
	t.Parallel()
	dir := testFolder(t, "[{name: one, requests: [{descriptor: other=a, want: {rule: none}}]}]")
	_, _, code := rls(t, "test", dir)
	assert.Zero(t, code)
	out, errOut, code := rls(t, "test", dir, "--coverage-min", "1")
	assert.Equal(t, 1, code)
	assert.Equal(t, "coverage: got 0.0 %, want at least 1 %\n", errOut)
	assert.Contains(t, out, "no test meets shop > tenant (")
}

func TestMistakesInTestFilesHaveTheirOwnExitCode(t *testing.T) {
	t.Parallel()
	goodFile := filepath.Join(testFolder(t, "[{name: one, requests: [{descriptor: tenant=a, want: {code: OK}}]}]"), "limits_test.yaml")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"mistake in the tests":  {[]string{testFolder(t, "[{nam: x}]")}, "limits_test.yaml:3:10: unknown key nam in test"},
		"missing limits":        {[]string{writeFile(t, "a_test.yaml", "limits: none.yaml\ndomain: d\ntests: [{name: x, requests: [{descriptor: a=b, want: {code: OK}}]}]")}, "none.yaml: no such file"},
		"mistake in the limits": {[]string{writeFile(t, "a_test.yaml", "limits: a_test.yaml\ndomain: d\ntests: [{name: x, requests: [{descriptor: a=b, want: {code: OK}}]}]")}, "a_test.yaml:1:1: d: unknown key limits"},
		"no file":               {[]string{"/no/such"}, "rls: /no/such: no such file"},
		"no test file":          {[]string{t.TempDir()}, "got no test file, want a file *_test.yaml"},
		"coverage above 100":    {[]string{"--coverage-min", "101", "x"}, "rls: --coverage-min: got 101, want a percentage from 0 to 100"},
		"no path":               {nil, "got 0 arguments, want rls test PATH…"},
		"unknown flag":          {[]string{goodFile, "--covrage"}, "unknown flag: --covrage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errOut, code := rls(t, append([]string{"test"}, test.args...)...)
			assert.Equal(t, 2, code)
			assert.Contains(t, out+errOut, test.want)
		})
	}
}
