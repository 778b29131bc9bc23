package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

func TestCheckListsEveryProblemWithItsPosition(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "five.yaml", `domain: shop
descriptors:
  - key: tenant
    rate_limt: {unit: minute, requests_per_unit: 1}
  - key: path
    rate_limit: {unit: minutes, requests_per_unit: 1}
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: -1}
  - value: lost
  - key: login
    rate_limit: {unit: minute, requests_per_unit: 1, algorithm: sliding_windw}
`)
	out, errOut, code := rls(t, "check", path)
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	require.Len(t, lines, 5)
	for i, want := range []string{
		":4:5: shop > tenant: unknown key rate_limt; did you mean rate_limit?",
		":6:24: shop > path: unit: got minutes, want millisecond, second, minute, hour, day, week, month or year; did you mean minute?",
		":8:",
		":9:",
		":11:65: shop > login: algorithm: got sliding_windw, want fixed_window, sliding_window, sliding_log, token_bucket, first_hit_window or concurrency; did you mean sliding_window?",
	} {
		assert.Contains(t, lines[i], path+want)
	}
}

func TestCheckPrintsTreeOfLimits(t *testing.T) {
	t.Parallel()
	out, errOut, code := rls(t, "check", "--strict", "../../examples/limits.yaml")
	assert.Zero(t, code)
	assert.Empty(t, errOut)
	for _, want := range []string{"shop\n", "  remote_address: 5 per second (named ip-second) and 1000 per hour, sliding_window", "    path: 100 per minute", "path=/login: 3 per 15 minutes, sliding_log"} {
		assert.Contains(t, out, want)
	}
}

func TestCheckFailsOnWarningsOnlyIfStrict(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "limits.yaml", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: second, requests_per_unit: 1, shadow_mode: true}\n")
	_, errOut, code := rls(t, "check", path)
	assert.Zero(t, code)
	assert.Contains(t, errOut, "warning: "+path+":4:")
	_, errOut, code = rls(t, "check", "--strict", path)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, path+":4:")
}

func TestCheckWarnsAboutADomainWithoutRules(t *testing.T) {
	t.Parallel()
	_, errOut, code := rls(t, "check", "--strict", writeFile(t, "limits.yaml", "domain: d\n"))
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "limits.yaml:1: d: the domain has no rules, so nothing in it is limited")
}

func TestCheckRejectsDomainInTwoFilesWithoutMerge(t *testing.T) {
	t.Parallel()
	firstFile, secondFile := writeFile(t, "one.yaml", "domain: d\n"), writeFile(t, "two.yaml", "domain: d\n")
	_, errOut, code := rls(t, "check", firstFile, secondFile)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "two.yaml")
	assert.Contains(t, errOut, "to merge both, set MERGE_DOMAIN_CONFIG=true")
	_, _, code = rls(t, "check", "--merge", firstFile, secondFile)
	assert.Zero(t, code)
}

func TestCommandsMergeDomainsAsTheServiceDoes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"one.yaml", "two.yaml"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("domain: d\n"), 0o600))
	}
	for _, args := range [][]string{{"check", folder}, {"diff", folder, folder}, {"explain", "--limits", folder, "-d", "d", "a=b"}} {
		out, err := command(t, []string{"MERGE_DOMAIN_CONFIG=true"}, args...).CombinedOutput()
		assert.NoError(t, err, string(out))
	}
	assert.Error(t, command(t, []string{"MERGE_DOMAIN_CONFIG=true"}, "check", "--merge=false", folder).Run())
}

func TestCheckReportsProblemsOfAllPaths(t *testing.T) {
	t.Parallel()
	badFile := writeFile(t, "bad.yaml", "domain: d\ndescriptors:\n  - value: v\n")
	out, errOut, code := rls(t, "check", "/no/such/one", badFile, "/no/such/two", "../../examples/limits.yaml")
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	for _, want := range []string{"/no/such/one: ", "/no/such/two: ", badFile + ":3:"} {
		assert.Contains(t, errOut, want)
	}
	out, errOut, code = rls(t, "check", "/no/such/one", "../../examples/limits.yaml")
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	assert.Equal(t, "/no/such/one: no such file or directory\n", errOut)
}

func TestCheckSkipsDotFilesIfRequested(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"limits.yaml", ".old.yaml"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("domain: d\n"), 0o600))
	}
	_, errOut, code := rls(t, "check", dir)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, ".old.yaml")
	_, errOut, code = rls(t, "check", "--ignore-dot-files", dir)
	assert.Zero(t, code, errOut)
}

