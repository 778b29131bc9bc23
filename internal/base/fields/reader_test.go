package fields

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

var testFields = []Field{
	{Name: "name", Kind: NonEmpty, Remedy: "want the name of the caller"},
	{Name: "count", Kind: Count, Min: 1, Max: 9},
	{Name: "access", Kind: Choice, Choices: []string{"read", "write"}},
	{Name: "list", Kind: List, Min: 1},
}

func readTestObject(data string, isSecret bool) (values Values, err error) {
	f := File{Name: "f", Data: []byte(data), MaxBytes: 100, ItemsName: "callers", EmptyProblem: "name is missing", IsSecret: isSecret}
	err = f.Read(func(r *Reader, root *yaml.Node) { values = r.Object(root, "caller", testFields) })
	return values, err
}

func TestObjectReturnsFieldsWithTheirValues(t *testing.T) {
	values, err := readTestObject("name: &a 1.0\naccess: read\ncount: 0x9\nlist: [*a]", false)
	require.NoError(t, err)
	assert.Equal(t, Value{Text: "1.0"}, values["name"].Value)
	assert.Equal(t, Value{Number: 9}, values["count"].Value)
	assert.Equal(t, Value{Text: "read"}, values["access"].Value)
	assert.True(t, values["list"].IsPresent())
	assert.False(t, values["other"].IsPresent())
}

func TestProblemsHavePlaceAndRemedy(t *testing.T) {
	for _, test := range []struct{ name, yaml, want, wantIfSecret string }{
		{"unknown field", "{name: a, acess: b}", "f:1:11: unknown key acess in caller; want name, count, access or list; did you mean access?", ""},
		{"unknown field with a secret", "{name: a, 'token:0123': b}", `f:1:11: unknown key "token:0123" in caller; want name, count, access or list`, "f:1:11: unknown key in caller; want name, count, access or list"},
		{"missing field", "{}", "f:1:1: name is missing; want the name of the caller", ""},
		{"field given twice", "name: a\nname: b", "f:2:1: name is given twice; remove one", ""},
		{"null", "name:", "f:1:6: name has no value", ""},
		{"empty text", "name: ''", "f:1:7: name is empty", ""},
		{"empty list", "{name: a, list: []}", "f:1:17: list is empty; want at least one item", ""},
		{"list for text", "name: [a]", "f:1:7: name: got a list, want text", "f:1:7: name: want text"},
		{"number out of range", "{name: a, count: 10}", "f:1:18: count: got 10, want a whole number from 1 to 9", "f:1:18: count: want a whole number from 1 to 9"},
		{"number in quotes", "{name: a, count: '1'}", `f:1:18: count: got "1", want a whole number from 1 to 9 without quotes`, "f:1:18: count: want a whole number from 1 to 9"},
		{"misspelt choice", "{name: a, access: writ}", "f:1:19: access: got writ, want read or write; did you mean write?", "f:1:19: access: want read or write"},
		{"text in place of a mapping", "a", "f:1:1: caller: got a, want a mapping with name, count, access, list", "f:1:1: caller: got a text, want a mapping with name, count, access, list"},
		{"invalid YAML", "name: @a", "f:1:7: not valid YAML: a value can't start with @ unless it is in quotes; want '@a'", "f:1: not valid YAML; want quotes around each value, and the same indentation in each line"},
		{"second document", "name: a\n---\nb", "f:2:1: file has a second YAML document; put all callers into one", ""},
		{"two problems, sorted by place", "count: 0\nlist: a\nname: b", "f:1:8: count: got 0, want a whole number from 1 to 9\nf:2:7: list: got a, want a list", "f:1:8: count: want a whole number from 1 to 9\nf:2:7: list: want a list"},
		{"empty file", "# nothing", "f: file is empty: name is missing", ""},
		{"large file", string(make([]byte, 101)), "f: file is 101 bytes; maximum is 100", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := readTestObject(test.yaml, false)
			require.EqualError(t, err, test.want)
			if test.wantIfSecret == "" {
				test.wantIfSecret = test.want
			}
			_, err = readTestObject(test.yaml, true)
			assert.EqualError(t, err, test.wantIfSecret)
		})
	}
}
