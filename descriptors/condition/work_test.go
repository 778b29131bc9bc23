package condition

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestConditionBeyondTheBudgetIsNotTested(t *testing.T) {
	longText := strings.Repeat("a", 100_000)
	for _, c := range []*Condition{
		regexCondition(t, ".*a.{500}"), regexCondition(t, "(?i).*(bot|crawl|spider).*"),
		celCondition(t, `value.contains("a long text with a cost") || value.contains("y")`),
		celCondition(t, `value.matches("a.{400}$")`), celCondition(t, `matches(value, "a.{400}$")`),
		celCondition(t, `entries.exists(k, entries[k].matches("x.{20}$"))`),
	} {
		for _, c := range []*Condition{c, c.Not()} {
			v := valueAfter("k", longText)
			isMet, err := c.Match(&v, new(Budget))
			assert.False(t, isMet, c)
			assert.ErrorIs(t, err, ErrNotTested, c)

			v = valueAfter("k", longText[:400])
			_, err = c.Match(&v, new(Budget))
			assert.NoError(t, err, c)
		}
	}
}

func TestValueWithoutThePrefixNeedsNoSteps(t *testing.T) {
	v, b := valueAfter("k", strings.Repeat("b", 1<<20)), new(Budget)
	for _, c := range []*Condition{regexCondition(t, "a.{500}"), regexCondition(t, "^a.{500}"), regexCondition(t, "(ab+c).{500}"), regexCondition(t, "ab|ac.{500}")} {
		isMet, err := c.Match(&v, b)
		assert.False(t, isMet)
		require.NoError(t, err)
	}
	assert.Zero(t, b.spentSteps)
}

func TestExpressionHasAResultIfAnUntestedMatchDoesNotMatter(t *testing.T) {
	v := valueAfter("k", strings.Repeat("a", 4000))
	for text, want := range map[string]bool{
		`value.matches(".*a.{400}") || value.startsWith("a")`: true,
		`value.matches(".*a.{400}") && value.startsWith("b")`: false,
	} {
		isMet, err := celCondition(t, text).Match(&v, new(Budget))
		require.NoError(t, err, text)
		assert.Equal(t, want, isMet, text)
	}
}

func TestBothFormsOfMatchesHaveTheSameCost(t *testing.T) {
	for _, value := range []string{"", "aab", strings.Repeat("a", 500), strings.Repeat("a", 100_000)} {
		v, functionBudget, methodBudget := valueAfter("k", value), new(Budget), new(Budget)
		_, err := celCondition(t, `matches(value, "a+.{30}$")`).Match(&v, functionBudget)
		_, methodErr := celCondition(t, `value.matches("a+.{30}$")`).Match(&v, methodBudget)
		assert.Equal(t, methodErr, err)
		assert.Equal(t, methodBudget, functionBudget)
	}
	assert.Equal(t, celCondition(t, `value.matches("a+.{30}$")`).estimatedSteps(), celCondition(t, `matches(value, "a+.{30}$")`).estimatedSteps())
	for _, text := range []string{`matches(value, "a.{700}")`, `value.matches("a.{700}")`} {
		_, err := CEL(text, new(Patterns))
		assert.ErrorContains(t, err, "the cost can reach", text)
	}
}

func TestConditionsOfACallShareABudget(t *testing.T) {
	v := valueAfter("k", strings.Repeat("a", 2000))
	for _, c := range []*Condition{regexCondition(t, ".*a.{100}"), celCondition(t, `value.matches("a.{40}b") || value.contains("b")`)} {
		b, testedCount := new(Budget), 0
		for range 1000 {
			_, err := c.Match(&v, b)
			if err != nil {
				require.ErrorIs(t, err, ErrNotTested)
				break
			}
			testedCount++
		}
		assert.Greater(t, testedCount, 3, c)
		assert.Less(t, testedCount, 30, c)
		assert.LessOrEqual(t, b.spentSteps, MaxCallSteps+maxCost*stepsPerCost)
	}
}

