package condition

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func inlineEntries(texts ...string) []Entry {
	var entries []Entry
	for i, text := range texts {
		entries = append(entries, Entry{Text: text, Line: i + 1})
	}
	return entries
}

func cidrCondition(t testing.TB, texts ...string) *Condition {
	c, problems, _ := CIDR("", inlineEntries(texts...))
	require.Empty(t, problems)
	return c
}

func inCondition(t testing.TB, texts ...string) *Condition {
	c, problems, _ := In("", inlineEntries(texts...))
	require.Empty(t, problems)
	return c
}

func regexCondition(t testing.TB, expression string) *Condition {
	c, err := Regex(expression, new(Patterns))
	require.NoError(t, err)
	return c
}

func celCondition(t testing.TB, text string) *Condition {
	c, err := CEL(text, new(Patterns))
	require.NoError(t, err)
	return c
}

func prefixCondition(t testing.TB, text string) *Condition {
	c, err := Prefix(text)
	require.NoError(t, err)
	return c
}

func meets(c *Condition, text string) bool {
	return c.Meets(text)
}

func TestConditionsMatchValues(t *testing.T) {
	networks := cidrCondition(t, "10.0.0.0/8", "192.168.1.7", "2001:db8::/32", "2001:db8::/48")
	for _, c := range []struct {
		condition      *Condition
		matchingValues []string
		otherValues    []string
	}{
		{
			networks,
			[]string{"10.0.0.0", "10.255.255.255", "192.168.1.7", "2001:db8::1", "2001:DB8:ffff::", "::ffff:10.1.2.3", "2001:db8::1%eth0"},
			[]string{"", "11.0.0.0", "9.255.255.255", "192.168.1.8", "2001:db9::", "::10.0.0.1", "10.0.0.1:80", " 10.0.0.1", "10.0.0.0/8", "010.0.0.1", "text"},
		},
		{cidrCondition(t, "0.0.0.0/0"), []string{"1.2.3.4", "::ffff:1.2.3.4"}, []string{"::1"}},
		{cidrCondition(t, "::/0"), []string{"::1"}, []string{"1.2.3.4"}},
		{cidrCondition(t, "::ffff:1.2.3.4"), []string{"1.2.3.4"}, []string{"1.2.3.5"}},
		{inCondition(t, "GET", "HEAD", ""), []string{"GET", "HEAD", ""}, []string{"get", "GET ", "POST"}},
		{prefixCondition(t, "/api/*"), []string{"/api/*", "/api/*x"}, []string{"/api/x", ""}},
		{regexCondition(t, "v[0-9]+"), []string{"v1", "v23"}, []string{"xv1", "v1x", "v1\n", "v"}},
		{regexCondition(t, "^a|b$"), []string{"a", "b"}, []string{"ab", "ax"}},
		{regexCondition(t, `\Qa.b`), []string{"a.b"}, []string{"axb", "a.b)"}},
		{regexCondition(t, "(?i)get|post"), []string{"GET", "Post"}, []string{"PUT"}},
		{celCondition(t, `value.startsWith("/api/") && !value.endsWith(".png")`), []string{"/api/", "/api/x"}, []string{"/api/x.png", "/x", ""}},
		{celCondition(t, `size(value) > 2 && value in ["abc", "abd"]`), []string{"abc"}, []string{"ab", "abe"}},
		{celCondition(t, `value.matches("^v[0-9]+$")`), []string{"v1"}, []string{"v", "v1x"}},
	} {
		t.Run(c.condition.String(), func(t *testing.T) {
			for _, v := range c.matchingValues {
				assert.True(t, meets(c.condition, v), "%q", v)
				assert.False(t, meets(c.condition.Not(), v), "not %q", v)
			}
			for _, v := range c.otherValues {
				assert.False(t, meets(c.condition, v), "%q", v)
				assert.True(t, meets(c.condition.Not(), v), "not %q", v)
			}
		})
	}
}

func TestTextNamesTheCondition(t *testing.T) {
	fileList, problems, _ := In("deny list.txt", inlineEntries("a"))
	require.Empty(t, problems)
	var values []string
	for i := range 100 {
		values = append(values, fmt.Sprintf("value-%03d", i))
	}
	for want, c := range map[string]*Condition{
		"cidr(10.0.0.0/8 192.168.1.7)": cidrCondition(t, "192.168.1.7/32", "10.0.0.0/8", "10.0.0.0/8"),
		`in("" "a b" c)`:               inCondition(t, "c", "a b", ""),
		"in(file deny list.txt)":       fileList,
		"not in(a)":                    inCondition(t, "a").Not(),
		"prefix(/api/)":                prefixCondition(t, "/api/"),
		"regex(a*)":                    regexCondition(t, "a*"),
		`cel(value == "a")`:            celCondition(t, ` value == "a" `),
	} {
		assert.Equal(t, want, c.String())
	}
	longText := inCondition(t, values...).String()
	assert.Regexp(t, `^in\(value-000 value-001 .* \+92 [0-9a-f]{8}\)$`, longText)
	assert.NotEqual(t, longText, inCondition(t, values[:99]...).String())
	assert.NotEqual(t, prefixCondition(t, strings.Repeat("a", 100)).String(), prefixCondition(t, strings.Repeat("a", 101)).String())
}

