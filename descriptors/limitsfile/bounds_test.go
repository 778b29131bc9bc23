package limitsfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAsMuchAsTheBoundIsAcceptedAndOneMoreIsRejected(t *testing.T) {
	t.Parallel()
	// repeat returns n copies of item, with a comma between them. Each %d in item is the number of the copy.
	repeat := func(n int, item string) string {
		var items []string
		for i := range n {
			items = append(items, strings.ReplaceAll(item, "%d", fmt.Sprint(i)))
		}
		return strings.Join(items, ", ")
	}
	merges := func(n int) string { // the first mapping merges nothing
		var b strings.Builder
		b.WriteString("domain: d\ndescriptors:\n- &m0 {key: k0}\n")
		for i := range n {
			fmt.Fprintf(&b, "- &m%d {<<: *m%d, key: k%d}\n", i+1, i, i+1)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		bound   int
		file    func(n int) string
		options Options
		want    string
	}{
		"bytes of a body": {
			maxDenialBytes, func(n int) string { return oneDescriptor("denial: {body: " + strings.Repeat("x", n) + "}") },
			Options{},
			"body: got 16385 bytes, want at most 16384",
		},
		"headers": {
			maxHeaders, func(n int) string { return oneDescriptor("denial: {headers: {" + repeat(n, "h%d: x") + "}}") },
			Options{},
			"headers has 21 names; maximum is 20",
		},
		"bytes of a header's name": {
			maxHeaderBytes, func(n int) string { return oneDescriptor("denial: {headers: {? " + strings.Repeat("x", n) + " : v}}") },
			Options{},
			"want the name of a header",
		},
		"bytes of a header's value": {
			maxHeaderBytes, func(n int) string { return oneDescriptor("denial: {headers: {h: " + strings.Repeat("x", n) + "}}") },
			Options{},
			"header h: got a value of 1025 bytes, want at most 1024",
		},
		"depth of metadata": {
			maxNesting, func(n int) string {
				return oneDescriptor("metadata: " + strings.Repeat("{a: ", n) + "1" + strings.Repeat("}", n))
			}, Options{}, "metadata is nested more than 100 deep",
		},
		"depth of merged metadata": {
			maxNesting, func(n int) string { // the value of the innermost mapping is one deeper
				return oneDescriptor("metadata: " + strings.Repeat("{<<: ", n-1) + "{a: 1}" + strings.Repeat("}", n-1))
			}, Options{}, "metadata is nested more than 100 deep",
		},
		"depth of merged metadata without values": {
			maxNesting, func(n int) string {
				return oneDescriptor("metadata: " + strings.Repeat("{<<: ", n) + "{}" + strings.Repeat("}", n))
			}, Options{}, "metadata is nested more than 100 deep",
		},
		"depth of merges": {maxNesting, merges, Options{}, "merge keys (<<) are nested more than 100 deep"},
		"limits of a descriptor": {
			maxLimits, func(n int) string {
				return oneDescriptor("rate_limits: [" + repeat(n, "{name: l%d, unit: minute, unit_multiplier: 1%d, requests_per_unit: 1}") + "]")
			}, Options{}, "rate_limits has 101 items; maximum is 100",
		},
		"bytes of a file": {
			100, func(n int) string { return "domain: " + strings.Repeat("d", n-len("domain: ")) },
			Options{MaxFileBytes: 100},
			"file is 101 bytes; maximum is 100",
		},
		"keys and values": {
			50, func(n int) string { return oneDescriptor("metadata: {" + repeat(n-5, "a%d: 1") + "}") },
			Options{MaxNodes: 50},
			"file has more than 50 keys and values",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs, _ := load(c.file(c.bound), c.options)
			assert.Empty(t, errs)
			_, errs, _ = load(c.file(c.bound+1), c.options)
			assert.Contains(t, errs, c.want)
		})
	}
}

func TestAsManyProblemsAsTheBoundAreAllShown(t *testing.T) {
	t.Parallel()
	for count, isCut := range map[int]bool{maxProblems: false, maxProblems + 1: true} {
		_, errs, _ := load("domain: d\n"+strings.Repeat("x: 1\n", count), Options{})
		assert.Equal(t, maxProblems, strings.Count(errs, "unknown key x"), count)
		assert.Equal(t, isCut, strings.Contains(errs, "more problems follow; the first 1000 are shown"), count)
	}
}

func TestListFileHasABoundOfBytes(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]string{DefaultMaxFileBytes: "", DefaultMaxFileBytes + 1: "the file is too large; maximum is 16 MiB"} {
		text := []byte("a" + strings.Repeat("\n", size-1))
		_, errs, _ := load(oneDescriptor("in: {file: list.txt}\n"+tenAMinute), Options{ReadList: func(string) ([]byte, error) { return text, nil }})
		if want == "" {
			assert.Empty(t, errs)
		} else {
			assert.Contains(t, errs, want)
		}
	}
}
