package limitsfile

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
)

func TestMetadataBecomesAStruct(t *testing.T) {
	for _, test := range []struct{ yaml, want string }{
		{"{}", "{}"},
		{"{a: text, b: 5, c: 1.5, d: true, e: ~, f: yes, g: 'yes'}", `{"a":"text","b":5,"c":1.5,"d":true,"e":null,"f":true,"g":"yes"}`},
		{"{a: 0x10, b: 1_000, c: 18446744073709551615, d: -1e3}", `{"a":16,"b":1000,"c":18446744073709552000,"d":-1000}`},
		{"{a: .inf, b: .nan, c: 2001-01-01}", `{"a":".inf","b":".nan","c":"2001-01-01"}`},
		{"{a: {b: {c: [1, [x, {y: z}], ~]}}}", `{"a":{"b":{"c":[1,["x",{"y":"z"}],null]}}}`},
		{"{5: a, yes: b, 1.5: c}", `{"5":"a","yes":"b","1.5":"c"}`},
		{"{domain: {unit: 1.5}, foo: bar}", `{"domain":{"unit":1.5},"foo":"bar"}`},
		{"{a: &x {b: 1, c: 2}, d: {<<: *x, c: 3}, e: *x}", `{"a":{"b":1,"c":2},"d":{"b":1,"c":3},"e":{"b":1,"c":2}}`},
		{"{a: 1, a: 2}", `{"a":2}`},
	} {
		t.Run(test.yaml, func(t *testing.T) {
			r := parseFirstDescriptor(t, oneDescriptor("metadata: "+test.yaml))
			got, err := protojson.Marshal(r.Metadata)
			require.NoError(t, err)
			assert.JSONEq(t, test.want, string(got))
			assert.True(t, json.Valid(got))
		})
	}
	for yaml, want := range map[string]string{
		"{[a]: b}":             "f:4:16: d > k: key in metadata: got a list, want text",
		"{a: !!binary '/w=='}": `f:4:19: d > k: metadata: got "/w==", want text in UTF-8`,
		"{<<: 5}":              "f:4:20: d > k: merge key (<<): got 5, want a mapping or a list of mappings",
	} {
		_, errs, _ := load(oneDescriptor("metadata: "+yaml), Options{})
		assert.Equal(t, want, errs)
	}
	assert.Nil(t, parseFirstDescriptor(t, oneDescriptor(tenAMinute)).Metadata)
}
