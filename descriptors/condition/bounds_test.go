package condition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConditionsCanBeAsLongAsTheirBounds(t *testing.T) {
	newPrefix := func(text string) error { _, err := Prefix(text); return err }
	newRegex := func(text string) error { _, err := Regex(text, new(Patterns)); return err }
	newCEL := func(text string) error { _, err := CEL(text, new(Patterns)); return err }
	expression := `value == "` + strings.Repeat("a", MaxEntryBytes-len(`value == ""`)) + `"`
	for _, c := range []struct {
		name     string
		build    func(string) error
		text     string
		tooLarge string
	}{
		{"a prefix", newPrefix, strings.Repeat("a", MaxEntryBytes), strings.Repeat("a", MaxEntryBytes+1)},
		{"a regex", newRegex, strings.Repeat("a", MaxEntryBytes), strings.Repeat("a", MaxEntryBytes+1)},
		{"an expression", newCEL, expression, "!(" + expression + ")"},
		{"the instructions of a regex", newRegex, "[ab]{995}[ab]{995}aaa", "[ab]{995}[ab]{995}aaaa"},
		{"the memory of a regex", newRegex, `\pL{25}`, `\pL{1000}`},
	} {
		assert.NoError(t, c.build(c.text), c.name)
		assert.Error(t, c.build(c.tooLarge), c.name)
	}
	longestValue := strings.Repeat("a", MaxEntryBytes)
	assert.True(t, inCondition(t, longestValue).Meets(longestValue))
	values := make([]string, MaxEntries)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	assert.True(t, inCondition(t, values...).Meets("249999"))
}

func TestPatternsTogetherStayWithinTheirBound(t *testing.T) {
	var p Patterns
	size := 0
	for i := range 1000 {
		c, err := Regex(fmt.Sprintf("[ab]{995}[ab]{970}x%03d", i), &p)
		if err != nil {
			assert.ErrorIs(t, err, ErrTooManyPatterns)
			break
		}
		size += c.size.memory()
	}
	assert.LessOrEqual(t, size, maxTotalPatternSize)
	assert.Greater(t, size, maxTotalPatternSize-3000)
}

func TestTextOfAConditionIsWholeUpToItsBound(t *testing.T) {
	a39, b40 := strings.Repeat("a", 39), strings.Repeat("b", 40)
	for _, c := range []struct {
		condition *Condition
		isWhole   bool
	}{
		{prefixCondition(t, strings.Repeat("a", maxTextBytes)), true},
		{prefixCondition(t, strings.Repeat("a", maxTextBytes+1)), false},
		{inCondition(t, a39, b40), true},
		{inCondition(t, a39, b40+"b"), false},
		{inCondition(t, a39, b40, "c"), false},
	} {
		text := c.condition.String()
		assert.Equal(t, c.isWhole, !strings.ContainsAny(text, "…+"), text)
	}
}

func TestDifferencesAreAtMostTheExamples(t *testing.T) {
	var a, b []string
	for i := range maxExamples {
		a, b = append(a, fmt.Sprint("a", i)), append(b, fmt.Sprint("b", i))
	}
	assert.Len(t, Differences(inCondition(t, a...), inCondition(t, b...)), maxExamples)
	assert.Len(t, Differences(inCondition(t, a[:maxExamples/2]...), inCondition(t, b[:maxExamples/2]...)), maxExamples)
	assert.Len(t, Differences(inCondition(t, a[:10]...), inCondition(t, a[1:12]...)), 3)
}

func TestLongExampleOfARegexMatches(t *testing.T) {
	for expression, want := range map[string]string{
		"😀{1000}😀{24}": strings.Repeat("😀", 1024),
		"😀{1000}😀{25}": strings.Repeat("😀", 1000), // the whole example would be longer than its bound
		strings.Repeat("(", 100) + "a" + strings.Repeat(")", 100): "a",
		strings.Repeat("(", 150) + "a" + strings.Repeat(")", 150): "", // deeper than the search
	} {
		assert.Equal(t, want, regexCondition(t, expression).Examples()[0], "%.20s", expression)
	}
}

// A regex of 1000 instructions and a value of 256 bytes make exactly the steps of a call.
func TestStepsOfACallAreExact(t *testing.T) {
	c, expression := regexCondition(t, "[ab]{995}"), celCondition(t, `value == "x"`)
	match := func(c *Condition, bytes int, b *Budget) error {
		v := valueAfter("k", strings.Repeat("a", bytes))
		_, err := c.Match(&v, b)
		return err
	}
	assert.ErrorIs(t, match(c, 257, new(Budget)), ErrNotTested)
	b := new(Budget)
	require.NoError(t, match(c, 256, b))
	assert.ErrorIs(t, match(c, 1, b), ErrNotTested)
	assert.ErrorIs(t, match(expression, 1, b), ErrNotTested)
	b = new(Budget)
	require.NoError(t, match(c, 255, b))
	assert.NoError(t, match(expression, 1, b))

	assert.NoError(t, match(regexCondition(t, "[ab]{251}"), 1024, new(Budget)), "256 instructions at 1024 bytes are fast")
	assert.Equal(t, 500*assumedBytes/4, MaxSteps([]*Condition{regexCondition(t, "[ab]{495}")}), "500 instructions are fast")
	assert.Equal(t, 501*assumedBytes, MaxSteps([]*Condition{regexCondition(t, "[ab]{496}")}))
}

func TestMistakeInAnExpressionHasItsPlace(t *testing.T) {
	for text, want := range map[string]string{
		"valu == 'a'":                      "at character 1: unknown name valu;",
		"value == valu":                    "at character 10: unknown name valu;",
		"value == 'a' ||\n  valu == 'b'":   "in line 2 of the expression, at character 3: unknown name valu;",
		"value == 'a' ||\n\n  valu == 'b'": "in line 3 of the expression, at character 3: unknown name valu;",
		"1 == 1":                           "the result is always the same",
		`"a".matches("a")`:                 "the result is always the same",
		`"a".matches("a(")`:                "matches: ",
	} {
		_, err := CEL(text, new(Patterns))
		require.Error(t, err, text)
		assert.True(t, strings.HasPrefix(err.Error(), want), "%q: %v", text, err)
	}
}

func TestCostOfAnExpressionGrowsWithWhatItReads(t *testing.T) {
	stepsOf := func(text string) int { return MaxSteps([]*Condition{celCondition(t, text)}) }
	valueSteps, sumSteps := stepsOf(`value.matches("[ab]{50}")`), stepsOf(`(value + value).matches("[ab]{50}")`)
	assert.Greater(t, sumSteps, valueSteps+valueSteps/2, "the sum is twice the text")
	assert.Less(t, sumSteps, 3*valueSteps)
	entrySteps := stepsOf(`entries.tenant.matches("[ab]{50}")`)
	assert.InDelta(t, valueSteps, entrySteps, float64(valueSteps)/10, "an entry is as long as a value")
	allSteps := stepsOf(`entries.all(k, k.matches("[ab]{50}"))`)
	assert.Greater(t, allSteps, 8*valueSteps, "the loop reads ten entries")
	assert.Less(t, allSteps, 15*valueSteps)
}
