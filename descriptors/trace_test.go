package descriptors

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTraceNamesDifferenceOfEachCandidate(t *testing.T) {
	for name, c := range map[string]struct {
		descriptor, key, value string
		want                   Difference
	}{
		"other case of the key":      {"key: Tenant", "tenant", "a", OtherCase},
		"other case of a pattern":    {"key: tenant, value: 'Acme*'", "tenant", "acme1", OtherCase},
		"space in the request":       {"key: tenant, value: acme", "tenant", "acme ", ExtraSpace},
		"space in the file":          {"key: tenant, value: ' acme'", "tenant", "acme", ExtraSpace},
		"joined text is the same":    {"key: a, value: b_c", "a_b", "c", JoinedText},
		"start of a pattern":         {"key: path, value: '/api/*/x'", "path", "/api/y", PartOfPattern},
		"end of a pattern":           {"key: path, value: 'a*.html'", "path", "b.html", PartOfPattern},
		"pattern without last slash": {"key: path, value: '/api/*'", "path", "/api", PartOfPattern},
		"similar value":              {"key: tenant, value: acme", "tenant", "acne", SimilarValue},
		"similar key":                {"key: tenant", "tenat", "acme", SimilarKey},
		"similar key, other value":   {"key: tenant, value: big", "tenat", "acme", Unrelated},
		"other value":                {"key: tenant, value: big", "tenant", "acme", OtherValue},
		"short values":               {"key: k, value: a", "k", "b", OtherValue},
		"unrelated entry":            {"key: tenant", "path", "/", Unrelated},

		"joined text without a value in the request": {"key: a, value: b_", "a_b", "", Unrelated},
		"joined text without a value in the file":    {"key: a_b", "a", "b_", Unrelated},
		"joined text of a pattern in the key":        {"key: 'a*', value: b_c", "a*_b", "c", OtherValue},
		"joined text of a pattern in the value":      {"key: a, value: 'b_*'", "a_b", "*", Unrelated},
		"start of a pattern of another key":          {"key: path, value: '/api/*'", "other", "/api", Unrelated},
		"start of a value":                           {"key: tenant, value: acme-large", "tenant", "acme-l", OtherValue},
		"no start of a pattern":                      {"key: path, value: '*.html'", "path", "x.css", OtherValue},
		"no end of a pattern":                        {"key: path, value: 'api*'", "path", "xyz", OtherValue},
		"no value of a pattern":                      {"key: path, value: 'ab*'", "path", "", OtherValue},
		"pattern without its last two characters":    {"key: path, value: '/api/v*'", "path", "/api", PartOfPattern},
		"pattern without its last three characters":  {"key: path, value: '/api/v1*'", "path", "/api", OtherValue},
		"long similar values":                        {"key: k, value: " + strings.Repeat("a", 63) + "b", "k", strings.Repeat("a", 64), SimilarValue},
		"longer similar values":                      {"key: k, value: " + strings.Repeat("a", 64) + "b", "k", strings.Repeat("a", 64), OtherValue},
		"longer similar values of a request":         {"key: k, value: " + strings.Repeat("a", 63) + "b", "k", strings.Repeat("a", 65), OtherValue},
	} {
		t.Run(name, func(t *testing.T) {
			d := compileFiles(t, "domain: d\ndescriptors: [{"+c.descriptor+", "+tenAMinute+"}]").Domain("d")
			step := d.TraceWithBudget(new(Budget), entries(c.key, c.value)).Steps[0]
			require.Nil(t, step.Winner)
			if c.want == Unrelated {
				assert.Empty(t, step.Candidates)
				return
			}
			require.Len(t, step.Candidates, 1)
			assert.Equal(t, NoMatch, step.Candidates[0].Kind)
			assert.Equal(t, c.want.String(), step.Candidates[0].Difference.String())
		})
	}
}

