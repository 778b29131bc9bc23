package limitsfile

import (
	"fmt"
	"strings"
	"testing"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// newResource returns an xDS resource from its JSON form.
func newResource(t testing.TB, name, json string) *confv3.RateLimitConfig {
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
		"all fields of the xDS API": {
			`{"domain":"d","descriptors":[{"key":"a","value":"yes","shadow_mode":true,"detailed_metric":true,
				"rate_limit":{"unit":"DAY","requests_per_unit":0,"name":"n","replaces":[{"name":"x"},{"name":"y"}]},
				"descriptors":[{"key":"b","value":"1.5*","rate_limit":{"unlimited":true}},{"key":"c","quota_mode":true,
					"rate_limit":{"unit":"HOUR","requests_per_unit":7,"name":"x"}}]},
				{"key":"allowed","rate_limit":{"unlimited":true,"name":"y"}}]}`,
			`{domain: d, descriptors: [{key: a, value: "yes", shadow_mode: true, detailed_metric: true,
				rate_limit: {unit: day, requests_per_unit: 0, name: n, replaces: [{name: x}, {name: y}]},
				descriptors: [{key: b, value: "1.5*", rate_limit: {unlimited: true}}, {key: c, quota_mode: true,
					rate_limit: {unit: hour, requests_per_unit: 7, name: x}}]},
				{key: allowed, rate_limit: {unlimited: true, name: y}}]}`,
		},
		"fields of rls beside fields of the xDS API": {
			`{"domain":"d","descriptors":[{"key":"a","value":"*","rate_limit":{"unit":"MINUTE","requests_per_unit":9},"metadata":{"rls":{
				"share_threshold":true,"value_to_metric":true,
				"rate_limit":{"algorithm":"token_bucket","unit_multiplier":15,"burst":20,"scope":"instance","charge_denied":false,
					"on_backend_failure":"deny","fallback_ratio":0.25}}}}]}`,
			`{domain: d, descriptors: [{key: a, value: "*", share_threshold: true, value_to_metric: true,
				rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket, unit_multiplier: 15, burst: 20,
					scope: instance, charge_denied: false, on_backend_failure: deny, fallback_ratio: 0.25}}]}`,
		},
		"fields of rls in place of fields of the xDS API": {
			`{"domain":"d","descriptors":[{"key":"a","shadow_mode":true,"rate_limit":{"unit":"MINUTE","requests_per_unit":9,"name":"n"},
				"metadata":{"rls":{"shadow_mode":false,"rate_limit":{"requests_per_unit":5}}}}]}`,
			`{domain: d, descriptors: [{key: a, shadow_mode: false, rate_limit: {unit: minute, requests_per_unit: 5, name: n}}]}`,
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
			c, err := ParseXDS([]*confv3.RateLimitConfig{newResource(t, "r", test.json)}, nil, Options{})
			require.NoError(t, err)
			assert.Empty(t, c.Warnings)
			fileSet := parse(t, test.yaml)
			assert.Equal(t, summarize(fileSet), summarize(c))
			assert.Equal(t, limitsOf(fileSet), limitsOf(c))
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

func TestXDSMetadataLosesTheFieldsOfRLS(t *testing.T) {
	c, err := ParseXDS([]*confv3.RateLimitConfig{newResource(t, "r", `{"domain":"d","descriptors":[
		{"key":"both","rate_limit":{"unit":"DAY","requests_per_unit":1},
		 "metadata":{"rls":{"value_to_metric":true},"a":"text","b":5,"c":1.5,"d":true,"e":null,"f":[1,{"g":"yes"}],"h":{"rls":{"x":1}},"i":9223372036854775808,"<<":"m"}},
		{"key":"ours","rate_limit":{"unit":"DAY","requests_per_unit":1},"metadata":{"rls":{"value_to_metric":true}}}]}`)}, nil, Options{})
	require.NoError(t, err)
	got, err := protojson.Marshal(c.Domains[0].Descriptors[0].Metadata)
	require.NoError(t, err)
	assert.JSONEq(t, `{"a":"text","b":5,"c":1.5,"d":true,"e":null,"f":[1,{"g":"yes"}],"h":{"rls":{"x":1}},"i":9223372036854775808,"<<":"m"}`, string(got))
	assert.Nil(t, c.Domains[0].Descriptors[1].Metadata)
}

func TestXDSProblemsNameResourceAndPath(t *testing.T) {
	const good = `"rate_limit":{"unit":"DAY","requests_per_unit":1}`
	for _, test := range []struct{ json, want string }{
		{`{}`, `r: domain is missing; write domain: with the name in Envoy's filter`},
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
		{
			`{"domain":"d","descriptors":[{"key":"k","rate_limit":{"requests_per_unit":1}},{"key":"l","rate_limit":{"requests_per_unit":1}}]}`,
			"r: d > k: unit is missing; want millisecond, second, minute, hour, day, week, month or year\n" +
				"r: d > l: unit is missing; want millisecond, second, minute, hour, day, week, month or year",
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
			`r: d > k=cel(entries.l == value): cel: got the entry l, which neither this descriptor nor its parents have; want k`,
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
		_, err := ParseXDS([]*confv3.RateLimitConfig{newResource(t, "r", test.json)}, nil, Options{})
		assert.EqualError(t, err, test.want, test.json)
	}
}

func TestXDSResourcesOfOneDomainNeedMergeDomains(t *testing.T) {
	twoResources := []*confv3.RateLimitConfig{
		newResource(t, "a", `{"domain":"d","descriptors":[{"key":"k","rate_limit":{"unit":"DAY","requests_per_unit":1}}]}`),
		newResource(t, "", `{"domain":"d","descriptors":[{"key":"l","rate_limit":{"unit":"DAY","requests_per_unit":1}}]}`),
	}
	_, err := ParseXDS(twoResources, nil, Options{})
	require.EqualError(t, err, "resource 2: domain d is already in a; to merge both, set MERGE_DOMAIN_CONFIG=true")
	c, err := ParseXDS(twoResources, nil, Options{MergeDomains: true})
	require.NoError(t, err)
	assert.Equal(t, "l", c.Domains[0].Descriptors[1].Key)
}

func TestHostileXDSResourcesAreRejected(t *testing.T) {
	deepDescriptor := &confv3.RateLimitDescriptor{Key: "k"}
	for range 5000 {
		deepDescriptor = &confv3.RateLimitDescriptor{Key: "k", Descriptors: []*confv3.RateLimitDescriptor{deepDescriptor}}
	}
	_, err := ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{deepDescriptor}}}, nil, Options{})
	require.ErrorContains(t, err, "r: d > k: descriptors are nested more than 512 deep")

	value := structpb.NewStringValue("x")
	for range 1000 {
		value = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{value, nil}})
	}
	d := &confv3.RateLimitDescriptor{
		Key: "k", RateLimit: &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_DAY},
		Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"m": value}},
	}
	_, err = ParseXDS([]*confv3.RateLimitConfig{{Name: "r", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{d, nil}}}, nil, Options{})
	require.ErrorContains(t, err, "r: d > descriptor 2: key is missing")
	require.ErrorContains(t, err, "r: d > k: metadata is nested more than 100 deep")

	oddResource := newResource(t, "r", `{"domain":"d","descriptors":[{"key":"a\u0000\u007f","value":"\u2028\n","rate_limit":{"unit":"DAY"}}]}`)
	c, err := ParseXDS([]*confv3.RateLimitConfig{oddResource, nil}[:1], nil, Options{})
	require.NoError(t, err)
	assert.Equal(t, "a\x00\x7f", c.Domains[0].Descriptors[0].Key, "any text is fine")
	_, err = ParseXDS([]*confv3.RateLimitConfig{nil}, nil, Options{})
	require.EqualError(t, err, "resource 1: domain is missing; write domain: with the name in Envoy's filter")
	_, err = ParseXDS([]*confv3.RateLimitConfig{{Name: "a\nb"}}, nil, Options{})
	require.EqualError(t, err, `"a\nb": domain is missing; write domain: with the name in Envoy's filter`, "a problem is a line")
	c, err = ParseXDS(nil, nil, Options{})
	require.NoError(t, err)
	assert.Empty(t, c.Domains)
}

