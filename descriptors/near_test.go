package descriptors

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestQuotesShowSpacesAtTheEnds(t *testing.T) {
	for text, want := range map[string]string{"a b": "a b", " a": `" a"`, "a\t": `"a\t"`, "": ""} {
		assert.Equal(t, want, QuoteIfNeeded(text))
	}
}

func TestSimilarTextsDifferInAFewCharacters(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"abc", "abd", true},
		{"abc", "ade", false},
		{"ab", "ab", false}, // too short
		{"abcdef", "abxdey", true},
		{"abcdefghi", "abcdefghijk", true},
		{"abcdefghi", "abcdefghijkl", false},
		{"abcdefghi", "abcxefyhz", false},
	} {
		assert.Equal(t, c.want, isSimilar(c.a, c.b), "%s and %s", c.a, c.b)
		assert.Equal(t, c.want, isSimilar(c.b, c.a), "%s and %s", c.b, c.a)
	}
}
