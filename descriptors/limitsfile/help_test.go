package limitsfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const tenAMinute = "rate_limit: {unit: minute, requests_per_unit: 10}"

// oneDescriptor returns a limits file with one descriptor, which has the key k and these fields.
func oneDescriptor(fields string) string {
	return "domain: d\ndescriptors:\n  - key: k\n    " + strings.ReplaceAll(fields, "\n", "\n    ") + "\n"
}

// load parses one file and returns its problems, one a line.
func load(yaml string, o Options) (set *Set, errs, warnings string) {
	set, err := Parse([]File{{"f", []byte(yaml)}}, o)
	if err != nil {
		return nil, err.Error(), ""
	}
	return set, "", set.Warnings.Error()
}

// parse parses one file that must be right.
func parse(t testing.TB, yaml string) *Set {
	t.Helper()
	set, err := Parse([]File{{"limits.yaml", []byte(yaml)}}, Options{})
	require.NoError(t, err)
	return set
}

// parseFirstDescriptor parses one file and returns its first descriptor.
func parseFirstDescriptor(t testing.TB, yaml string) *Descriptor {
	t.Helper()
	return parse(t, yaml).Domains[0].Descriptors[0]
}

// summarize returns the limits of a set in words, one descriptor a line.
func summarize(set *Set) string {
	var b strings.Builder
	var walk func(domain string, parents, list []*Descriptor)
	walk = func(domain string, parents, list []*Descriptor) {
		for _, d := range list {
			trail := append(parents[:len(parents):len(parents)], d)
			if len(d.Limits) > 0 {
				fmt.Fprintf(&b, "%s: %s\n", Path(domain, trail), d.Summary())
			}
			walk(domain, trail, d.Descriptors)
		}
	}
	for _, d := range set.Domains {
		walk(d.Name, nil, d.Descriptors)
	}
	return strings.TrimSpace(b.String())
}
