package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/limit"
)

// longValue is so long that the conditions of these tests take too many steps for it.
var longValue = strings.Repeat("a", 100_000)

func TestLongValueCannotAvoidALimit(t *testing.T) {
	const untestedPath = "a condition that was not tested"
	for _, c := range []struct{ name, descriptors, want string }{
		{"a limit", "- {key: k, regex: '.*a.{500}', DAY}", untestedPath},
		{"a limit of all others", "- {key: k, not: {regex: '.*a.{500}'}, DAY}", untestedPath},
		{"an expression", `- {key: k, cel: 'value.matches("a.{400}$")', DAY}`, untestedPath},
		{"not of an expression", `- {key: k, not: {cel: 'value.matches("a.{400}$")'}, DAY}`, untestedPath},
		{"a lenient rule before a strict rule", "- {key: k, regex: '.*a.{500}', MANY}\n- {key: k, DAY}", untestedPath},
		{"a strict rule before a lenient rule", "- {key: k, regex: '.*a.{500}', DAY}\n- {key: k, MANY}", untestedPath},
		{"a limit of a child", "- {key: k, regex: '.*a.{500}', descriptors: [{key: l, DAY}]}", untestedPath},
		{"a rule in quota mode", "- {key: k, regex: '.*a.{500}', quota_mode: true, DAY}", untestedPath},
		{"an allow list", "- {key: k, regex: '.*a.{500}'}\n- {key: k, DAY}", "k"},
		{"an unlimited rule", "- {key: k, regex: '.*a.{500}', rate_limit: {unlimited: true}}\n- {key: k, DAY}", "k"},
		{"a rule in shadow mode", "- {key: k, regex: '.*a.{500}', shadow_mode: true, DAY}\n- {key: k, DAY}", "k"},
		{"a limit that is off", "- {key: k, regex: '.*a.{500}', rate_limit: {unit: day, requests_per_unit: 1, enabled: false}}\n- {key: k, DAY}", "k"},
		{"an allow list before a limit", "- {key: k, regex: '.*a.{500}'}\n- {key: k, not: {regex: '.*a.{500}'}, DAY}", untestedPath},
		{"a condition that is met before", "- {key: k, prefix: aaa, DAY}\n- {key: k, regex: '.*a.{500}', MANY}", "k=prefix(aaa)"},
		{"an exact value", "- {key: k, value: LONG, DAY}\n- {key: k, regex: '.*a.{500}', MANY}", "k=" + longValue},
		{"a pattern after an allow list", "- {key: k, regex: '.*a.{500}'}\n- {key: k, value: 'a*', DAY}", "k=a*"},
		{"another prefix", "- {key: k, regex: 'b.*a.{500}', MANY}\n- {key: k, DAY}", "k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			yaml := strings.NewReplacer("LONG", longValue, "MANY", "rate_limit: {unit: second, requests_per_unit: 1000}").Replace(c.descriptors)
			d := compileFiles(t, expandDay("domain: d\ndescriptors:\n"+yaml)).Domain("d")
			for _, request := range [][]string{{"k", longValue}, {"k", longValue, "l", "x"}} {
				entryList := entries(request...)
				rule := d.Match(entryList)
				assert.Equal(t, rule, d.TraceWithBudget(new(Budget), entryList).Rule)
				if len(request) == 4 && c.want != untestedPath {
					assert.Nil(t, rule)
					continue
				}
				require.NotNil(t, rule)
				assert.Equal(t, "d > "+c.want, rule.Path)
				if c.want == untestedPath {
					assert.Zero(t, rule.Limits[0].Requests)
					assert.Equal(t, limit.FailDeny, rule.Limits[0].OnBackendFailure, "the rule denies without Redis too")
					assert.Equal(t, "d|=not%20tested", string(rule.AppendKey(nil, "d", entryList)), "one counter for all values")
					assert.False(t, rule.MetricKeyVaries())
					assert.Equal(t, "d.not_tested", string(rule.AppendMetricKey(nil, "d", entryList)))
				}
			}
		})
	}
}

func TestTraceShowsConditionsThatAreNotTested(t *testing.T) {
	d := compileFiles(t, expandDay(`domain: d
descriptors:
- {key: k, regex: '.*b.{500}'}
- {key: k, regex: '.*a.{500}', DAY}
- {key: k, prefix: a, DAY}
- {key: k, DAY}
`)).Domain("d")
	trace := d.TraceWithBudget(new(Budget), entries("k", longValue))
	require.Len(t, trace.Steps, 1)
	step := trace.Steps[0]
	assert.Nil(t, step.Winner)
	require.Len(t, step.Candidates, 4)
	for i, want := range []MatchKind{NoMatch, NoMatch, ConditionMatch, AnyValueMatch} {
		assert.Equal(t, want, step.Candidates[i].Kind, i)
		if i < 2 {
			assert.ErrorIs(t, step.Candidates[i].Failure, ErrNotTested)
		}
	}
}

func TestDescriptorsOfACallShareABudget(t *testing.T) {
	c := compileFiles(t, expandDay("domain: d\ndescriptors: [{key: k, regex: '.*a.{200}', DAY}]"))
	observer := &failureObserver{}
	(&Store{Observer: observer}).Set(c)
	d, matchBudget, request := c.Domain("d"), new(Budget), entries("k", longValue[:1000])
	traceBudget := new(Budget)
	deniedCount := 0
	for range 10 {
		rule := d.MatchWithBudget(matchBudget, request)
		assert.Equal(t, rule, d.TraceWithBudget(traceBudget, request).Rule)
		if rule == d.UntestedRule {
			deniedCount++
		} else {
			assert.Zero(t, deniedCount, "the budget does not grow")
		}
	}
	assert.Equal(t, 6, deniedCount)
	assert.Len(t, observer.texts, 6)
	assert.Equal(t, "d k=regex(.*a.{200}): not tested", observer.texts[0])
	assert.NotEqual(t, d.UntestedRule, d.Match(request), "the next call has a budget of its own")
}