func TestMistakesNameTheEntry(t *testing.T) {
	_, problems, _ := CIDR("f", inlineEntries("10.0.0.0/8", "10.0.0.0/33", "host", "::ffff:10.0.0.0/104", strings.Repeat("1", 2000)))
	require.Len(t, problems, 4)
	assert.Equal(t, 2, problems[0].Line)
	assert.Equal(t, `got "10.0.0.0/33", want a network such as 10.0.0.0/8 or 2001:db8::/32, or an address`, problems[0].Reason)
	assert.Contains(t, problems[2].Reason, "want the IPv4 form")
	assert.Contains(t, problems[3].Reason, "want at most 1024")

	_, problems, warnings := CIDR("", inlineEntries("10.1.2.3/8"))
	assert.Empty(t, problems)
	require.Len(t, warnings, 1)
	assert.Equal(t, "10.1.2.3/8 has host bits after its prefix length; rls uses 10.0.0.0/8", warnings[0].Reason)

	_, problems, _ = In("", make([]Entry, MaxEntries+1))
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0].Reason, "maximum is 250000")

	for expression, want := range map[string]string{
		"":                           "empty expression",
		"(":                          "missing closing ): (; want an expression in the syntax of RE2",
		"a)|(b":                      "unexpected )",
		`(?=x)`:                      "(?=",
		`(a)\1`:                      "invalid escape sequence",
		strings.Repeat("(a|b)", 300): "want at most 1024",
		"(a{100}){100}":              "invalid repeat",
		"[a-z]{900}[a-z]{900}[a-z]{900}[a-z]{900}[a-z]{900}[a-z]{900}": "instructions, want at most 2000",
	} {
		_, err := Regex(expression, new(Patterns))
		assert.ErrorContains(t, err, want, expression)
	}
	_, err := Prefix("")
	assert.ErrorContains(t, err, "empty prefix")
}

func TestListFileHasOneEntryALine(t *testing.T) {
	entries, problems := ParseFile([]byte("\xef\xbb\xbfa\r\n\n# comment\n  b # c  \n\xff\n10.0.0.0/8"))
	assert.Equal(t, []Entry{{Text: "a", Line: 1}, {Text: "b # c", Line: 4}, {Text: "10.0.0.0/8", Line: 6}}, entries)
	require.Len(t, problems, 1)
	assert.Equal(t, 5, problems[0].Line)
}

func TestExamplesHaveValuesThatMeetTheConditionAndValuesThatDoNot(t *testing.T) {
	for _, c := range []*Condition{
		cidrCondition(t, "10.0.0.0/8"), inCondition(t, "a", "b"), prefixCondition(t, "/api"), regexCondition(t, `v[0-9]{2,}(\.x|y)+`), regexCondition(t, `[^a-z]\d?`), celCondition(t, `value == "gold" || value.startsWith("/a")`),
	} {
		for _, c := range []*Condition{c, c.Not()} {
			metCount, unmetCount := 0, 0
			for _, v := range c.Examples() {
				if meets(c, v) {
					metCount++
				} else {
					unmetCount++
				}
			}
			assert.Positive(t, metCount, c)
			assert.Positive(t, unmetCount, c)
		}
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	for _, c := range []*Condition{cidrCondition(t, "10.0.0.0/8"), inCondition(t, "a"), prefixCondition(t, "a"), regexCondition(t, "v[0-9]+")} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { meets(c, "10.1.2.3") }), c)
	}
}

func FuzzList(f *testing.F) {
	f.Add([]byte("10.0.0.0/8\n# c\n::1\n"), "10.1.1.1")
	f.Add([]byte("a\r\nb\n\xff"), "a")
	f.Fuzz(func(t *testing.T, data []byte, value string) {
		entries, problems := ParseFile(data)
		for _, p := range problems {
			if p.Line == 0 || p.Reason == "" {
				t.Fatalf("%+v", p)
			}
		}
		if c, problems, _ := CIDR("", entries); len(problems) == 0 {
			if meets(c, value) == meets(c.Not(), value) {
				t.Fatalf("%q meets %s and its negation", value, c)
			}
			for _, e := range firstAddresses(c.list.entries) {
				if !meets(c, e) {
					t.Fatalf("%q does not meet %s", e, c)
				}
			}
		}
		if c, problems, _ := In("", entries); len(problems) == 0 {
			for _, e := range entries {
				if !meets(c, e.Text) {
					t.Fatalf("%q does not meet %s", e.Text, c)
				}
			}
		}
	})
}

func FuzzRegex(f *testing.F) {
	f.Add("v[0-9]+", "v1")
	f.Add(`(?i)\pL{2}|\bx$`, "é")
	f.Fuzz(func(t *testing.T, expression, value string) {
		c, err := Regex(expression, new(Patterns))
		if err != nil {
			if err.Error() == "" {
				t.Fatal("the error is empty")
			}
			return
		}
		if _, err := c.Match(&Value{text: value}, new(Budget)); err == nil && meets(c, value) == meets(c.Not(), value) {
			t.Fatalf("%q meets %s and its negation", value, c)
		}
		c.Examples()
	})
}

func TestOnlyAListOfAFileHasASummary(t *testing.T) {
	for name, c := range map[string]struct {
		list *List
		want string
	}{
		"no list":                 {nil, ""},
		"list of the limits file": {&List{entries: []string{"a"}}, ""},
		"list of a file":          {&List{file: "deny.txt", entries: []string{"a", "b"}}, "deny.txt has 2 entries, digest "},
	} {
		got := c.list.Summary()
		assert.True(t, strings.HasPrefix(got, c.want), name)
		assert.Equal(t, c.want == "", got == "", name)
	}
}
