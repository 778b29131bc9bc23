package descriptors

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nested is n descriptors, each inside the one before.
func nested(n int) string {
	return "domain: d\ndescriptors: " + strings.Repeat("[{key: k, descriptors: ", n-1) + "[{key: k}]" + strings.Repeat("}]", n-1)
}

// laughs is a bomb of aliases: 10^9 times what x is, as the field of that name.
func laughs(field, x string) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n- key: k\n  metadata:\n    a0: &a0 " + x + "\n")
	for i := 1; i < 10; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", ")
		fmt.Fprintf(&b, "    a%d: &a%d [%s]\n", i, i, list)
	}
	return b.String() + "  " + field + ": *a9\n"
}

func TestHostileFilesAreRefusedSoon(t *testing.T) {
	bomb := "domain: d\ndescriptors:\n- key: k\n  metadata: {}\n  descriptors: &a0 [{key: x0}]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("- key: k%d\n  descriptors: &a%d [", i, i+1)
		for j := range 10 {
			bomb += fmt.Sprintf("{key: x%d, descriptors: *a%d}, ", j, i)
		}
		bomb += "]\n"
	}
	merges := "domain: d\ndescriptors:\n- &m0 {key: k}\n"
	for i := range 20 {
		merges += fmt.Sprintf("- &m%d {<<: [*m%d, *m%d, *m%d], key: k%d}\n", i+1, i, i, i, i)
	}
	var unknown strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&unknown, "key_of_no_meaning_%d: 1\n", i)
	}

	for _, test := range []struct{ name, yaml, want string }{
		{"50 MB", strings.Repeat("# comment\n", 5_000_000), "f: the file has 50000000 bytes; 16777216 are the most"},
		{"aliases in metadata", laughs("metadata", "x"), "metadata must be a mapping, not a list"},
		{"aliases below metadata", laughs("value", "x"), "the file has more than 2000000 keys and values"},
		{"aliases of descriptors", bomb, "the file has more than 2000000 keys and values"},
		{"merge keys", merges, "the file has more than 2000000 keys and values"},
		{"an anchor within itself", "domain: d\ndescriptors: &a\n- {key: k, descriptors: *a}", "f:2:14: descriptors are nested more than 100 deep"},
		{"an anchor within itself in metadata", one("metadata: &a {b: *a}"), "metadata is nested more than 100 deep"},
		{"an anchor within itself by merging", "domain: d\ndescriptors:\n- &a {key: k, <<: *a}", "merge keys (<<) are nested more than 100 deep"},
		{"an anchor that is its own value", "domain: &a *a", "not valid YAML"},
		{"deep descriptors", nested(101), "f:2:2314: descriptors are nested more than 100 deep"},
		{"deep lists", "domain: " + strings.Repeat("[", 100_000), "not valid YAML: "},
		{"deep mappings", "domain: " + strings.Repeat("{a: ", 100_000), "not valid YAML: "},
		{"deep blocks", strings.Repeat("- ", 100_000), "not valid YAML: "},
		{"many unknown keys", unknown.String(), "f: there is more; 1000 are shown"},
		{"many problems in items", "domain: d\ndescriptors: [" + strings.Repeat("x, ", 20_000) + "]", "f: there is more; 1000 are shown"},
		{"a zero byte", "domain: d\x00", "control character 0x00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			_, errs, _ := load(test.yaml)
			require.NotEmpty(t, errs)
			assert.Contains(t, errs, test.want)
			assert.Less(t, time.Since(start), 20*time.Second)
		})
	}

	c, errs, warnings := load(strings.Repeat("domain: d\n", 20_000))
	assert.Empty(t, errs)
	assert.NotNil(t, c.Domain("d"))
	assert.Equal(t, maxProblems, strings.Count(warnings, "\n"))
	assert.NotNil(t, compile(t, nested(100)).Domain("d"))
}

func TestLargeFile(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 20_000 {
		fmt.Fprintf(&b, "  - key: path\n    value: /api/v1/items/%06d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n", i)
	}
	start := time.Now()
	d := compile(t, b.String()).Domain("d")
	assert.NotNil(t, d.Match(entries("path", "/api/v1/items/019999")))
	t.Logf("%d bytes in %v", b.Len(), time.Since(start))
}

func TestAFileThatIsGivenUpHasOneProblem(t *testing.T) {
	bomb := "domain: d\ndescriptors:\n- &n0\n  key: k\n"
	for i := range 24 {
		bomb += fmt.Sprintf("- &n%d\n  key: k%d\n  descriptors: [{key: a, descriptors: [*n%d]}, {key: b, descriptors: [*n%d]}]\n", i+1, i+1, i, i)
	}
	_, err := Compile([]File{{"f", []byte(bomb)}}, Options{})
	var ps Problems
	require.ErrorAs(t, err, &ps)
	assert.Len(t, ps, 1, "what was left unread is not told as missing")
}
