package limitsfile

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// bounds returns options with 1 % of the default bounds, and scale 1. In a full test
// (RLS_TEST_FULL) it returns the default bounds, and scale 100 for the size of files.
func bounds() (o Options, scale int) {
	if os.Getenv("RLS_TEST_FULL") != "" {
		return Options{MaxFileBytes: DefaultMaxFileBytes, MaxNodes: DefaultMaxNodes}, 100
	}
	return Options{MaxFileBytes: DefaultMaxFileBytes / 100, MaxNodes: DefaultMaxNodes / 100}, 1
}

// nestedFile returns n descriptors, each inside the one before.
func nestedFile(n int) string {
	return "domain: d\ndescriptors: " + strings.Repeat("[{key: k, descriptors: ", n-1) + "[{key: k}]" + strings.Repeat("}]", n-1)
}

// aliasBomb returns a file with a field that has 10^9 copies of x, by aliases of aliases.
func aliasBomb(field, x string) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n- key: k\n  metadata:\n    a0: &a0 " + x + "\n")
	for i := 1; i < 10; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", ")
		fmt.Fprintf(&b, "    a%d: &a%d [%s]\n", i, i, list)
	}
	return b.String() + "  " + field + ": *a9\n"
}

func TestHostileFilesAreRejectedSoon(t *testing.T) {
	o, scale := bounds()
	bomb := "domain: d\ndescriptors:\n- key: k\n  metadata: {}\n  descriptors: &a0 [{key: x0}]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("- key: k%d\n  descriptors: &a%d [", i, i+1)
		for j := range 10 {
			bomb += fmt.Sprintf("{key: x%d, descriptors: *a%d}, ", j, i)
		}
		bomb += "]\n"
	}
	mergeFile := "domain: d\ndescriptors:\n- &m0 {key: k}\n"
	for i := range 20 {
		mergeFile += fmt.Sprintf("- &m%d {<<: [*m%d, *m%d, *m%d], key: k%d}\n", i+1, i, i, i, i)
	}
	var unknownKeys strings.Builder
	for i := range 2_000 * min(scale, 10) {
		fmt.Fprintf(&unknownKeys, "unknown_key_%d: 1\n", i)
	}
	tooManyCopies := fmt.Sprintf("aliases repeat more than %d keys and values", o.MaxNodes/2)

	for _, test := range []struct{ name, yaml, want string }{
		{"50 MB", strings.Repeat("# comment\n", 50_000*scale), fmt.Sprintf("f: file is %d bytes; maximum is %d", 500_000*scale, o.MaxFileBytes)},
		{"aliases in metadata", aliasBomb("metadata", "x"), tooManyCopies},
		{"aliases below metadata", aliasBomb("value", "x"), tooManyCopies},
		{"aliases of descriptors", bomb, tooManyCopies},
		{"merge keys", mergeFile, tooManyCopies},
		{"an anchor within itself", "domain: d\ndescriptors: &a\n- {key: k, descriptors: *a}", "f:3:25: alias *a is inside its own anchor"},
		{"an anchor within itself in metadata", oneDescriptor("metadata: &a {b: *a}"), "alias *a is inside its own anchor"},
		{"an anchor within itself by merging", "domain: d\ndescriptors:\n- &a {key: k, <<: *a}", "f:3:19: alias *a is inside its own anchor"},
		{"an anchor that is its own value", "domain: &a *a", "not valid YAML"},
		{"deep descriptors", nestedFile(513), "f:2:11790: d > k: descriptors are nested more than 512 deep"},
		{"deep lists", "domain: " + strings.Repeat("[", 20_000*min(scale, 5)), "not valid YAML: "},
		{"deep mappings", "domain: " + strings.Repeat("{a: ", 20_000*min(scale, 5)), "not valid YAML: "},
		{"deep blocks", strings.Repeat("- ", 20_000*min(scale, 5)), "not valid YAML: "},
		{"many unknown keys", unknownKeys.String(), "f: more problems follow; the first 1000 are shown"},
		{"many problems in items", "domain: d\ndescriptors: [" + strings.Repeat("x, ", 2_000*min(scale, 10)) + "]", "f: more problems follow; the first 1000 are shown"},
		{"a zero byte", "domain: d\x00", "control character 0x00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, errs, _ := load(test.yaml, o)
			require.NotEmpty(t, errs)
			assert.Contains(t, errs, test.want)
			assert.Less(t, time.Since(start), time.Minute)
		})
	}

	set, errs, warnings := load(strings.Repeat("domain: d\n", 2_000*min(scale, 10)), o)
	assert.Empty(t, errs)
	assert.Equal(t, "d", set.Domains[0].Name)
	assert.Equal(t, maxProblems, strings.Count(warnings, "\n"))
	assert.Len(t, parse(t, nestedFile(512)).Domains, 1)
}

func TestLargeFileIsParsed(t *testing.T) {
	_, scale := bounds()
	rules := 1_000 * min(scale, 20)
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range rules {
		fmt.Fprintf(&b, "  - key: path\n    value: /api/v1/items/%06d\n    rate_limit:\n      unit: minute\n      requests_per_unit: 10\n", i)
	}
	start := time.Now()
	assert.Len(t, parse(t, b.String()).Domains[0].Descriptors, rules)
	t.Logf("%d bytes in %v", b.Len(), time.Since(start))
}

