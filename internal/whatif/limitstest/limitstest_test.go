package limitstest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

const testedLimits = `domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: first, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: first_hit_window}}
  - {key: sliding, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: token_bucket, burst: 4}}
  - key: two
    rate_limits: [{unit: second, requests_per_unit: 2, name: short}, {unit: hour, requests_per_unit: 3}]
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: bounded, max_hits: 3, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: told, denial: {message: Too many, headers: {x-reason: plan}}, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: kept, refunds: false, rate_limit: {unit: minute, requests_per_unit: 1}}
`

// runTests runs the requests of one test.
func runTests(t *testing.T, settings, requests string) *Report {
	t.Helper()
	f, err := Parse("t_test.yaml", []byte(testFile(settings, requests)))
	require.NoError(t, err)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(testedLimits)}}, limitsfile.Options{})
	require.NoError(t, err)
	var coverage Coverage
	return NewReport([]FileReport{f.Run(t.Context(), descriptors.Compile(set), &coverage)}, &coverage)
}

func testFile(settings, requests string) string {
	return "limits: limits.yaml\ndomain: shop\n" + settings + "\ntests:\n- name: one\n  requests:\n" + requests
}

// mismatches returns the mismatches of r, one on each line.
func mismatches(r *Report) string {
	var lines []string
	for _, f := range r.Files[0].Tests[0].Failures {
		for _, m := range f.Mismatches {
			lines = append(lines, fmt.Sprintf("%d: %s: %s, not %s", f.Line, m.Field, m.Got, m.Want))
		}
	}
	return strings.Join(lines, "\n")
}