func TestTraceListsFewCandidatesBesideTheWinner(t *testing.T) {
	var patterns, values, similarValues strings.Builder
	for i := range 30 {
		fmt.Fprintf(&patterns, "- {key: k, value: '%s*', DAY}\n", strings.Repeat("a", i+1))
		fmt.Fprintf(&values, "- {key: k, value: other-%d-%s, DAY}\n", i, strings.Repeat("b", i))
		fmt.Fprintf(&similarValues, "- {key: k, value: tenant-%02d, DAY}\n", i)
	}
	winner := "- {key: k, value: " + strings.Repeat("a", 40) + ", DAY}\n"
	traceStep := func(descriptors, value string) Step {
		d := compileFiles(t, expandDay("domain: d\ndescriptors:\n"+descriptors)).Domain("d")
		return d.TraceWithBudget(new(Budget), entries("k", value)).Steps[0]
	}
	countCandidates := func(s Step, kind MatchKind, difference Difference) (n int) {
		for _, c := range s.Candidates {
			if c.Kind == kind && c.Difference == difference {
				n++
			}
		}
		return n
	}
	for _, descriptors := range []string{patterns.String() + winner, winner + patterns.String()} {
		s := traceStep(descriptors, strings.Repeat("a", 40))
		require.NotNil(t, s.Winner)
		assert.Equal(t, ExactMatch, s.Winner.Kind)
		assert.Equal(t, maxCandidates, countCandidates(s, PatternMatch, Unrelated))
		assert.Len(t, s.Candidates, maxCandidates+1)
	}
	s := traceStep(values.String(), "unlike")
	assert.Equal(t, 30, s.OtherValueCount)
	assert.Equal(t, maxOtherValues, countCandidates(s, NoMatch, OtherValue))
	s = traceStep(winner+values.String(), strings.Repeat("a", 40))
	assert.Equal(t, 30, s.OtherValueCount)
	assert.Len(t, s.Candidates, 1, "with a winner, other values are only counted")
	s = traceStep(similarValues.String(), "tenant-xx")
	assert.Equal(t, maxOtherValues, countCandidates(s, NoMatch, SimilarValue))
	assert.Equal(t, 27, s.OtherValueCount)
	s = traceStep(similarValues.String(), "tenant-07")
	assert.Len(t, s.Candidates, 1, "a similar value is no misspelling of another exact value")
}

func TestTraceNamesTheKindOfEachMatch(t *testing.T) {
	for _, c := range []struct {
		descriptor, key, value string
		want                   MatchKind
	}{
		{"key: k, value: v", "k", "v", ExactMatch},
		{"key: k, value: v", "l", "v", NoMatch},
		{"key: k", "k", "", AnyValueMatch},
		{"key: k", "k", "v", AnyValueMatch},
		{"key: k, value: 'v*'", "k", "vw", PatternMatch},
		{"key: k, value: 'v*'", "k", "v*", ExactMatch},
		{"key: k, value: 'v*'", "k", "x", NoMatch},
		{"key: 'k*'", "kl", "", PatternMatch},
		{"key: 'k*'", "kl", "v", PatternMatch},
		{"key: 'k*', value: v", "kl", "v", PatternMatch},
		{"key: 'k*', value: v", "kl", "w", NoMatch},
		{"key: 'k*', value: 'v*'", "kl", "vw", PatternMatch},
		{"key: 'k*', value: 'v*'", "l", "vw", NoMatch},
		{"key: k, prefix: v", "k", "vw", ConditionMatch},
	} {
		d := compileFiles(t, expandDay("domain: d\ndescriptors: [{"+c.descriptor+", DAY}]")).Domain("d")
		got := NoMatch
		if step := d.TraceWithBudget(new(Budget), entries(c.key, c.value)).Steps[0]; step.Winner != nil {
			got = step.Winner.Kind
		}
		assert.Equal(t, c.want.String(), got.String(), "%s: %s=%s", c.descriptor, c.key, c.value)
	}
}

func TestLabelIsQuotedIfATerminalHidesAPart(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"service", "checkout", "service=checkout"},
		{"k", "", "k="},
		{" k", "v", `" k=v"`},
		{"k", "v ", `"k=v "`},
		{"k\n", "v\n", `"k\n=v\n"`},
	} {
		assert.Equal(t, c.want, EntryLabel(entries(c.key, c.value)[0]))
	}
}

func TestTraceIsBoundedInLargeDomains(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "- {key: Path, value: /%04d, descriptors: [{key: user, %s}]}\n", i, tenAMinute)
		fmt.Fprintf(&b, "- {key: path, value: /%04d}\n", i)
	}
	d := compileFiles(t, b.String()).Domain("d")
	trace := d.TraceWithBudget(new(Budget), entries("path", "/0500", "user", "u", "more", "m"))
	assert.Equal(t, "/0500", trace.Steps[0].Winner.Value)
	assert.Equal(t, 4999, trace.Steps[0].OtherValueCount)
	assert.LessOrEqual(t, len(trace.Steps[0].Candidates), maxCandidates+1)

	assert.Empty(t, d.TraceWithBudget(new(Budget), nil).Steps)
	deepTrace := d.TraceWithBudget(new(Budget), entries(strings.Fields(strings.Repeat("path /0500 ", 1000))...))
	assert.Len(t, deepTrace.Steps, 1)
}