func TestCheckReadsStandardInput(t *testing.T) {
	t.Parallel()
	check := func(input string, args ...string) (output string, code int) {
		cmd := command(t, nil, append([]string{"check"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := check(threePerYear, "-")
	assert.Zero(t, code)
	assert.Contains(t, out, "tenant: 3 per year (named yearly)")
	out, code = check("domain: shop\ndescriptors: [{kay: k}]\n", "-")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "stdin:2:16: shop > descriptor 1: unknown key kay")
	out, code = check(threePerYear, "-", "-")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "the path - is given twice; want it once")
	out, code = check(strings.Repeat("#", 16<<20)+"\n", "-")
	assert.Equal(t, 1, code)
	assert.Contains(t, out, "stdin: file is 16777217 bytes; maximum is 16777216")
}

func TestCheckPrintsProblemsAndRulesAsJSON(t *testing.T) {
	t.Parallel()
	check := func(yaml string, args ...string) (c limitsCheck, path string, code int) {
		path = writeFile(t, "limits.yaml", yaml)
		out, errOut, code := rls(t, append([]string{"check", "--json", path}, args...)...)
		assert.Empty(t, errOut)
		require.NoError(t, json.Unmarshal([]byte(out), &c))
		return c, path, code
	}
	checkReport, path, code := check(threePerYear)
	assert.Zero(t, code)
	assert.Equal(t, limitsCheck{
		OK: true, Problems: []fields.Problem{}, Warnings: []fields.Problem{},
		Rules: []checkedRule{{"shop > tenant", path + ":4", "3 per year (named yearly)"}}, Limits: checkReport.Limits,
	}, checkReport)
	assert.NotEmpty(t, checkReport.Limits)

	checkReport, path, code = check("domain: d\ndescriptors: [{key: k, value: a, valu: b}]\n", "/no/such/file")
	assert.Equal(t, 1, code)
	assert.False(t, checkReport.OK)
	require.Len(t, checkReport.Problems, 2)
	assert.Equal(t, "/no/such/file: no such file or directory", checkReport.Problems[0].Reason)
	assert.Equal(t, path, checkReport.Problems[1].File)
	assert.Equal(t, "d > k=a", checkReport.Problems[1].Path)
	assert.Equal(t, [2]int{2, 34}, [2]int{checkReport.Problems[1].Line, checkReport.Problems[1].Column})

	const fileWithWarning = "domain: d\nunit: day\ndescriptors: [{key: k}]\n"
	checkReport, _, code = check(fileWithWarning)
	assert.Zero(t, code)
	assert.Len(t, checkReport.Warnings, 1)
	checkReport, _, code = check(fileWithWarning, "--strict")
	assert.Equal(t, 1, code)
	assert.False(t, checkReport.OK)
}

func TestHitRejectsBadArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no domain":       {[]string{"hit", "k=v"}, "--domain is missing; want the domain of the limits, such as -d shop"},
		"no descriptor":   {[]string{"hit", "-d", "d"}, "got 0 arguments, want rls hit -d DOMAIN KEY=VALUE"},
		"empty entry":     {[]string{"hit", "-d", "d", "a=1,,b=2"}, `"a=1,,b=2" is not a descriptor`},
		"comma in value":  {[]string{"hit", "-d", "d", "tenant=a,b"}, `entry 2 has no =; write each entry as KEY=VALUE, and a comma in a value as '\,'`},
		"missing CA file": {[]string{"hit", "-d", "d", "--tls", "--ca", "/no/such/file", "k=v"}, "/no/such/file"},
		"unknown command": {[]string{"hot"}, `unknown command "hot"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := rls(t, test.args...)
			assert.Equal(t, 1, code)
			assert.Contains(t, errOut, test.want)
		})
	}
	t.Run("no service", func(t *testing.T) {
		out, _, code := rls(t, "hit", "-a", "127.0.0.1:1", "-d", "d", "k=v")
		assert.Equal(t, 1, code)
		assert.Contains(t, out, "127.0.0.1:1: connection refused; set --addr to the gRPC listener of the service (GRPC_PORT)")
		assert.NotContains(t, out, "dial tcp")
		assert.Contains(t, out, "1 calls: 0 OK, 0 OVER_LIMIT, 1 errors")
	})
}

func TestHitPeeksWithZeroAndRefundsNegative(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	hit := func(hits string) string {
		out, _, _ := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "--hits", hits)
		return out
	}
	assert.Contains(t, hit("2"), "remaining 1")
	assert.Contains(t, hit("0"), "remaining 1")
	assert.Contains(t, hit("-1"), "remaining 2")
}

func TestHitPrintsJSON(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", "tenant=acme", "-n", "4", "--json")
	assert.EqualValues(t, exitOverLimit, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 4)
	var answer struct{ OverallCode string }
	require.NoError(t, json.Unmarshal([]byte(lines[3]), &answer))
	assert.Equal(t, "OVER_LIMIT", answer.OverallCode)
	out, _, _ = rls(t, "hit", "-a", "127.0.0.1:1", "-d", "shop", "tenant=acme", "--json")
	assert.Regexp(t, `^\{"error":"127.0.0.1:1: connection refused; .+"\}\n$`, out)
}

func TestHitAcceptsAnyValue(t *testing.T) {
	t.Parallel()
	service := start(t, nil, "--limits", writeFile(t, "limits.yaml", threePerYear))
	for _, descriptor := range []string{`tenant=a\,b`, `tenant=a=b`, `tenant=a\\b`, "tenant="} {
		out, _, code := rls(t, "hit", "-a", service.grpc, "-d", "shop", descriptor)
		assert.Zero(t, code)
		assert.Contains(t, out, "  "+descriptor+": OK 3 per year", "printed as written")
	}
}

func TestVersionPrintsVersion(t *testing.T) {
	t.Parallel()
	out, _, code := rls(t, "--version")
	assert.Zero(t, code)
	assert.Regexp(t, `^rls \S+\ncommit \S+\ndate \S+\ngo\S+ \w+/\w+\n$`, out)
}