func TestReportHasTheWrongValuesOfAnswers(t *testing.T) {
	t.Parallel()
	// The first request is in line 7 of its file.
	for _, test := range []struct{ name, settings, requests, want string }{
		{"fixed_window ends with its window", "", `
  - {descriptor: fixed=a, at: 59s, repeat: 3, want: {admitted: 2, reset: 1s}}
  - {descriptor: fixed=a, at: 1m, want: {code: OK, remaining: 1, reset: 1m}}`, ""},
		{"first_hit_window starts with its first hit", "", `
  - {descriptor: first=a, at: 59s, repeat: 3, want: {admitted: 2, reset: 1m}}
  - {descriptor: first=a, at: 1m58s, want: {code: OVER_LIMIT, reset: 1s}}
  - {descriptor: first=a, at: 1m59s, want: {code: OK}}`, ""},
		{"sliding_window counts a part of the window before", "", `
  - {descriptor: sliding=a, at: 59s, repeat: 2, want: {code: OK}}
  - {descriptor: sliding=a, at: 61s, want: {code: OVER_LIMIT}}`, ""},
		{"sliding_log is exact", "", `
  - {descriptor: log=a, repeat: 2, every: 30s, want: {code: OK}}
  - {descriptor: log=a, at: 59999ms, want: {code: OVER_LIMIT, reset: 1ms}}
  - {descriptor: log=a, at: 60s, want: {code: OK, remaining: 0}}`, ""},
		{"token_bucket refills", "", `
  - {descriptor: bucket=a, hits: 4, want: {code: OK, remaining: 0}}
  - {descriptor: bucket=a, at: 29s, want: {code: OVER_LIMIT}}
  - {descriptor: bucket=a, at: 30s, want: {code: OK}}`, ""},
		{"the tighter of several limits is described", "", `
  - {descriptor: two=a, repeat: 2, want: {code: OK, limit: short, remaining: 0}}
  - {descriptor: two=a, at: 1s, want: {code: OK, limit: 3 per hour}}
  - {descriptor: two=a, at: 2s, want: {code: OVER_LIMIT, limit: short}}`, "9: limit: 3 per hour, not short"},
		{"a peek charges nothing, and a refund gives hits back", "", `
  - {descriptor: fixed=a, hits: 2, want: {remaining: 0}}
  - {descriptor: fixed=a, hits: 0, want: {remaining: 0}}
  - {descriptor: fixed=a, hits: -1, want: {remaining: 1}}
  - {descriptor: kept=a, hits: -1, want: {error: "refunds: false"}}`, ""},
		{"a call above max_hits is denied and charges nothing", "", `
  - {descriptor: bounded=a, hits: 4, want: {code: OVER_LIMIT, remaining: 5}}
  - {descriptor: bounded=a, hits: 3, want: {code: OK, remaining: 2}}`, ""},
		{"a rule in shadow mode denies nothing", "", `
  - {descriptor: shadow=a, want: {code: OK, denied_in_shadow: false}}
  - {descriptor: shadow=a, want: {code: OK, denied_in_shadow: false}}`, "8: denied_in_shadow: true, not false"},
		{"quota mode denies only if all rules are over their limits", "", `
  - {descriptor: quota=a, want: {code: OK}}
  - {descriptors: [quota=a, quota=b], want: {code: OK, statuses: [{code: OVER_LIMIT}, {code: OK}]}}
  - {descriptors: [quota=a, quota=b], want: {code: OVER_LIMIT}}`, ""},
		{"shadow mode of the service denies nothing", "settings: {shadow_mode: true}", `
  - {descriptor: fixed=a, repeat: 9, want: {code: OK}}`, ""},
		{"all-or-none charges all limits or none", "settings: {all_or_none: true}", `
  - {descriptors: [fixed=a, kept=a], want: {code: OK, statuses: [{remaining: 1}, {remaining: 0}]}}
  - {descriptors: [fixed=a, kept=a], repeat: 5, want: {code: OVER_LIMIT, statuses: [{remaining: 1}, {remaining: 0}]}}`, ""},
		{"a limit in the request replaces the rule", "", `
  - {descriptor: any=a, limit: 3/hour, repeat: 4, want: {admitted: 3, limit: 3 per hour}}
  - {descriptors: [any=a, {descriptor: any=b, limit: 1/day, hits: 2}], want: {code: OVER_LIMIT, statuses: [{rule: none}, {code: OVER_LIMIT}]}}`, ""},
		{
			"names of headers ignore upper and lower case", "", `
  - {descriptor: fixed=a, want: {headers: {RateLimit-Limit: 2, ratelimit-remaining: 2, x-other: 1}}}`,
			"7: header ratelimit-remaining: 1, not 2\n7: header x-other: none, not 1",
		},
		{
			"body and headers of a denial", "", `
  - {descriptor: told=a, want: {code: OVER_LIMIT, body: Too many, headers: {x-reason: plan}}}
  - {descriptor: told=a, want: {body: Too few, headers: {x-reason: other}}}
  - {descriptor: fixed=a, want: {body: none}}
  - {descriptor: fixed=a, want: {body: Too many}}`,
			"8: body: Too many, not Too few\n8: header x-reason: plan, not other\n10: body: none, not Too many",
		},
		{
			"path of the rule", "", `
  - {descriptor: fixed=a, want: {rule: shop > fixde}}
  - {descriptor: fixed=a, want: {rule: shop > free}}
  - {descriptor: other=a, want: {rule: none}}`,
			"7: rule: shop > fixed, not shop > fixde (no rule has this path; did you mean shop > fixed?)\n8: rule: shop > fixed, not shop > free",
		},
		{"an unknown domain has no rule", "", `
  - {descriptor: fixed=a, domain: shopp, want: {code: OVER_LIMIT, rule: none}}`, "7: code: OK, not OVER_LIMIT"},
		{"a wanted error that does not happen is reported", "", `
  - {descriptor: fixed=a, want: {error: refunds}}`, "7: error: none, not refunds"},
		{"only the first wrong repetition is reported", "", `
  - {descriptor: fixed=a, repeat: 5, want: {code: OK}}`, "7: code: OVER_LIMIT, not OK"},
		{"requests after a failure are compared too", "", `
  - {descriptor: fixed=a, repeat: 5, want: {code: OK}}
  - {descriptor: fixed=a, want: {code: OVER_LIMIT, remaining: 7}}`, "7: code: OVER_LIMIT, not OK\n8: remaining: 0, not 7"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			report := runTests(t, test.settings, strings.TrimPrefix(test.requests, "\n"))
			assert.Equal(t, test.want, mismatches(report))
			assert.Equal(t, test.want == "", report.Passed == 1)
		})
	}
}

func TestEachTestStartsWithEmptyCounters(t *testing.T) {
	t.Parallel()
	report := runTests(t, "", `  - {descriptor: kept=a, want: {code: OK}}
- name: two
  requests: [{descriptor: kept=a, want: {code: OK}}]`)
	assert.Equal(t, 2, report.Passed)
}

