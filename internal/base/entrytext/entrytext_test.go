package entrytext

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFormatReturnsTheTextThatWasParsed(t *testing.T) {
	for text, want := range map[string][]string{
		"a=b":           {"a", "b"},
		"a=b,c=d":       {"a", "b", "c", "d"},
		"a=":            {"a", ""},
		"a=b=c":         {"a", "b=c"},
		`a\=b=c`:        {"a=b", "c"},
		`a\,b=c\,d,e=f`: {"a,b", "c,d", "e", "f"},
		`a\\=\\`:        {`a\`, `\`},
	} {
		got, err := ParseRequest(text)
		require.NoError(t, err, text)
		var pairs []string
		for _, e := range got {
			pairs = append(pairs, e.Key, e.Value)
		}
		assert.Equal(t, want, pairs, text)
		assert.Equal(t, text, Format(got))
	}
}

func TestErrorNamesTheInvalidEntry(t *testing.T) {
	for text, want := range map[string]string{
		"a":     `"a" is not a descriptor: entry 1 has no =; write each entry as KEY=VALUE, and a comma in a value as '\,'`,
		"a=b,c": `"a=b,c" is not a descriptor: entry 2 has no =; write each entry as KEY=VALUE, and a comma in a value as '\,'`,
		`a=b\`:  `"a=b\\" is not a descriptor: no character follows the last \; write \\ for a \`,
		`a\`:    `"a\\" is not a descriptor: no character follows the last \; write \\ for a \`,
	} {
		_, err := ParseRequest(text)
		assert.EqualError(t, err, want)
	}
	_, err := ParseRequest("=b")
	assert.ErrorContains(t, err, "entry 1 has no key")
}
