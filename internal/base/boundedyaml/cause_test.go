package boundedyaml

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// brokenFiles are files with one mistake. The place is line:column.
var brokenFiles = []struct{ name, data, place, want string }{
	{"tab before an item", "domain: d\ndescriptors:\n\t- key: k\n", "3:1", "a tab is in the indentation; want spaces only"},
	{"tab before a key", "domain: d\ndescriptors:\n  - key: k\n\tvalue: v\n", "4:1", "a tab"},
	{"tab after spaces", "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n    \t  unit: day\n", "5:5", "a tab"},
	{"no space after the colon of an item", "domain: d\ndescriptors:\n  - key:k\n    value: v\n", "3:8", "no space after the colon of key:k; want key: k"},
	{"no space after the first colon", "domain:d\ndescriptors: []\n", "1:7", "want domain: d"},
	{"no space after the last colon", "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: day\n      requests_per_unit:5\n", "6:24", "want requests_per_unit: 5"},
	{"no space after a nested colon", "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      requests_per_unit:5\n      unit: day\n", "5:24", "want requests_per_unit: 5"},
	{"open double quote", "domain: \"d\ndescriptors:\n  - key: k\n", "1:9", `the quote " opens here and is not closed; want " at the end of the value`},
	{"open double quote before another", "domain: d\ndescriptors:\n  - key: \"k\n    value: v\n  - key: \"b\"\n", "3:10", `the quote " opens here`},
	{"open single quote before another", "domain: d\ndescriptors:\n  - key: 'k\n    value: v\n  - key: 'b'\n", "3:10", "the quote ' opens here"},
	{"open quote in brackets", "domain: d\ndescriptors:\n  - key: k\n    in: [a, \"b]\n  - key: \"c\"\n", "4:13", `the quote " opens here`},
	{"apostrophe in single quotes", "domain: d\ndescriptors:\n  - key: k\n    value: 'it's'\n", "4:16", "write '' for '"},
	{"text after double quotes", "domain: d\ndescriptors:\n  - key: k\n    value: \"a\" b\n", "4:16", `write \" for "`},
	{"escape in double quotes", "domain: d\ndescriptors:\n  - key: k\n    regex: \"\\d+\"\n", "4:13", `\d is no escape in double quotes; want single quotes, or \\d`},
	{"one space too many", "domain: d\ndescriptors:\n  - key: k\n     value: v\n", "4:6", "wrong indentation: got 5 spaces, want 4 as in line 3"},
	{"one space too few", "domain: d\ndescriptors:\n  - key: k\n   value: v\n", "4:4", "got 3 spaces, want 4 as in line 3"},
	{"a key below its dash", "domain: d\ndescriptors:\n  - key: k\n  value: v\n", "4:3", "got 2 spaces, want 4 as in line 3"},
	{"space before the second key", "domain: d\n descriptors:\n  - key: k\n", "2:2", "got 1 space, want 0 as in line 1"},
	{"a limit between two levels", "domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: day\n     requests_per_unit: 5\n", "6:6", "got 5 spaces, want 6 as in line 5"},
	{"an item between two levels", "domain: d\ndescriptors:\n  - key: k\n - key: b\n", "4:2", "got 1 space, want 2 as in line 3"},
	{"an indented key after a value in quotes", "domain: \"d\"\n  descriptors: []\n", "2:3", "got 2 spaces, want 0"},
	{"an item in place of a key", "domain: d\ndescriptors:\n  - key: k\n    value: v\n    - key: b\n", "5:5", "got 4 spaces, want 2 as in line 3"},
	{"open brace", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5\n  - key: b\n", "4:17", "{ opens here and is not closed; want }"},
	{"open brace at the end", "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day", "4:17", "{ opens here and is not closed; want }"},
	{"open bracket", "domain: d\ndescriptors:\n  - key: k\n    in: [a, b\n  - key: b\n", "4:9", "[ opens here and is not closed; want ]"},
	{"open bracket before a key", "domain: d\ndescriptors:\n  - key: k\n    in: [a, b\n    value: v\n", "4:9", "[ opens here"},
	{"wrong closing bracket", "domain: d\ndescriptors:\n  - key: k\n    in: [a, b}\n", "4:9", "[ opens here, and } in line 4 closes it; want ]"},
	{"closing bracket without an opening bracket", "domain: d\ndescriptors:\n  - key: k\n    in: [a, b]]\n", "4:15", "] has no opening bracket"},
	{"JSON with an open brace", "{\"domain\": \"d\",\n \"descriptors\": [{\"key\": \"k\"]}", "2:18", "{ opens here, and ] in line 2 closes it; want }"},
	{"JSON without a comma", "{\"domain\": \"d\"\n \"descriptors\": []}", "2:2", `no comma before "descriptors":; want a comma`},
	{"no space after the first dash", "domain: d\ndescriptors:\n  -key: k\n    value: v\n", "3:3", "no space after the - of -key: k; want - key: k"},
	{"no space after a dash", "domain: d\ndescriptors:\n  - key: a\n  -key: k\n", "4:3", "want - key: k"},
	{"at sign", "domain: d\ndescriptors:\n  - key: k\n    value: @home\n", "4:12", "a value can't start with @ unless it is in quotes; want '@home'"},
	{"back quote", "domain: d\ndescriptors:\n  - key: k\n    value: `x`\n", "4:12", "a value can't start with `"},
	{"percent sign", "domain: d\ndescriptors:\n  - key: k\n    value: %x\n", "4:12", "a value can't start with %"},
	{"ampersand", "domain: d\ndescriptors:\n  - key: k\n    value: &\n", "4:12", "a value can't start with &"},
	{"pattern without quotes", "domain: d\ndescriptors:\n  - key: k\n    value: *.com\n", "4:12", "a value can't start with * unless it is in quotes; want '*.com'"},
	{"pattern in brackets", "domain: d\ndescriptors: [{key: k, value: *}]\n", "2:31", "want '*'"},
	{"exclamation mark", "domain: d\ndescriptors:\n  - key: k\n    value: !<a\n", "4:12", "a value can't start with !"},
	{"expression without quotes", "domain: d\ndescriptors:\n  - key: k\n    regex: [0-9]+\n", "4:12", "want '[0-9]+'"},
	{"block text with words", "domain: d\ndescriptors:\n  - key: k\n    value: > x\n", "4:12", "a value can't start with >"},
	{"second colon", "domain: d\ndescriptors:\n  - key: k\n    denial:\n      message: Wait: later\n", "5:20", "the text has a second colon; want quotes: 'Wait: later'"},
	{"second colon in braces", "domain: d\ndescriptors:\n  - key: k\n    denial: {message: a: b}\n", "4:24", "the text has a second colon"},
	{"no colon", "domain: d\ndescriptors\n  - key: k\n", "2:1", "no colon after descriptors; want key: value"},
	{"an item in the line of its key", "domain: d\ndescriptors: - key: k\n", "2:14", "want it in the next line"},
	{"merge conflict", "domain: d\n<<<<<<< HEAD\nlimit: 1\n=======\nlimit: 2\n>>>>>>> other\n", "2:1", "<<<<<<< marks a merge conflict"},
	{"unknown anchor", "domain: d\ndescriptors:\n  - key: k\n    <<: *base\n", "4:9", "unknown anchor: got *base, want &base"},
	{"open bracket after a text of several lines", "domain: d\nnote: |\n  a: b: c\n\n  \"\n\nlist:\n- key: [\n", "8:8", "[ opens here"},
	{"an item in place of a key, after comments", "# it's: a: b\ndomain: d # \"\nlist: [a, # ]\n  b]\n- c\n", "5:1", "an item of a list can't be a key"},
	{"open quote after letters of several bytes", "domain: d\ndescriptors: [{key: é, value: \"ü}]\n", "2:31", `the quote " opens here`},
}

func TestSyntaxErrorsNameLineAndRemedy(t *testing.T) {
	for _, test := range brokenFiles {
		for _, lineEnd := range []string{"\n", "\r\n"} {
			t.Run(fmt.Sprintf("%s %q", test.name, lineEnd), func(t *testing.T) {
				data := strings.ReplaceAll(test.data, "\n", lineEnd)
				_, _, err := readItems(t, data, smallPieces)
				p, ok := errors.AsType[*Problem](err)
				require.True(t, ok, "%v", err)
				assert.Equal(t, test.place, fmt.Sprintf("%d:%d", p.Line, p.Column), p.Reason)
				assert.Contains(t, p.Reason, notYAML)
				assert.Contains(t, p.Reason, test.want)
			})
		}
	}
}

// FuzzSyntaxErrors checks that each problem has a place in the file and a reason.
func FuzzSyntaxErrors(f *testing.F) {
	for _, test := range brokenFiles {
		f.Add([]byte(test.data))
	}
	f.Add([]byte("domain: \x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := 1 + bytes.Count(data, []byte("\n"))
		for _, err := range []error{parseError(data), openError(data)} {
			if p, ok := errors.AsType[*Problem](err); ok && (p.Line < 1 || p.Line > lines || p.Reason == "") {
				t.Fatalf("got %+v for %d lines", p, lines)
			}
		}
		if p := findCause(data); p != nil && (p.Line < 1 || p.Line > lines || p.Column < 1) {
			t.Fatalf("got %+v for %d lines", p, lines)
		}
	})
}

func parseError(data []byte) error {
	_, err := Parse(data, Bounds{})
	return err
}

func openError(data []byte) error {
	d, err := Open(data, "list", smallPieces)
	if err != nil {
		return err
	}
	return d.Items(func([]*yaml.Node) bool { return true })
}