func TestExplanationShowsCountersJustBeforeTheFailure(t *testing.T) {
	t.Parallel()
	report := runTests(t, "", "  - {descriptor: log=a, repeat: 5, every: 10s, want: {code: OK}}")
	var text bytes.Buffer
	require.NoError(t, report.WriteText(&text, false))
	for _, want := range []string{
		"FAIL  t_test.yaml:5: one\n",
		"  t_test.yaml:7: request log=a in domain shop, at 2026-01-01 00:00:20, 3 of 5\n    code: got OVER_LIMIT, want OK\n",
		"rule: shop > log (limits.yaml:6)", "spent: 2 of 2, 0 left", "next hit: OVER_LIMIT", "passes again at 00:01:00 UTC (in 40s)",
		"FAIL  t_test.yaml: 0 of 1 tests passed\n",
	} {
		assert.Contains(t, text.String(), want)
	}
}

func TestExplanationOfARejectedRequestNamesTheReason(t *testing.T) {
	t.Parallel()
	report := runTests(t, "", "  - {descriptors: [fixed=a, kept=a], hits: -1, want: {code: OK}}")
	var text bytes.Buffer
	require.NoError(t, report.WriteText(&text, false))
	for _, want := range []string{
		"error: got descriptors[1]: rule shop > kept has refunds: false, want none\n",
		"next answer: error: descriptors[1]: rule shop > kept has refunds: false\n",
		"not counted: the service rejects the request\n",
	} {
		assert.Contains(t, text.String(), want)
	}
	assert.NotContains(t, text.String(), "next hit")
}

func TestCoverageListsRulesThatNoTestMeets(t *testing.T) {
	t.Parallel()
	report := runTests(t, "", "  - {descriptors: [log=a, fixed=b, free=c], want: {code: OK}}\n  - {descriptor: two=a, limit: 1/day, want: {code: OK}}")
	assert.Equal(t, 12, report.Coverage.Rules)
	assert.Equal(t, 3, report.Coverage.MetRules)
	assert.InDelta(t, 25.0, report.Coverage.Percent, 0.01)
	assert.Contains(t, report.Coverage.UnmetRules, RulePlace{"shop > two", "limits.yaml:8"}, "a request with its own limit does not meet the rule")
	var text bytes.Buffer
	require.NoError(t, report.WriteText(&text, true))
	assert.Contains(t, text.String(), "ok    t_test.yaml:5: one\n")
	assert.Contains(t, text.String(), "coverage: 3 of 12 rules (25.0 %)\n  no test meets shop > first (limits.yaml:4)\n")
}

