package condition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConditionCoversWhatItCertainlyMatches(t *testing.T) {
	var many, manyNetworks []string
	for i := range maxExamples + 1 {
		many = append(many, fmt.Sprintf("a%d", i))
		manyNetworks = append(manyNetworks, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
	}
	a, readsEntries := prefix(t, "a"), celCondition(t, `entries.k == "v"`)
	for name, c := range map[string]struct {
		condition, other *Condition
		want             bool
	}{
		"the same text":                  {celCondition(t, `value == "a"`), celCondition(t, `value == "a"`), true},
		"another text":                   {celCondition(t, `value == "a"`), celCondition(t, `value == "b"`), false},
		"anything":                       {regex(t, ".*"), a, true},
		"anything negated":               {regex(t, ".*").Not(), a, false},
		"the values of a list":           {a, in(t, "a", "ab"), true},
		"a value more":                   {a, in(t, "a", "b"), false},
		"a list for a prefix":            {in(t, "a"), a, false},
		"values outside a negated list":  {in(t, "a").Not(), in(t, "b"), true},
		"a negated list":                 {a, in(t, "b").Not(), false},
		"as many values as are compared": {a, in(t, many[1:]...), true},
		"more values than are compared":  {a, in(t, many...), false},
		"a condition on other entries":   {readsEntries, in(t, "a"), false},
		"a longer prefix":                {a, prefix(t, "ab"), true},
		"a shorter prefix":               {prefix(t, "ab"), a, false},
		"a prefix for a negated one":     {a.Not(), prefix(t, "b"), false},
		"a network in a network":         {cidr(t, "10.0.0.0/8"), cidr(t, "10.1.0.0/16", "10.2.3.4"), true},
		"a network outside":              {cidr(t, "10.0.0.0/8"), cidr(t, "10.1.0.0/16", "11.0.0.0/16"), false},
		"as many networks":               {cidr(t, "10.0.0.0/8"), cidr(t, manyNetworks[1:]...), true},
		"more networks":                  {cidr(t, "10.0.0.0/8"), cidr(t, manyNetworks...), false},
		"another kind":                   {cidr(t, "10.0.0.0/8"), a, false},
		"regular expressions":            {regex(t, "a.*"), regex(t, "ab.*"), false},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, c.condition.Covers(c.other)) })
	}
}

func TestOnlyAShorterPrefixCoversAPrefix(t *testing.T) {
	for text, want := range map[string]bool{"a": true, "ab": true, "abc": false, "b": false} {
		assert.Equal(t, want, prefix(t, text).CoversPrefix("ab"), text)
		assert.False(t, prefix(t, text).Not().CoversPrefix("ab"), "not %s", text)
	}
	assert.True(t, regex(t, ".*").CoversPrefix("ab"))
	assert.False(t, regex(t, "ab.*").CoversPrefix("ab"))
	assert.False(t, in(t, "ab").CoversPrefix("ab"))
}

func TestOppositeIsTheNegatedCondition(t *testing.T) {
	a := in(t, "a")
	assert.True(t, a.IsOpposite(a.Not()))
	assert.True(t, a.Not().IsOpposite(a))
	assert.False(t, a.IsOpposite(a))
	assert.False(t, a.Not().IsOpposite(a.Not()))
	assert.False(t, a.IsOpposite(in(t, "b").Not()))
	failing := celCondition(t, `int(value) > 1`)
	assert.False(t, failing.IsOpposite(failing.Not()), "both fail for a text")
}

func TestRegexThatMatchesAllOrNothingIsFound(t *testing.T) {
	for expression, want := range map[string]string{
		".*": "all", "(?s).*": "all", "^.*$": "all", "^(.*)$": "all", ".*$": "all", "^.*": "all",
		".+": "", ".": "", "a*": "", ".*.*": "", ".*a": "", "a.*": "", "^$": "", "^": "", "$": "", "(^.*)a": "", ".*|a": "",
		"a^": "nothing", "$a": "nothing", "(a^)+": "nothing", "a^|$b": "nothing", "(a|b)^": "nothing",
		"a+^": "nothing", "a{1,2}^": "nothing", ".^": "nothing", "[ab]^": "nothing", "(ab?)^": "nothing", "$(a)": "nothing", "b(a^)c": "nothing",
		"a{0,2}^": "", "a*^": "", "a?^b": "", "^a$": "", "a^|b": "", "(a|b?)^": "", "(a^)?": "", "$^": "", "$b*": "",
	} {
		c := regex(t, expression)
		assert.Equal(t, want == "all", c.MatchesAll(), expression)
		assert.Equal(t, want == "all", c.Not().MatchesNothing(), expression)
		assert.Equal(t, want == "nothing", c.MatchesNothing(), expression)
		assert.Equal(t, want == "nothing", c.Not().MatchesAll(), expression)
	}
	assert.False(t, in(t, "a").MatchesAll())
	assert.False(t, prefix(t, "a").Not().MatchesNothing())
}

func TestExampleOfARegexMatches(t *testing.T) {
	for expression, want := range map[string]string{
		"abc": "abc", "[a-c]x": "ax", "[\\x00-z]": "!", "[\\x00~]": "~", "[\\x00\\x7f]": "\x00", ".a": "~a", "a+b*": "a", "(a|b)c": "ac",
		"a{3}": "aaa", "a{2,5}": "aa", "(ab){2}": "abab", "[^\\x00-\\x{10FFFF}]": "",
		"(a{50}){20}": strings.Repeat("a", 1000),
		strings.Repeat("(", 99) + "a" + strings.Repeat(")", 99): "a",
	} {
		parsed, _, err := parsePattern(expression)
		require.NoError(t, err, expression)
		assert.Equal(t, want, exampleOf(parsed, 0), expression)
	}
}

func TestDifferencesAreInOneListOnly(t *testing.T) {
	assert.ElementsMatch(t, []string{"a", "c"}, Differences(in(t, "a", "b"), in(t, "b", "c")))
	assert.Equal(t, []string{"10.1.0.0", "10.2.0.0"}, Differences(cidr(t, "10.1.0.0/16"), cidr(t, "10.2.0.0/16")))
	assert.Empty(t, Differences(in(t, "a"), prefix(t, "a")))
	assert.Empty(t, Differences(prefix(t, "a"), in(t, "a")))
}
