package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestParseTargetReadsWhatStringWrites(t *testing.T) {
	for text, want := range map[string][]string{
		"shop|tenant=acme":           {"shop", "tenant", "acme"},
		"shop|tenant":                {"shop", "tenant", ""},
		"shop|tenant=acme|path=/a/b": {"shop", "tenant", "acme", "path", "/a/b"},
		"shop|path=/api/*":           {"shop", "path", "/api/*"},
		"a%7Cb|k%3D=v%3D%25%20":      {"a|b", "k=", "v=% "},
		"%C3%BC|k=%E2%82%AC":         {"ü", "k", "€"},
	} {
		got, err := ParseTarget(text)
		require.NoError(t, err, text)
		assert.Equal(t, want[0], got.Domain)
		require.Len(t, got.Entries, len(want)/2, text)
		for i, e := range got.Entries {
			assert.Equal(t, want[1+2*i], e.Key, text)
			assert.Equal(t, want[2+2*i], e.Value, text)
		}
		assert.Equal(t, text, got.String())
	}
}

func TestParseTargetRejectsInvalidTargets(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "want DOMAIN|KEY=VALUE",
		"shop":                "want DOMAIN|KEY=VALUE",
		"|k=v":                "target has no domain",
		"shop|":               "entry 1 of the target has no key",
		"shop|k=v|=x":         "entry 2 of the target has no key",
		"shop|k=%":            "write %25 for a %",
		"shop|k=%4":           "write %25 for a %",
		"shop|k=%zz":          "write %25 for a %",
		"shop|k=%FF":          "UTF-8",
		"shop|k=a b":          "want shop|k=a%20b",
		"shop|k=%61":          "want shop|k=a",
		"shop|k=a=b":          "want shop|k=a%3Db",
		"shop|k=":             "want shop|k",
		"shop|k=%2A":          "want shop|k=*",
		"shop|k=ü":            "want shop|k=%C3%BC",
		"s\n|k":               `want s%0A|k`,
		"d" + longTarget(513): "513 entries; maximum is 512",
	} {
		_, err := ParseTarget(text)
		assert.ErrorContains(t, err, want, "%q", text)
	}
}

func TestTargetHasAsManyEntriesAsALimitsFile(t *testing.T) {
	target, err := ParseTarget("d" + longTarget(512))
	require.NoError(t, err)
	assert.Len(t, target.Entries, 512)
}

func TestTargetOfARequestHasAValueForEachKey(t *testing.T) {
	for _, c := range []struct {
		text, want   string // want is empty for an error
		hasAllValues bool
	}{
		{"d|k=v", "d|k=v", true},
		{"d|k=", "d|k=", true},
		{"d|k", "d|k=", false},
		{"d|k=|l=v", "d|k=|l=v", true},
		{"d|k=v|l", "d|k=v|l=", false},
		{"d|k|l=v", "d|k=|l=v", false},
		{"d|k=|l=|m=", "d|k=|l=|m=", true},
		{"d|k=v=", "", true},
		{"d|=", "", true},
	} {
		target, hasAllValues, err := ParseRequestTarget(c.text)
		assert.Equal(t, c.want != "", err == nil, "%s: %v", c.text, err)
		assert.Equal(t, c.hasAllValues, hasAllValues, c.text)
		if err == nil {
			assert.Equal(t, c.want, target.RequestString())
		}
	}
}

func longTarget(n int) string { return strings.Repeat("|k=v", n) }

func TestEachTargetHasOneText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var target Target
		target.Domain = rapid.StringN(1, 9, -1).Draw(t, "domain")
		for range rapid.IntRange(1, 4).Draw(t, "entries") {
			target.Entries = append(target.Entries, entries(
				rapid.StringN(1, 9, -1).Draw(t, "key"), rapid.StringN(0, 9, -1).Draw(t, "value"))...)
		}
		got, err := ParseTarget(target.String())
		if err != nil {
			t.Fatal(err)
		}
		assert.Equal(t, target, got)
	})
}