// FuzzParseXDS checks that no resource makes ParseXDS panic or hang, and that XDSBounds counts each descriptor.
func FuzzParseXDS(f *testing.F) {
	for _, json := range []string{
		`{"domain":"d","descriptors":[{"key":"k","value":"v*","rate_limit":{"unit":"DAY","name":"n","replaces":[{"name":"m"}]},
			"metadata":{"a":[1,{"b":null}],"rls":{"share_threshold":true,"rate_limit":{"burst":2},"defaults":{"scope":"instance"}}}}]}`,
		`{"domain":"d","descriptors":[{"key":"k","quota_mode":true,"descriptors":[{"key":"l","rate_limit":{"unlimited":true}}]}]}`,
	} {
		wire, err := proto.Marshal(newResource(f, "r", json))
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
		decodedRules := 0
		for _, d := range r.Descriptors {
			decodedRules += countXDSRules(d)
		}
		assert.GreaterOrEqual(t, bounds.ruleCount, decodedRules, "all rules are counted before decoding")
		set, _ := ParseXDS([]*confv3.RateLimitConfig{r, r}, nil, Options{MergeDomains: len(wire)%2 == 0})
		summarize(set)
	})
}

func TestXDSProblemsConcernTheirDomainsOnly(t *testing.T) {
	const rule = `"rate_limit":{"unit":"DAY","requests_per_unit":%d}`
	domain := func(name string, rules ...string) *confv3.RateLimitConfig {
		return newResource(t, name, `{"domain":"`+name+`","descriptors":[`+strings.Join(rules, ",")+`]}`)
	}
	limitedRule := func(key string, n int) string { return fmt.Sprintf(`{"key":"%s",`+rule+`}`, key, n) }
	badRule := `{"key":"bad","descriptors":[` + limitedRule("x", 1) + `,{"key":"y","rate_limit":{"requests_per_unit":1}},` + limitedRule("z", 1) + `]}`
	var oldSet *Set
	parse := func(resources ...*confv3.RateLimitConfig) (limits, problems string) {
		set, err := ParseXDS(resources, oldSet, Options{})
		if oldSet = set; err != nil {
			problems = err.Error()
		}
		return summarize(set), problems
	}
	const problem = "b: b > bad > y: unit is missing; want millisecond, second, minute, hour, day, week, month or year"

	limits, problems := parse(domain("a", limitedRule("k", 1)), domain("b", limitedRule("k", 1), badRule), domain("c", `{"key":"y","rate_limit":{}}`))
	assert.Equal(t, "a > k: 1 per day\nb > k: 1 per day\nb > bad > x: 1 per day\nb > bad > z: 1 per day", limits, "b has no earlier version without problems, and c has no other rule")
	assert.Contains(t, problems, problem)

	limits, problems = parse(domain("a", limitedRule("k", 2)), domain("b", limitedRule("k", 2), badRule))
	assert.Equal(t, "a > k: 2 per day\nb > k: 2 per day\nb > bad > x: 1 per day\nb > bad > z: 1 per day", limits, "b still has no version without problems")
	assert.Equal(t, problem, problems)

	limits, problems = parse(domain("a", limitedRule("k", 3)), domain("b", limitedRule("k", 3)))
	assert.Equal(t, "a > k: 3 per day\nb > k: 3 per day", limits)
	assert.Empty(t, problems)

	for range 2 {
		limits, problems = parse(domain("a", limitedRule("k", 4)), domain("b", limitedRule("k", 4), badRule))
		assert.Equal(t, "a > k: 4 per day\nb > k: 3 per day", limits, "the last version of b without problems")
		assert.Equal(t, problem, problems)
	}

	limits, _ = parse(domain("a", limitedRule("k", 5)), domain("", limitedRule("k", 5)))
	assert.Equal(t, "a > k: 5 per day\nb > k: 3 per day", limits, "the resource without a domain may be b")
	limits, _ = parse(domain("a", limitedRule("k", 6)), domain("a", limitedRule("l", 6)))
	assert.Equal(t, "a > k: 5 per day", limits, "the domain is in two resources")
	limits, problems = parse(domain("b", `{"key":"k","metadata":{"rls":{"defaults":{"scope":"moon"}}},`+fmt.Sprintf(rule, 7)+`}`, limitedRule("l", 7)))
	assert.Empty(t, limits, "the problem concerns all rules")
	assert.Contains(t, problems, "scope")
}

func TestXDSRulesWithLongPathsAreBounded(t *testing.T) {
	var resources []*confv3.RateLimitConfig
	for i := range 25 {
		d := &confv3.RateLimitDescriptor{}
		topDescriptor := d
		for range MaxDepth - 1 {
			d.Key, d.Value, d.RateLimit = "k", "v", &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_DAY}
			d.Descriptors = []*confv3.RateLimitDescriptor{{}}
			d = d.Descriptors[0]
		}
		d.Key = "k"
		resources = append(resources, &confv3.RateLimitConfig{Domain: fmt.Sprint(i), Descriptors: []*confv3.RateLimitDescriptor{topDescriptor}})
	}
	set, err := ParseXDS(resources[:15], nil, Options{})
	require.NoError(t, err)
	assert.Len(t, set.Domains, 15)
	set, err = ParseXDS(resources, nil, Options{})
	require.ErrorContains(t, err, "file has more than 320000 descriptors and limits")
	assert.Less(t, len(set.Domains), 25)
}
