package limitsfile

import (
	"fmt"
	"testing"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// resource returns an xDS resource from its JSON form.
func resource(t testing.TB, name, json string) *confv3.RateLimitConfig {
	t.Helper()
	r := &confv3.RateLimitConfig{}
	require.NoError(t, protojson.Unmarshal([]byte(json), r))
	r.Name = name
	return r
}

// Each resource has the same limits as the limits file beside it.
func TestXDSResourceEqualsLimitsFile(t *testing.T) {
	for name, test := range map[string]struct{ json, yaml string }{
		"units": {
			`{"domain":"d","descriptors":[
				{"key":"s","rate_limit":{"unit":"SECOND","requests_per_unit":1}},
				{"key":"m","rate_limit":{"unit":"MINUTE","requests_per_unit":2}},
				{"key":"h","rate_limit":{"unit":"HOUR","requests_per_unit":3}},
				{"key":"d","rate_limit":{"unit":"DAY","requests_per_unit":4}},
				{"key":"w","rate_limit":{"unit":"WEEK","requests_per_unit":5}},
				{"key":"mo","rate_limit":{"unit":"MONTH","requests_per_unit":6}},
				{"key":"y","rate_limit":{"unit":"YEAR","requests_per_unit":4294967295}}]}`,
			`{domain: d, descriptors: [
				{key: s, rate_limit: {unit: second, requests_per_unit: 1}},
				{key: m, rate_limit: {unit: minute, requests_per_unit: 2}},
				{key: h, rate_limit: {unit: hour, requests_per_unit: 3}},
				{key: d, rate_limit: {unit: day, requests_per_unit: 4}},
				{key: w, rate_limit: {unit: week, requests_per_unit: 5}},
				{key: mo, rate_limit: {unit: month, requests_per_unit: 6}},
				{key: y, rate_limit: {unit: year, requests_per_unit: 4294967295}}]}`,
		},
		"everything the API has": {
			`{"domain":"d","descriptors":[{"key":"a","value":"yes","shadow_mode":true,"detailed_metric":true,
				"rate_limit":{"unit":"DAY","requests_per_unit":0,"name":"n","replaces":[{"name":"x"},{"name":"y"}]},
				"descriptors":[{"key":"b","value":"1.5*","rate_limit":{"unlimited":true}},{"key":"c","quota_mode":true,
					"rate_limit":{"unit":"HOUR","requests_per_unit":7}}]},
				{"key":"allowed"}]}`,
			`{domain: d, descriptors: [{key: a, value: "yes", shadow_mode: true, detailed_metric: true,
				rate_limit: {unit: day, requests_per_unit: 0, name: n, replaces: [{name: x}, {name: y}]},
				descriptors: [{key: b, value: "1.5*", rate_limit: {unlimited: true}}, {key: c, quota_mode: true,
					rate_limit: {unit: hour, requests_per_unit: 7}}]},
				{key: allowed}]}`,
		},
		"ours beside the API's": {
			`{"domain":"d","descriptors":[{"key":"a","value":"*","rate_limit":{"unit":"MINUTE","requests_per_unit":9},"metadata":{"rls":{
				"share_threshold":true,"value_to_metric":true,
				"rate_limit":{"algorithm":"token_bucket","unit_multiplier":15,"burst":20,"scope":"instance","charge_denied":false,
					"on_backend_failure":"deny","fallback_ratio":0.25}}}}]}`,
			`{domain: d, descriptors: [{key: a, value: "*", share_threshold: true, value_to_metric: true,
				rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket, unit_multiplier: 15, burst: 20,
					scope: instance, charge_denied: false, on_backend_failure: deny, fallback_ratio: 0.25}}]}`,
		},
		"an expression": {
			`{"domain":"d","descriptors":[{"key":"a","descriptors":[{"key":"b","rate_limit":{"unit":"DAY","requests_per_unit":3},"metadata":{"rls":{"cel":"entries.a == value"}}}]}]}`,
			`{domain: d, descriptors: [{key: a, descriptors: [{key: b, cel: "entries.a == value", rate_limit: {unit: day, requests_per_unit: 3}}]}]}`,
		},
		"several limits": {
			`{"domain":"d","descriptors":[{"key":"a","metadata":{"rls":{"rate_limits":[
				{"unit":"second","requests_per_unit":10},{"unit":"day","requests_per_unit":1000,"algorithm":"sliding_log"}]}}}]}`,
			`{domain: d, descriptors: [{key: a, rate_limits: [
				{unit: second, requests_per_unit: 10}, {unit: day, requests_per_unit: 1000, algorithm: sliding_log}]}]}`,
		},
		"a whole limit": {
			`{"domain":"d","descriptors":[{"key":"a","metadata":{"rls":{"quota_mode":true,"rate_limit":{"unit":"second","requests_per_unit":10}}}}]}`,
			`{domain: d, descriptors: [{key: a, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 10}}]}`,
		},
		"defaults of the domain": {
			`{"domain":"d","descriptors":[{"key":"a","rate_limit":{"unit":"HOUR","requests_per_unit":5}},
				{"key":"carrier","metadata":{"rls":{"defaults":{"algorithm":"sliding_window","scope":"instance"}}}}]}`,
			`{domain: d, defaults: {algorithm: sliding_window, scope: instance},
				descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 5}}, {key: carrier}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ParseXDS([]*confv3.RateLimitConfig{resource(t, "r", test.json)}, Options{})
			require.NoError(t, err)
			assert.Empty(t, c.Warnings)
			same := parse(t, test.yaml)
			assert.Equal(t, summaries(same), summaries(c))
			assert.Equal(t, limitsOf(same), limitsOf(c))
		})
	}
}

// limitsOf returns all limits of a set with their specs and flags.
func limitsOf(set *Set) (all []string) {
	var walk func(list []*Descriptor)
	walk = func(list []*Descriptor) {
		for _, d := range list {
			for _, l := range d.Limits {
				all = append(all, fmt.Sprint(d.Label(), d.Summary(), l.Unlimited, l.Name, l.Replaces))
				if l.Limit != nil {
					all = append(all, fmt.Sprintf("%+v", l.Spec))
				}
			}
			walk(d.Descriptors)
		}
	}
	for _, d := range set.Domains {
		walk(d.Descriptors)
	}
	return all
}

func TestXDSMetadataLosesOurFields(t *testing.T) {
	c, err := ParseXDS([]*confv3.RateLimitConfig{resource(t, "r", `{"domain":"d","descriptors":[
		{"key":"both","rate_limit":{"unit":"DAY","requests_per_unit":1},
		 "metadata":{"rls":{"value_to_metric":true},"a":"text","b":5,"c":1.5,"d":true,"e":null,"f":[1,{"g":"yes"}],"h":{"rls":{"x":1}},"<<":"m"}},
		{"key":"ours","rate_limit":{"unit":"DAY","requests_per_unit":1},"metadata":{"rls":{"value_to_metric":true}}}]}`)}, Options{})
	require.NoError(t, err)
	got, err := protojson.Marshal(c.Domains[0].Descriptors[0].Metadata)
	require.NoError(t, err)
	assert.JSONEq(t, `{"a":"text","b":5,"c":1.5,"d":true,"e":null,"f":[1,{"g":"yes"}],"h":{"rls":{"x":1}},"<<":"m"}`, string(got))
	assert.Nil(t, c.Domains[0].Descriptors[1].Metadata)
}

func TestXDSProblems(t *testing.T) {
	const good = `"rate_limit":{"unit":"DAY","requests_per_unit":1}`
	for _, test := range []struct{ json, want string }{
		{`{}`, `r: domain is missing`},
		{`{"domain":"d","descriptors":[{` + good + `}]}`, `r: d > descriptor 1: key is missing`},
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"requests_per_unit":1}}]}`,
			`r: d > k: unit is missing; want millisecond, second, minute, hour, day, week, month or year`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":99,"requests_per_unit":1}}]}`,
			`r: d > k: unit: got "99", want millisecond, second, minute, hour, day, week, month or year`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"DAY","unlimited":true}}]}`,
			`r: d > k: unit has no meaning beside unlimited: true`,
		},
		{`{"domain":"d","descriptors":[{"key":"k",` + good + `},{"key":"k",` + good + `}]}`, `r: d > k: duplicate of the descriptor at r`},
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"DAY","name":"n","replaces":[{"name":"n"},{}]}}]}`,
			"r: d > k: a limit can't replace itself (n)\nr: d > k: an item of replaces needs the name of a limit",
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","descriptors":[{"key":"l",` + good + `,"metadata":{"rls":{"share_threshold":true,"brust":3}}}]}]}`,
			`r: d > k > l: unknown key "brust"; did you mean burst, which belongs in rate_limit or defaults?` +
				"\nr: d > k > l: share_threshold needs a key or value with a *, or a condition such as cidr",
		},
		{
			`{"domain":"d","descriptors":[{"key":"k",` + good + `,"metadata":{"rls":{"cel":"entries.l == value"}}}]}`,
			`r: d > k=cel(entries.l == value): cel: got the entry l, which this descriptor and those above it don't have; want k`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k",` + good + `,"metadata":{"rls":"x"}}]}`,
			`r: d > k: rls in metadata: want a mapping with fields of a descriptor`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","descriptors":[{"key":"l","metadata":{"rls":{"defaults":{"burst":1}}}}]}]}`,
			`r: d > k > l: defaults has no meaning in the descriptor; it belongs in the root of the file`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","metadata":{"rls":{"rate_limits":[{"unit":"day","requests_per_unit":1},{"unit":"day","requests_per_unit":2}]}}}]}`,
			`r: d > k: duplicate of the limit there (1 per day): with the same algorithm, window and scope they would share one counter`,
		},
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"DAY"},"metadata":{"rls":{"rate_limit":{"burst":1.5}}}}]}`,
			`r: d > k: burst: got 1.5, want a whole number from 1 to 4294967295`,
		},
	} {
		_, err := ParseXDS([]*confv3.RateLimitConfig{resource(t, "r", test.json)}, Options{})
		assert.EqualError(t, err, test.want, test.json)
	}
}

func TestXDSResourcesOfOneDomainNeedMergeDomains(t *testing.T) {
	two := []*confv3.RateLimitConfig{
		resource(t, "a", `{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"DAY","requests_per_unit":1}}]}`),
		resource(t, "", `{"domain":"d","descriptors":[{"key":"l","rate_limit":{"unit":"DAY","requests_per_unit":1}}]}`),
	}
	_, err := ParseXDS(two, Options{})
	require.EqualError(t, err, "resource 2: domain d is already in a, and merging domains is off")
	c, err := ParseXDS(two, Options{MergeDomains: true})
	require.NoError(t, err)
	assert.Equal(t, "l", c.Domains[0].Descriptors[1].Key)
}

func TestHostileXDSResourcesAreRejected(t *testing.T) {
	deep := &confv3.RateLimitDescriptor{Key: "k"}
	for range 5000 {
		deep = &confv3.RateLimitDescriptor{Key: "k", Descriptors: []*confv3.RateLimitDescriptor{deep}}
	}
	_, err := ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{deep}}}, Options{})
	require.ErrorContains(t, err, "r: descriptors are nested more than 100 deep")

	value := structpb.NewStringValue("x")
	for range 1000 {
		value = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{value, nil}})
	}
	d := &confv3.RateLimitDescriptor{
		Key: "k", RateLimit: &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_DAY},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"m": value}},
	}
	_, err = ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{d, nil}}}, Options{})
	require.ErrorContains(t, err, "r: d > descriptor 2: key is missing")
	require.ErrorContains(t, err, "r: d > k: metadata is nested more than 100 deep")

	odd := resource(t, "r", `{"domain":"d","descriptors":[{"key":"a\u0000\u007f","value":"\u2028\n","rate_limit":{"unit":"DAY"}}]}`)
	c, err := ParseXDS([]*confv3.RateLimitConfig{odd, nil}[:1], Options{})
	require.NoError(t, err)
	assert.Equal(t, "a\x00\x7f", c.Domains[0].Descriptors[0].Key, "any text is fine")
	_, err = ParseXDS([]*confv3.RateLimitConfig{nil}, Options{})
	require.EqualError(t, err, "resource 1: domain is missing")
	_, err = ParseXDS([]*confv3.RateLimitConfig{{Name: "a\nb"}}, Options{})
	require.EqualError(t, err, `"a\nb": domain is missing`, "a problem is a line")
	c, err = ParseXDS(nil, Options{})
	require.NoError(t, err)
	assert.Empty(t, c.Domains)
}

// FuzzParseXDS checks that no resource makes ParseXDS panic or hang, and that no descriptor
// escapes XDSBounds.
func FuzzParseXDS(f *testing.F) {
	for _, json := range []string{
		`{"domain":"d","descriptors":[{"key":"k","value":"v*","rate_limit":{"unit":"DAY","name":"n","replaces":[{"name":"m"}]},
			"metadata":{"a":[1,{"b":null}],"rls":{"share_threshold":true,"rate_limit":{"burst":2},"defaults":{"scope":"instance"}}}}]}`,
		`{"domain":"d","descriptors":[{"key":"k","quota_mode":true,"descriptors":[{"key":"l","rate_limit":{"unlimited":true}}]}]}`,
	} {
		wire, err := proto.Marshal(resource(f, "r", json))
		require.NoError(f, err)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := &confv3.RateLimitConfig{}
		var bounds XDSBounds
		err := bounds.Add(wire)
		if proto.Unmarshal(wire, r) != nil || err != nil {
			return
		}
		decoded := 0
		for _, d := range r.Descriptors {
			decoded += countXDSRules(d)
		}
		assert.GreaterOrEqual(t, bounds.rules, decoded, "counted before decoding")
		if set, err := ParseXDS([]*confv3.RateLimitConfig{r, r}, Options{MergeDomains: len(wire)%2 == 0}); err == nil {
			summaries(set)
		}
	})
}
