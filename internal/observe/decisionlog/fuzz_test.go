package decisionlog

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
)

// FuzzFilter checks that a Filter has only codes and sources that records have.
func FuzzFilter(f *testing.F) {
	f.Add("code=over_limit&source=Redis&entry=tenant%3Da&entry=b&rule=shop+%3E&domain=")
	f.Add("entry=%3D&entry=a%3D%3D")
	f.Fuzz(func(t *testing.T, text string) {
		query, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		filter, err := ParseFilter(query)
		if err != nil {
			return
		}
		assert.Contains(t, []Code{"", OK, OverLimit, Failed}, filter.Code)
		if filter.Source != "" {
			assert.True(t, slices.ContainsFunc(backend.Sources(), func(s backend.Source) bool { return s.String() == filter.Source }))
		}
	})
}

// FuzzEncodeLine checks that each line is one line of printable JSON.
func FuzzEncodeLine(f *testing.F) {
	f.Add("a\nb\x1b[2J\u009b\u2028\U000e0001\ufffd\xff")
	f.Fuzz(func(t *testing.T, text string) {
		line := EncodeLine(Record{Domain: text, Descriptor: []Entry{{text, text}}})
		require.True(t, json.Valid(line), "%q", line)
		for _, r := range string(bytes.TrimSuffix(line, []byte("\n"))) {
			require.True(t, strconv.IsPrint(r), "%q in %q", r, line)
		}
		var l Line
		require.NoError(t, json.Unmarshal(line, &l))
		assert.Equal(t, []rune(text), []rune(l.Domain), "invalid UTF-8 becomes U+FFFD")
	})
}