// listOfWords returns a list of n words in brackets, each with a number between prefix and suffix.
func listOfWords(n int, prefix, suffix string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d%s,", prefix, i, suffix)
	}
	return "[" + b.String() + "]"
}

func TestFileBeyondDefaultBoundsIsRejected(t *testing.T) {
	square := "domain: d\ndescriptors:\n- key: k\n  descriptors: &a " + listOfWords(400, "{key: x", "}") + "\n"
	for i := range 820 {
		square += fmt.Sprintf("- {key: k%d, descriptors: *a}\n", i)
	}
	for _, test := range []struct{ name, yaml, want string }{
		{"a square of descriptors", square, "f:4:30: file has more than 320000 descriptors and limits (aliases count at each use); split the file"},
		{"a square of metadata", oneDescriptor("metadata: {l: &a " + listOfWords(700, "x", "") + ", m: " + strings.Replace(strings.Repeat("*a, ", 700), "*a", "[*a", 1) + "]}"), "file has more than 400000 values in metadata (aliases count at each use); split the file"},
		{"limits below a long value", oneDescriptor("value: " + strings.Repeat("x", 100*ruleBytes) + "\ndescriptors: " + listOfWords(3_200, "{key: k", ", "+tenAMinute+"}")), "file has more than 320000 descriptors and limits"},
		{"bare keys", "domain: d\n" + strings.Repeat("a:\n", 250_001), "f:250000: more than 500000 keys and values to parse at once; split the file"},
		{"items in brackets", "domain: d\ndescriptors: [" + strings.Repeat("{},", 500_001) + "]", "f:2: more than 500000 keys and values to parse at once; split the file"},
		{"a value with many keys", oneDescriptor("metadata: {" + strings.Repeat("a,", 250_001) + "}"), "f:4: more than 500000 keys and values to parse at once; split the file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, errs, _ := load(test.yaml, Options{})
			assert.Contains(t, errs[:min(len(errs), 500)], test.want)
			assert.NotContains(t, errs, "\n", "it is the only problem")
		})
	}
}

// A file in block style is read in pieces, so it can have more nodes than one tree.
func TestFileInPiecesIsReadAsAWhole(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\ndefaults: &a {algorithm: token_bucket}\ndescriptors:\n- key: k\n  rate_limit: &l {unit: day, requests_per_unit: 1}\n")
	for i := range 1_000 {
		fmt.Fprintf(&b, "- key: k\n  value: v%d\n  rate_limit: *l\n", i)
	}
	set := parse(t, b.String())
	lastDescriptor := set.Domains[0].Descriptors[1_000]
	assert.Equal(t, "k=v999", lastDescriptor.Label())
	assert.Equal(t, 6+3*999, lastDescriptor.Line)
	assert.Equal(t, limit.TokenBucket, lastDescriptor.Limits[0].Algorithm)

	b.WriteString("- {key: k, value: v5}\n- x\n- {key: [}\n")
	_, errs, _ := load(b.String(), Options{})
	assert.Equal(t, "f:3008:9: not valid YAML: [ opens here, and } in line 3008 closes it; want ]", errs, "it is the only problem of the file")
	_, errs, _ = load(strings.Replace(b.String(), "- {key: [}\n", "", 1), Options{})
	assert.Equal(t, "f:3006:9: d > k=v5: duplicate of the descriptor at f:21\nf:3007:3: d: item of descriptors: got x, want a mapping", errs)
}

func TestFileWithTooManyNodesHasOneProblem(t *testing.T) {
	bomb := "domain: d\ndescriptors:\n- &n0\n  key: k\n"
	for i := range 24 {
		bomb += fmt.Sprintf("- &n%d\n  key: k%d\n  descriptors: [{key: a, descriptors: [*n%d]}, {key: b, descriptors: [*n%d]}]\n", i+1, i+1, i, i)
	}
	o, _ := bounds()
	_, err := Parse([]File{{"f", []byte(bomb)}}, o)
	var problems fields.Problems
	require.ErrorAs(t, err, &problems)
	assert.Len(t, problems, 1, "descriptors that are not read are not reported as missing")
}

func TestFileWithAsManyNodesAsTheBoundIsReadAsAWhole(t *testing.T) {
	const items = 20
	yaml := "domain: d\ndescriptors: " + listOfWords(items, "{key: k", "}")
	const allNodes = 2 + 2*items // the fields of the root, the items, and the field of each item
	set, errs, _ := load(yaml, Options{MaxNodes: allNodes})
	require.Empty(t, errs)
	list := set.Domains[0].Descriptors
	require.Len(t, list, items)
	assert.Equal(t, "k19", list[items-1].Key)

	_, errs, _ = load(yaml, Options{MaxNodes: allNodes - items/2})
	assert.Contains(t, errs, "file has more than 32 keys and values")
	assert.NotContains(t, errs, "\n", "keys that are not read are not reported as missing")
}
