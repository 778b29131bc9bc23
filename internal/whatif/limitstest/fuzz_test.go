package limitstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/entrytext"
	"github.com/seed-81f232ab/rls/internal/testkit/limitsgen"
)

// maxFuzzedRequests bounds the requests of a fuzzed test file, so that one input takes milliseconds.
const maxFuzzedRequests = 300

// runFiles runs a test file and writes its report in all forms.
func runFiles(t require.TestingT, limits, tests string) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	if err != nil {
		return
	}
	file, err := Parse("t_test.yaml", []byte(tests))
	if err != nil {
		return
	}
	requests := 0
	for _, test := range file.Tests {
		for _, r := range test.Requests {
			requests += r.Repetitions
		}
	}
	if requests > maxFuzzedRequests {
		return
	}
	var coverage Coverage
	r := NewReport([]FileReport{file.Run(context.Background(), descriptors.Compile(set), &coverage)}, &coverage)
	assert.Equal(t, len(file.Tests), r.Passed+r.Failed)
	var text bytes.Buffer
	require.NoError(t, r.WriteText(&text, true))
	_, err = json.Marshal(r)
	require.NoError(t, err)
}

// FuzzRun runs test files of the fuzzer.
func FuzzRun(f *testing.F) {
	limits, err := os.ReadFile("../../../examples/limits.yaml")
	require.NoError(f, err)
	tests, err := os.ReadFile("../../../examples/limits_test.yaml")
	require.NoError(f, err)
	f.Add(string(limits), string(tests))
	f.Add(testedLimits, testFile("settings: {all_or_none: true, quota_mode: true}", `
  - {descriptors: [fixed=a, {descriptor: kept=a, hits: -1}], want: {statuses: [{code: OK, rule: none}, {limit: none}]}}
  - {descriptor: two=a, at: 1d, repeat: 3, every: 1ms, want: {admitted: 1, body: none, headers: {ratelimit-limit: "2"}, reset: 1s}}`))
	f.Fuzz(func(t *testing.T, limits, tests string) { runFiles(t, limits, tests) })
}

// FuzzDrawnRun runs drawn test files for drawn limits.
func FuzzDrawnRun(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { runFiles(t, limitsgen.File(t), drawTests(t)) }))
}

func TestEachTestOfARandomFilePassesOrFails(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { runFiles(t, limitsgen.File(t), drawTests(t)) })
}

// drawTests draws a test file.
func drawTests(t *rapid.T) string {
	var b strings.Builder
	fmt.Fprintf(&b, "limits: limits.yaml\ndomain: %s\nsettings: {shadow_mode: %t, quota_mode: %t, all_or_none: %t}\ntests:\n", limitsgen.Domain,
		rapid.Bool().Draw(t, "shadow mode"), rapid.Bool().Draw(t, "quota mode"), rapid.Bool().Draw(t, "all or none"))
	for i := range rapid.IntRange(1, 2).Draw(t, "tests") {
		fmt.Fprintf(&b, "- name: test %d\n  requests:\n", i)
		for range rapid.IntRange(1, 6).Draw(t, "requests") {
			b.WriteString("  - " + drawRequest(t) + "\n")
		}
	}
	return b.String()
}

// drawRequest draws a request of a test file. Its wanted answer is usually wrong.
func drawRequest(t *rapid.T) string {
	drawText := func(label string, texts ...string) string { return rapid.SampledFrom(texts).Draw(t, label) }
	var targets, statuses []string
	for range rapid.IntRange(1, 3).Draw(t, "descriptors") {
		targets = append(targets, fmt.Sprintf("{descriptor: %q, hits: %d%s}", entrytext.Format(limitsgen.Entries(t)),
			limitsgen.Hits(t), drawText("limit", "", "", "", ", limit: 2/minute")))
		statuses = append(statuses, "{code: "+drawText("code", "OK", "OVER_LIMIT")+drawText("status", "", ", rule: none", ", denied_in_shadow: true", ", limit: unlimited, remaining: 1, reset: 1ms")+"}")
	}
	want := drawText("want", "code: OK", "code: OVER_LIMIT", "error: x", "admitted: 1", "body: none, headers: {Retry-After: 1}", "statuses: ["+strings.Join(statuses, ", ")+"]")
	return fmt.Sprintf("{descriptors: [%s]%s%s, want: {%s}}", strings.Join(targets, ", "), drawText("domain", "", "", "", ", domain: other"),
		drawText("repeat", "", ", repeat: 2", ", repeat: 3, every: 10s", ", repeat: 2, every: 400d"), want)
}