func TestTooLargePatternIsRejectedBeforeCompiling(t *testing.T) {
	var statsBefore, statsAfter runtime.MemStats
	runtime.ReadMemStats(&statsBefore)
	for expression, want := range map[string]string{
		strings.Repeat("((a?)(b?)){1000}", 60):                 "needs 660065 instructions, want at most 2000",
		"(((a{10}){10}){10}" + strings.Repeat("a?", 450) + ")": "needs 2", // in one instruction more
		`[\pL\pN]{1000}`: "repeats large classes of characters too often",
	} {
		_, err := Regex(expression, new(Patterns))
		assert.ErrorContains(t, err, want)
		_, err = CEL(`value.matches("`+strings.ReplaceAll(expression, `\`, `\\`)+`")`, new(Patterns))
		assert.ErrorContains(t, err, want)
	}
	runtime.ReadMemStats(&statsAfter)
	assert.Less(t, statsAfter.TotalAlloc-statsBefore.TotalAlloc, uint64(10<<20))
	_, err := CEL(`value.matches("a{900}") || value.matches("b{900}") || value.matches("c{900}")`, new(Patterns))
	assert.ErrorContains(t, err, "instructions, want at most 2000", "in one expression")
	_, err = CEL(`value.matches("a.{700}")`, new(Patterns))
	assert.ErrorContains(t, err, "the cost can reach")
}

func TestPatternsOfAllRulesHaveAMemoryBound(t *testing.T) {
	p := new(Patterns)
	addedCount := 0
	for i := range 1000 {
		var err error
		if i%2 == 0 {
			_, err = Regex(fmt.Sprintf(".{1000}.{900}%d", i), p)
		} else {
			_, err = CEL(fmt.Sprintf("value.matches('^.{400}.{60}%d')", i), p)
		}
		if err != nil {
			require.ErrorIs(t, err, ErrTooManyPatterns)
			break
		}
		addedCount++
	}
	assert.Greater(t, addedCount, 200)
	assert.Less(t, addedCount, 700)
}

func TestMaxStepsCountsOnlyConditionsThatOneValueCanReach(t *testing.T) {
	var samePrefix, otherPrefixes, nestedPrefixes []*Condition
	for i := range 20 {
		samePrefix = append(samePrefix, regexCondition(t, fmt.Sprintf("/api/.{600}%d", i)))
		otherPrefixes = append(otherPrefixes, regexCondition(t, fmt.Sprintf("/api-%d/.{600}", i)))
		nestedPrefixes = append(nestedPrefixes, regexCondition(t, strings.Repeat("a", i)+".{600}"))
	}
	assert.Greater(t, MaxSteps(samePrefix), MaxCallSteps)
	assert.Greater(t, MaxSteps(nestedPrefixes), MaxCallSteps)
	assert.Equal(t, otherPrefixes[0].estimatedSteps()*10+otherPrefixes[10].estimatedSteps()*10, sumOfSteps(otherPrefixes))
	assert.Less(t, MaxSteps(otherPrefixes), MaxCallSteps)
	assert.Less(t, MaxSteps(append(otherPrefixes, celCondition(t, `value.contains("x")`))), MaxCallSteps)
	assert.Zero(t, MaxSteps([]*Condition{prefixCondition(t, "a"), inCondition(t, "b"), cidrCondition(t, "::/0")}))
}

func sumOfSteps(conditions []*Condition) (steps int) {
	for _, c := range conditions {
		steps += c.estimatedSteps()
	}
	return steps
}

// The size of a regular expression bounds its compiled size, and its prefix changes no match.
func FuzzPattern(f *testing.F) {
	for _, expression := range []string{
		"a{2,9}b{3,}c{0,}(?:x|yy|z*)+?", `(?i)a\pLb`, "^ab(c|d)$", `(?:(?:a{2}){3}?|^b?){2,}`, `\x{FFFD}a`, "a**|()", `(?s).\C?[^\n]\b$`,
	} {
		f.Add(expression, "ab\xffc")
	}
	f.Fuzz(func(t *testing.T, expression, value string) {
		parsedExpression, size, err := parsePattern(expression)
		if err != nil || len(expression) > MaxEntryBytes {
			return
		}
		wholeExpression := `\A(?:` + parsedExpression.String() + `)\z`
		wholeSyntax, err := syntax.Parse(wholeExpression, syntax.Perl)
		if err != nil {
			return
		}
		program, err := syntax.Compile(wholeSyntax.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if len(program.Inst) > size.instructions {
			t.Fatalf("%q has %d instructions, more than %d", expression, len(program.Inst), size.instructions)
		}
		c, err := Regex(expression, new(Patterns))
		if err != nil || len(value) > 100 {
			return
		}
		if want := regexp.MustCompile(wholeExpression).MatchString(value); meets(c, value) != want {
			t.Fatalf("%q matches %q: got %v, want %v", expression, value, !want, want)
		}
	})
}

func TestLargestPatternsAreAccepted(t *testing.T) {
	largestSize := patternSize{instructions: maxInstructions, runes: (maxPatternSize - maxInstructions) * 10}
	assert.NoError(t, largestSize.check())
	assert.Error(t, largestSize.plus(patternSize{runes: 10}).check())

	p := Patterns{memory: maxTotalPatternSize - 5}
	assert.NoError(t, p.add(patternSize{instructions: 5}))
	assert.ErrorIs(t, p.add(patternSize{instructions: 1}), ErrTooManyPatterns)
}

func TestRepetitionsCountEachCopyOfTheirPattern(t *testing.T) {
	for pattern, want := range map[string]int{"a{0}": 1, "a{3}": 4, "a{2,5}": 9, "a{2,}": 3} {
		e, err := syntax.Parse(pattern, syntax.Perl)
		require.NoError(t, err)
		assert.Equal(t, want, sizeOf(e).instructions, pattern)
	}
}
