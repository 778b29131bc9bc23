package limitsfile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors/condition"
)

func TestRuleOfRunTimeIsCheckedLikeADescriptor(t *testing.T) {
	t.Parallel()
	const limit = `"rate_limit": {"unit": "day", "requests_per_unit": 3}`
	domain := parse(t, "domain: shop\ndefaults: {algorithm: sliding_log}").Domains[0]
	for name, c := range map[string]struct{ value, rule, want, problem string }{
		"no condition":              {"", `{` + limit + `}`, "3 per day, sliding_log", ""},
		"a condition":               {"prefix(bot)", `{"prefix": "bot", ` + limit + `}`, "3 per day, sliding_log", ""},
		"an expression":             {"cel(entries.tenant == value)", `{"cel": "entries.tenant == value", ` + limit + `}`, "3 per day, sliding_log", ""},
		"an unknown entry":          {"cel(entries.plan == value)", `{"cel": "entries.plan == value", ` + limit + `}`, "", "cel: got the entry plan, which neither this descriptor nor its parents have; want tenant or agent"},
		"another condition":         {"prefix(a)", `{"prefix": "bot", ` + limit + `}`, "", `target: got the value "prefix(a)", want the condition as the value: "prefix(bot)"`},
		"no limit":                  {"", `{"shadow_mode": true}`, "", "rule has no limit; want rate_limit or rate_limits"},
		"a wrong limit":             {"", `{"rate_limit": {"unit": "fortnight", "requests_per_unit": 3}}`, "", `unit: got "fortnight", want millisecond`},
		"a key":                     {"", `{"key": "agent", ` + limit + `}`, "", "key is in the target of a rule; leave it out of the rule"},
		"a value":                   {"", `{"value": "v", ` + limit + `}`, "", "value is in the target of a rule; leave it out of the rule"},
		"children":                  {"", `{"descriptors": [], ` + limit + `}`, "", "descriptors belongs in no rule; create each child as a rule of its own"},
		"a field of a limit":        {"", `{"burst": 5, ` + limit + `}`, "", "burst belongs in rate_limit; an example is"},
		"an unknown field":          {"", `{"shadow_mod": true, ` + limit + `}`, "", `unknown key "shadow_mod"; did you mean shadow_mode?`},
		"an end that is no time":    {"", `{"expires_at": "tomorrow", ` + limit + `}`, "", `expires_at: got "tomorrow", want a time`},
		"a field of another object": {"", `{"min_share": 0.5, ` + limit + `}`, "", "min_share has no meaning in the rule; it belongs in quota"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := ParseRule("shop|tenant|agent", []byte(c.rule))
			if err == nil {
				for range 2 { // for example, after a reload of the limits
					d, problems := r.Descriptor(domain, "shop > tenant > agent", []string{"tenant", "agent"}, c.value, &condition.Patterns{})
					if len(problems) > 0 {
						err = problems
						break
					}
					assert.Equal(t, "agent", d.Key)
					assert.Equal(t, c.want, d.Summary())
				}
			}
			if c.problem == "" {
				assert.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.problem)
			assert.NotContains(t, err.Error(), "\n", "it is the only problem")
		})
	}
}

func TestNewConditionCountsWithOtherConditionsOfItsKey(t *testing.T) {
	t.Parallel()
	prefixes := func(key string, n int) []*Descriptor {
		var b strings.Builder
		b.WriteString("domain: d\ndescriptors:\n- {key: " + key + "}\n")
		for i := range n {
			fmt.Fprintf(&b, "- {key: %s, prefix: p%d}\n", key, i)
		}
		return parse(t, b.String()).Domains[0].Descriptors
	}
	newDescriptor := parseFirstDescriptor(t, oneDescriptor("prefix: new"))
	for name, c := range map[string]struct {
		descriptor *Descriptor
		siblings   []*Descriptor
		isRejected bool
	}{
		"as many as the bound":         {newDescriptor, prefixes("k", maxConditions-1), false},
		"one too many":                 {newDescriptor, prefixes("k", maxConditions), true},
		"conditions of another key":    {newDescriptor, prefixes("l", maxConditions), false},
		"its own version of before":    {parseFirstDescriptor(t, oneDescriptor("prefix: p7")), prefixes("k", maxConditions), false},
		"descriptor without condition": {parseFirstDescriptor(t, oneDescriptor("value: v")), prefixes("k", maxConditions), false},
	} {
		err := CheckSiblings(c.descriptor, c.siblings)
		assert.Equal(t, c.isRejected, err != nil, "%s: %v", name, err)
	}
}

// An expression of many descriptors takes memory once, so it leaves room for the regular expressions of rules.
func TestSharedExpressionCountsOnceInTheBoundOfPatterns(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n- {key: k}\n")
	for i := range 1_600 {
		fmt.Fprintf(&b, "- {key: k%d, cel: 'value.matches(\".{350}\")'}\n", i)
	}
	domain := parse(t, b.String()).Domains[0]
	patterns := PatternsOf(domain.Descriptors)
	r, err := ParseRule("d|agent", []byte(`{"regex": ".{1000}x", "rate_limit": {"unit": "day", "requests_per_unit": 3}}`))
	require.NoError(t, err)
	_, problems := r.Descriptor(domain, "d > agent", []string{"agent"}, "regex(.{1000}x)", &patterns)
	assert.Empty(t, problems)
}

func TestNotesSayWhoWhyAndUntilWhen(t *testing.T) {
	t.Parallel()
	end := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	for want, n := range map[string]Notes{
		"":                            {},
		" by alice":                   {Author: "alice"},
		`, reason "r"`:                {Reason: "r"},
		" until 2030-01-31T12:00:00Z": {ExpiresAt: end},
		` by alice until 2030-01-31T12:00:00Z, reason "r"`: {Author: "alice", ExpiresAt: end, Reason: "r"},
	} {
		assert.Equal(t, want, n.String())
	}
	assert.False(t, Notes{}.HasExpired(end), "a change without an end stays")
	assert.False(t, Notes{ExpiresAt: end}.HasExpired(end.Add(-1)))
	assert.True(t, Notes{ExpiresAt: end}.HasExpired(end))
}
