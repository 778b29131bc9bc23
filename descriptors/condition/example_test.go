package condition

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExampleOfARegexMatches(t *testing.T) {
	for expression, want := range map[string]string{
		"abc": "abc", "[a-c]x": "ax", "[\\x00-z]": "!", "[\\x00~]": "~", "[\\x00\\x7f]": "\x00", ".a": "~a", "a+b*": "a", "(a|b)c": "ac",
		"a{3}": "aaa", "a{2,5}": "aa", "(ab){2}": "abab", "[^\\x00-\\x{10FFFF}]": "",
		"(a{50}){20}": strings.Repeat("a", 1000),
		strings.Repeat("(", 99) + "a" + strings.Repeat(")", 99): "a",
	} {
		parsedExpression, _, err := parsePattern(expression)
		require.NoError(t, err, expression)
		assert.Equal(t, want, exampleOf(parsedExpression, 0), expression)
	}
}

func TestDifferencesAreInOneListOnly(t *testing.T) {
	assert.ElementsMatch(t, []string{"a", "c"}, Differences(inCondition(t, "a", "b"), inCondition(t, "b", "c")))
	assert.Equal(t, []string{"10.1.0.0", "10.2.0.0"}, Differences(cidrCondition(t, "10.1.0.0/16"), cidrCondition(t, "10.2.0.0/16")))
	assert.Empty(t, Differences(inCondition(t, "a"), prefixCondition(t, "a")))
	assert.Empty(t, Differences(prefixCondition(t, "a"), inCondition(t, "a")))
}

// Meets reports whether text meets c in a request without other entries.
func (c *Condition) Meets(text string) bool {
	isMet, err := c.Match(&Value{text: text}, new(Budget))
	return isMet && err == nil
}
