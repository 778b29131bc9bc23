package limitsfile

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestConditionProblemsHavePlaceAndRemedy(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"lists/good.txt": "10.0.0.0/8\n",
		"lists/bad.txt":  "# networks\n10.0.0.0/8\n10.0.0.0/40\nhost\n",
		"lists/many.txt": strings.Repeat("x\n", 50),
	}
	readList := func(path string) ([]byte, error) {
		if text, ok := files[path]; ok {
			return []byte(text), nil
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	for _, c := range []struct{ name, fields, want string }{
		{"no CIDR", "cidr: [10.0.0.0/8, 10.0.0.300]", `f:4:24: d > k: cidr: got "10.0.0.300", want a network such as 10.0.0.0/8 or 2001:db8::/32, or an address`},
		{"not a list", "cidr: 10.0.0.0/8", "f:4:11: d > k: cidr: got 10.0.0.0/8, want a list, or a mapping with the name of a file, as in {file: list.txt}"},
		{"empty list", "in: []", "f:4:9: d > k: in: got an empty list, want at least one entry"},
		{"an entry of another type", "in: [a, [b], 1.5, ~]", "d > k: entry of in: got a list, want text"},
		{"a number", "in: [1.5]", `entry of in: got a number, want text; write "1.5" in quotes`},
		{"null in a list", "in: [~]", "entry of in: got null, want text"},
		{"two conditions", "in: [a]\nprefix: b", "in and prefix are both given; want one of them"},
		{"value and prefix in one descriptor", "value: a\nprefix: b", "value and prefix are both given; want one of them"},
		{"in and not in one descriptor", "in: [a]\nnot: {in: [b]}", "in and not are both given; want one of them"},
		{"not without a condition", "not: {}", "not is empty; want cidr, in, prefix, regex or cel in it"},
		{"not of not", "not: {not: {in: [a]}}", "not has no meaning in not; it belongs in the descriptor"},
		{"value in not", "not: {value: a, in: [b]}", "value has no meaning in not and is ignored"},
		{"bad regex", "regex: 'a('", "f:4:12: d > k: regex: missing closing ): a(; want an expression in the syntax of RE2"},
		{"empty prefix", "prefix: ''", "prefix: got an empty prefix"},
		{"unknown name", "cel: valu == 'a'", `f:4:10: d > k: cel: at character 1: unknown name valu; want value or entries, or a function of CEL`},
		{"wrong type", "cel: value > 3", "cel: at character 7: found no matching overload"},
		{"result that is no bool", "cel: size(value)", `cel: the result has the type int, want bool; compare it, as in value == "gold"`},
		{"wrong syntax", "cel: value ==", "cel: at character 9: Syntax error"},
		{"mistake in the second line", "cel: |\n  value == 'a' &&\n  valu == 'b'", "cel: in line 2 of the expression, at character 1: unknown name valu"},
		{"constant expression", "cel: 1 < 2", "cel: the result is always the same, because the expression reads neither value nor entries"},
		{"empty expression", "cel: ''", `cel: got an empty expression; want an expression such as value.startsWith("/api/")`},
		{"long expression", "cel: value == '" + strings.Repeat("a", 1100) + "'", "cel: got 1111 bytes, want at most 1024"},
		{"bad pattern", "cel: value.matches('a(')", "cel: matches: missing closing ): a("},
		{"pattern of a request", "cel: value.matches(entries.k)", `matches: got a pattern that is not a text in quotes`},
		{"loops in loops", "cel: entries.all(a, entries.all(b, entries.all(c, entries.all(e, a + b + c + e != value))))", "cel: the cost can reach"},
		{"unknown entry", "cel: entries.tenant == value", "cel: got the entry tenant, which neither this descriptor nor its parents have; want k"},
		{"cel beside a value", "cel: value == 'a'\nvalue: b", "value and cel are both given; want one of them"},
		{"cel in not", "not: {cel: 'value'}", "cel: the result has the type string, want bool"},
		{"missing file", "in: {file: none.txt}", "f:4:16: d > k: in: open lists/none.txt: file does not exist"},
		{"file without a name", "in: {}", "in: the name of the file is missing; want {file: list.txt}"},
		{"unknown field beside file", "in: {path: x}", "unknown key path; want file"},
		{"problems name the line of the list file", "cidr: {file: bad.txt}", "lists/bad.txt:3: d > k: got \"10.0.0.0/40\", want a network such as 10.0.0.0/8 or 2001:db8::/32, or an address\nlists/bad.txt:4: d > k: got \"host\", want"},
		{"only the first problems of a list file are named", "cidr: {file: many.txt}", "cidr: 30 more lines of lists/many.txt have problems"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]File{{"lists/f", []byte(oneDescriptor(c.fields))}}, Options{ReadList: readList})
			text := fmt.Sprint(err)
			if err == nil {
				set, _ := Parse([]File{{"lists/f", []byte(oneDescriptor(c.fields))}}, Options{ReadList: readList})
				text = set.Warnings.Error()
			}
			assert.Contains(t, strings.ReplaceAll(text, "lists/f:", "f:"), c.want)
		})
	}
	for yaml, want := range map[string]string{
		"domain: d\ndescriptors: [{key: 'k*', in: [a]}]":                                            "in needs a key without a *",
		"domain: d\ndescriptors: [{key: k, in: [b, a]}, {key: k, in: [a, b]}]":                      "duplicate of the descriptor at f:2",
		"domain: d\ndescriptors: [{key: 'a*', descriptors: [{key: k, cel: 'entries.b == value'}]}]": "cel: got the entry b, which neither this descriptor nor its parents have",
		"domain: d\ndescriptors: [{key: k, in: {file: x}}]":                                         "a list can be in a file only if the limits are in a file",
	} {
		_, errs, _ := load(yaml, Options{})
		assert.Contains(t, errs, want)
	}
}

func TestConditionsOfAKeyHaveBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, descriptor string
		count            int
		want             string // a part of the error; empty if the file is valid
	}{
		{"many conditions", "key: k, prefix: p%d", 1000, ""},
		{"too many conditions", "key: k, prefix: p%d", 1001, "f:1003:9: d > k=prefix(p1000): more than 1000 conditions for one key; put their entries into one list, or combine them in one expression"},
		{"many routes", "key: k, regex: '/api/v%d/users/[0-9]+(/.*)?'", 1000, ""},
		{"many hosts", "key: k, regex: '[a-z]+\\.host-%d\\.example'", 300, ""},
		{"regular expressions that take too many steps", "key: k, regex: '.*%d.{300}'", 40, "the conditions for this key take up to"},
		{"simple expressions", "key: k, cel: 'value.startsWith(\"/%d/\") && value.endsWith(\".png\")'", 60, ""},
		{"expressions that take too many steps", "key: k, cel: 'entries.exists(k, entries.exists(l, entries[k].contains(\"%d\")))'", 40, "the conditions for this key take up to"},
		{"expensive expressions under 40 different keys", "key: k%d, cel: 'entries.exists(k, entries.exists(l, entries[k].contains(\"x\")))'", 40, ""},
		{"as many expressions as the bound", "key: k%[1]d, cel: 'value == \"%[1]d\"'", maxExpressions, ""},
		{"too many expressions", "key: k%[1]d, cel: 'value == \"%[1]d\"'", maxExpressions + 1, "more than 1000 different expressions; use another condition, or one expression for several descriptors"},
		{"regular expressions that are too large together", "key: k%[1]d, regex: '.{1000}.{800}%[1]d'", 300, "all regular expressions together need more than 500000 instructions"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			b.WriteString("domain: d\ndescriptors:\n")
			for i := range c.count {
				fmt.Fprintf(&b, "- {"+c.descriptor+"}\n", i)
			}
			_, errs, _ := load(b.String(), Options{})
			if c.want == "" {
				assert.Empty(t, errs)
				return
			}
			assert.Contains(t, errs, c.want)
			assert.Equal(t, 1, strings.Count(errs, "\n")+1, "one error: %.1000s", errs)
		})
	}
}

func TestConditionsWarnAboutHostBits(t *testing.T) {
	t.Parallel()
	_, errs, warnings := load(oneDescriptor("cidr: [10.1.2.3/8]\n"+tenAMinute), Options{})
	assert.Empty(t, errs)
	assert.Equal(t, "f:4:12: d > k=cidr(10.0.0.0/8): cidr: 10.1.2.3/8 has host bits after its prefix length; rls uses 10.0.0.0/8", warnings)
}

func TestSummaryDescribesListOfFile(t *testing.T) {
	t.Parallel()
	readList := func(string) ([]byte, error) { return []byte("a\nb\na\n"), nil }
	set, err := Parse([]File{{"f", []byte(oneDescriptor("in: {file: deny.txt}\n" + tenAMinute))}}, Options{ReadList: readList})
	assert.NoError(t, err)
	assert.Regexp(t, `^d > k=in\(file deny.txt\): 10 per minute \[deny.txt has 2 entries, digest [0-9a-f]{8}\]$`, summarize(set))
}