func TestProblemsHaveTheirPlaceAndRemedy(t *testing.T) {
	t.Parallel()
	fileWithRequest := func(request string) string { return testFile("", "  - "+request) }
	for _, test := range []struct{ name, yaml, want string }{
		{"empty file", "", "f: file is empty: limits and tests are missing"},
		{"no YAML", "a: [", "f:1:4: not valid YAML: [ opens here and is not closed; want ]"},
		{"a list", "[]", "f:1:1: test file: got a list, want a mapping with limits, merge, "},
		{"no limits", "tests: [{name: a, requests: [{descriptor: a=b, domain: d, want: {code: OK}}]}]", "f:1:1: limits is missing; write limits: and the path"},
		{"no tests", "limits: a", "f:1:1: tests is missing"},
		{"empty tests", "limits: a\ntests: []", "f:2:8: tests is empty"},
		{"second document", "limits: a\ntests: []\n---\na", "f:3:1: file has a second YAML document"},
		{"unknown key", "limit: a", "f:1:1: unknown key limit in test file; want limits, "},
		{"key given twice", "limits: a\nlimits: b", "f:2:1: limits is given twice"},
		{"key without a value", "limits:\n", "f:1:8: limits has no value"},
		{"two tests with the same name", testFile("", "  - {descriptor: a=b, want: {code: OK}}\n- name: one\n  requests: [{descriptor: a=b, want: {code: OK}}]"), "f:8:3: one: the test in line 5 has the same name"},
		{"bad start", "start: yesterday", "f:1:8: start: got yesterday, want a time such as 2026-01-01T09:30:00Z"},
		{"bad setting", "settings: {shadow_mode: 1}", "f:1:25: shadow_mode: got 1, want true or false"},
		{"no want", fileWithRequest("{descriptor: a=b}"), "f:7:5: one: want is missing"},
		{"empty want", fileWithRequest("{descriptor: a=b, want: {}}"), "f:7:29: one: want is empty"},
		{"no descriptor", fileWithRequest("{want: {code: OK}}"), "f:7:5: one: descriptor is missing"},
		{"bad descriptor", fileWithRequest("{descriptor: a, want: {code: OK}}"), "f:7:18: one: \"a\" is not a descriptor: entry 1 has no ="},
		{"bad limit", fileWithRequest("{descriptor: a=b, limit: 5/fortnight, want: {code: OK}}"), "f:7:30: one: limit: got 5/fortnight, want NUMBER/UNIT"},
		{"descriptor beside descriptors", fileWithRequest("{descriptor: a=b, descriptors: [a=b], want: {code: OK}}"), "f:7:36: one: descriptor and descriptors are both given"},
		{"bad code", fileWithRequest("{descriptor: a=b, want: {code: OVERLIMIT}}"), "f:7:36: one: code: got OVERLIMIT, want OK or OVER_LIMIT"},
		{"too many repetitions", fileWithRequest("{descriptor: a=b, repeat: 100001, want: {code: OK}}"), "f:7:31: one: repeat: got 100001, want a whole number from 1 to 100000"},
		{"every without repeat", fileWithRequest("{descriptor: a=b, every: 1s, want: {code: OK}}"), "f:7:30: one: every has no meaning without repeat"},
		{"negative time", fileWithRequest("{descriptor: a=b, at: -1s, want: {code: OK}}"), "f:7:27: one: at: got -1s, want a duration such as 500ms"},
		{"request before the previous request", fileWithRequest("{descriptor: a=b, at: 3s, want: {code: OK}}\n  - {descriptor: a=b, at: 2s, want: {code: OK}}"), "f:8:27: one: at: got 2s, which is before the request above (3s)"},
		{"time after the last year", fileWithRequest("{descriptor: a=b, repeat: 100000, every: 9000d, want: {code: OK}}"), "f:7:5: one: repeat and every: the last request is after the year 2199"},
		{"fewer statuses than descriptors", fileWithRequest("{descriptors: [a=b, c=d], want: {statuses: [{code: OK}]}}"), "f:7:48: one: statuses: got 1 items, want one for each of the 2 descriptors"},
		{"field of a status for several descriptors", fileWithRequest("{descriptors: [a=b, c=d], want: {remaining: 1}}"), "f:7:37: one: the request has 2 descriptors; write statuses:"},
		{"error beside a code", fileWithRequest("{descriptor: a=b, want: {error: a, code: OK}}"), "f:7:46: one: code has no meaning beside error"},
		{"fraction of a hit", fileWithRequest("{descriptor: a=b, hits: 1.5, want: {code: OK}}"), "f:7:29: one: hits: got 1.5, want a whole number"},
		{"alias of itself", "limits: &a [*a]", "f:1:13: alias *a is inside its own anchor"},
		{"too many requests", fileWithRequest(strings.Repeat("{descriptor: a=b, repeat: 100000, want: {code: OK}}\n  - ", 11) + "{descriptor: a=b, want: {code: OK}}"), "file has more than 1000000 requests"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("f", []byte(test.yaml))
			assert.ErrorContains(t, err, test.want)
		})
	}
	_, err := Parse("f", make([]byte, MaxFileBytes+1))
	assert.ErrorContains(t, err, "file is 16777217 bytes; maximum is 16777216")
}

func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../../../examples/limits_test.yaml")
	require.NoError(f, err)
	f.Add(example)
	f.Add([]byte(testFile("start: 2030-01-01T00:00:00Z", "  - {descriptor: fixed=a, at: 1d2h, repeat: 3, every: 1s, want: {headers: {a: 1}}}")))
	f.Add([]byte("a: &a [*a, *a]\n<<: *a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err != nil {
			assert.Nil(t, file)
			assert.NotEmpty(t, err.Error())
			return
		}
		assert.NotEmpty(t, file.Limits)
		for _, test := range file.Tests {
			assert.NotEmpty(t, test.Requests)
			previousTime := minTime
			for _, r := range test.Requests {
				assert.NotEmpty(t, r.Message.Descriptors)
				assert.False(t, r.FirstTime.Before(previousTime) || r.sendTime(r.Repetitions-1).After(maxTime))
				previousTime = r.sendTime(r.Repetitions - 1)
			}
		}
	})
}
