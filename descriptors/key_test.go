package descriptors

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendKeyNamesTheCounter(t *testing.T) {
	d := compileFiles(t, strings.ReplaceAll(`domain: d
descriptors:
- {key: k, DAY, descriptors: [{key: l, DAY}]}
- {key: r, value: api/*, share_threshold: true, DAY, descriptors: [{key: s, DAY}, {key: t, value: x*y*, share_threshold: true, DAY}]}
- {key: u, value: a*, DAY}
- {key: kw*, share_threshold: true, DAY}
- {key: z*, value: v, share_threshold: true, DAY}
- {key: p, value: "50%|=*", share_threshold: true, DAY}
`, "DAY", tenAMinute)).Domain("d")
	for _, test := range []struct {
		name, domain string
		request      []string
		want         string
	}{
		{"one entry", "d", []string{"k", "v"}, "d|k=v"},
		{"two entries", "d", []string{"k", "v", "l", "/a/b"}, "d|k=v|l=/a/b"},
		{"empty values keep their =", "d", []string{"k", "", "l", ""}, "d|k=|l="},
		{"visible bytes are not escaped", "d", []string{"k", "!~/"}, "d|k=!~/"},
		{"special bytes are escaped", "d", []string{"k", "a|b=c%d e\x00\nü\xff"}, "d|k=a%7Cb%3Dc%25d%20e%00%0A%C3%BC%FF"},
		{"special bytes are escaped in the domain", "a|b=%", []string{"k", "v"}, "a%7Cb%3D%25|k=v"},
		{"a * of the request is escaped", "d", []string{"u", "a*"}, "d|u=a%2A"},
		{"each value of a wildcard has its counter", "d", []string{"u", "ab"}, "d|u=ab"},
		{"share_threshold: the pattern replaces the value", "d", []string{"r", "api/1"}, "d|r=api/*"},
		{"share_threshold: a value with the text of the pattern", "d", []string{"r", "api/*"}, "d|r=api/*"},
		{"share_threshold of a parent only", "d", []string{"r", "api/1", "s", "q"}, "d|r=api/*|s=q"},
		{"share_threshold of parent and child", "d", []string{"r", "api/1", "t", "x-y-"}, "d|r=api/*|t=x*y*"},
		{"share_threshold with a * in the key: a counter for each key", "d", []string{"kw1", "a"}, "d|kw1=*"},
		{"share_threshold with a * in the key, and an exact value", "d", []string{"z1", "v"}, "d|z1=v"},
		{"special bytes of a pattern are escaped, except its *", "d", []string{"p", "50%|=1"}, "d|p=50%25%7C%3D*"},
	} {
		t.Run(test.name, func(t *testing.T) {
			entryList := entries(test.request...)
			r := d.Match(entryList)
			require.NotNil(t, r)
			assert.Equal(t, test.want, string(r.AppendKey(nil, test.domain, entryList)))
			assert.Equal(t, "x"+test.want, string(r.AppendKey([]byte("x"), test.domain, entryList)), "AppendKey keeps the bytes before")
		})
	}
	requestRule := &Rule{} // the rule of a limit in a request
	assert.Equal(t, "d", string(requestRule.AppendKey(nil, "d", nil)))
	assert.Equal(t, "d|r=api/%2A", string(requestRule.AppendKey(nil, "d", entries("r", "api/*"))), "a * of the request is no pattern")
}

func TestBoundedKeyIsTheStartOfTheKey(t *testing.T) {
	longText := strings.Repeat("a|ü", 100)
	for _, keysAndValues := range [][]string{{}, {"k", "v"}, {"k", ""}, {"k", longText, longText, "v"}, {"k=1", "%v", "*", " "}} {
		wholeKey := (&Rule{}).AppendKey(nil, "d|", entries(keysAndValues...))
		for size := range 50 {
			got := AppendBoundedKey(make([]byte, 0, size), "d|", entries(keysAndValues...))
			assert.Equal(t, string(wholeKey[:min(len(wholeKey), size)]), string(got), size)
		}
	}
}

func TestBoundedKeyOfALongValueDoesNotAllocate(t *testing.T) {
	memory := make([]byte, 0, 100)
	request := entries("k", strings.Repeat("x", 1<<20))
	assert.Zero(t, testing.AllocsPerRun(100, func() { AppendBoundedKey(memory, "d", request) }))
}
