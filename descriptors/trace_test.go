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
		"divided in another place":   {"key: a, value: b_c", "a_b", "c", JoinedText},
		"start of a pattern":         {"key: path, value: '/api/*/x'", "path", "/api/y", PartOfPattern},
		"end of a pattern":           {"key: path, value: 'a*.html'", "path", "b.html", PartOfPattern},
		"pattern without last slash": {"key: path, value: '/api/*'", "path", "/api", PartOfPattern},
		"similar value":              {"key: tenant, value: acme", "tenant", "acne", SimilarValue},
		"similar key":                {"key: tenant", "tenat", "acme", SimilarKey},
		"similar key, other value":   {"key: tenant, value: big", "tenat", "acme", Unrelated},
		"other value":                {"key: tenant, value: big", "tenant", "acme", OtherValue},
		"short values":               {"key: k, value: a", "k", "b", OtherValue},
		"nothing alike":              {"key: tenant", "path", "/", Unrelated},
	} {
		t.Run(name, func(t *testing.T) {
			d := compileFiles(t, "domain: d\ndescriptors: [{"+c.descriptor+", "+tenAMinute+"}]").Domain("d")
			step := d.Trace(entries(c.key, c.value)).Steps[0]
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

func TestTraceIsBoundedInLargeDomains(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 5000 {
		fmt.Fprintf(&b, "- {key: Path, value: /%04d, descriptors: [{key: user, %s}]}\n", i, tenAMinute)
		fmt.Fprintf(&b, "- {key: path, value: /%04d}\n", i)
	}
	d := compileFiles(t, b.String()).Domain("d")
	trace := d.Trace(entries("path", "/0500", "user", "u", "more", "m"))
	assert.Equal(t, "/0500", trace.Steps[0].Winner.Value)
	assert.Equal(t, 4999, trace.Steps[0].OtherValues)
	assert.LessOrEqual(t, len(trace.Steps[0].Candidates), maxCandidates+1)
	require.NotEmpty(t, trace.NearRules)
	assert.Equal(t, "d > Path=/0500 > user", trace.NearRules[0].Path)
	assert.LessOrEqual(t, len(trace.NearRules), maxNearRules)

	assert.Empty(t, d.Trace(nil).Steps)
	deep := d.Trace(entries(strings.Fields(strings.Repeat("path /0500 ", 1000))...))
	assert.Len(t, deep.Steps, 1)
}
