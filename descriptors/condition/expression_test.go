package condition

import (
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// valueAfter returns the Value of the last key and value.
func valueAfter(keysAndValues ...string) Value {
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i < len(keysAndValues); i += 2 {
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return NewValue(entries)
}

func TestExpressionReadsEarlierEntries(t *testing.T) {
	for text, want := range map[string]bool{
		`entries.tenant == "acme"`:                              true,
		`entries["tenant"] != value`:                            true,
		`"tenant" in entries && size(entries) == 2`:             true,
		`entries.exists(k, k == "path")`:                        true,
		`entries.all(k, entries[k] == "acme")`:                  false,
		`has(entries.plan)`:                                     false,
		`value == entries.path`:                                 true,
		`{"acme": 10, "other": 20}[entries.tenant] == 10`:       true,
		`entries.tenant.startsWith("a") ? value == "x" : false`: false,
	} {
		v := valueAfter("tenant", "acme", "path", "/a")
		got, err := celCondition(t, text).Match(&v, new(Budget))
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
		got, err = celCondition(t, text).Not().Match(&v, new(Budget))
		require.NoError(t, err, text)
		assert.Equal(t, !want, got, text)
	}
}

func TestExpressionNamesTheEntriesItReads(t *testing.T) {
	for text, want := range map[string][]string{
		`value == "a"`: nil,
		`entries.a == entries["b"] || "c" in entries || has(entries.d) || entries.a == "x"`: {"a", "b", "c", "d"},
		`entries[value] == "x"`: nil,
	} {
		c := celCondition(t, text)
		assert.ElementsMatch(t, want, c.EntryKeys(), text)
		assert.Equal(t, strings.Contains(text, "entries"), c.ReadsEntries(), text)
	}
}

func TestFailedExpressionAndItsNegationAreNotMet(t *testing.T) {
	for text, want := range map[string]string{
		`int(value) > 3`:                  "type conversion error",
		`entries[value] == "x"`:           "no such key",
		`10 / (size(value) - 4) > 1`:      "division by zero",
		`timestamp(value).getHours() > 3`: "",
	} {
		for _, c := range []*Condition{celCondition(t, text), celCondition(t, text).Not()} {
			v := valueAfter("k", "text")
			isMet, err := c.Match(&v, new(Budget))
			assert.False(t, isMet, c)
			assert.ErrorContains(t, err, want, c)
		}
	}
}

func TestCostOfAnEvaluationIsBounded(t *testing.T) {
	c := celCondition(t, `value.contains("x") || value.contains("y") || value.endsWith("z")`)
	shortValue, longValue := valueAfter("k", strings.Repeat("a", 1000)), valueAfter("k", strings.Repeat("a", 1<<20))
	_, err := c.Match(&shortValue, new(Budget))
	require.NoError(t, err)
	_, err = c.Match(&longValue, new(Budget))
	assert.ErrorIs(t, err, ErrNotTested)
}

func TestExpressionCanBeUsedByManyCallsAtOnce(t *testing.T) {
	c := celCondition(t, `entries.tenant + value == "acme/a"`)
	var calls sync.WaitGroup
	for i := range 8 {
		calls.Go(func() {
			for range 200 {
				path := []string{"/a", "/b"}[i%2]
				v := valueAfter("tenant", "acme", "path", path)
				isMet, err := c.Match(&v, new(Budget))
				if err != nil || isMet != (path == "/a") {
					t.Errorf("%s: got %v, %v", path, isMet, err)
				}
			}
		})
	}
	calls.Wait()
}

func TestExpressionsCanBeCompiledAtOnce(t *testing.T) {
	var compilations sync.WaitGroup
	for _, text := range []string{`entries.all(a, a != value)`, ``, `value == `, `unknown == value`} {
		for range 4 {
			compilations.Go(func() {
				for range 20 {
					_, err := newExpression(text, new(Patterns))
					assert.Equal(t, strings.HasPrefix(text, "entries"), err == nil, text)
				}
			})
		}
	}
	compilations.Wait()
}

func FuzzCEL(f *testing.F) {
	for _, text := range []string{
		`value == "a"`, `entries.k.startsWith("v") && value.matches("^v[0-9]+$")`, `entries.exists(k, entries[k] == "a")`,
		`int(value) % 2 == 0`, `value in ["a", "b"] ? true : size(value) > 3`, `[value].map(v, v + "x") == ["ax"]`,
		`timestamp(value) < timestamp("2030-01-01T00:00:00Z")`, `((((((((value == "a"))))))))`, "value ==", `b"\xff" == bytes(value)`, `dyn(value) == 1`,
	} {
		f.Add(text, "v1")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		c, err := CEL(text, new(Patterns))
		if err != nil {
			if err.Error() == "" {
				t.Fatal("the error is empty")
			}
			return
		}
		v := valueAfter("tenant", "acme", "k", value)
		isMet, err := c.Match(&v, new(Budget))
		isNotMet, errOfNot := c.Not().Match(&v, new(Budget))
		if (err == nil) != (errOfNot == nil) || err == nil && isMet == isNotMet {
			t.Fatalf("%q: got %v (%v) and %v (%v) of the negation", value, isMet, err, isNotMet, errOfNot)
		}
		c.Examples()
	})
}

func TestExpressionCanCostAsMuchAsTheBound(t *testing.T) {
	const quarter = `value.matches("a{383}b")`
	largestExpression := strings.Join([]string{quarter, quarter, quarter, quarter}, " || ")
	require.Equal(t, maxCost*stepsPerCost, celCondition(t, largestExpression).estimatedSteps())
	_, err := CEL(largestExpression+` || value == "a"`, new(Patterns))
	assert.EqualError(t, err, "the cost can reach 5002, want at most 5000; use fewer steps, or no loop in a loop")
}
