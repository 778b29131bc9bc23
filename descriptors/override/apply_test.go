package override

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

const shopLimits = `
domain: shop
defaults: {fallback_ratio: 0.25}
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
    descriptors:
      - key: path
        rate_limit: {unit: second, requests_per_unit: 5, name: path}
  - key: tenant
    value: big
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: bucket
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 30}
  - key: two
    rate_limits:
      - {unit: second, requests_per_unit: 10}
      - {unit: day, requests_per_unit: 1000}
  - key: api
    value: /v1/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 7}
  - key: x*
    rate_limit: {unit: hour, requests_per_unit: 8}
  - key: free
    rate_limit: {unlimited: true, name: free}
  - key: none
    descriptors: [{key: below, rate_limit: {unit: day, requests_per_unit: 1}}]
`

func TestApplyChangesLimits(t *testing.T) {
	type match struct {
		want          string   // the limits in words
		keysAndValues []string // the keys and values of the request, in turn
	}
	for _, test := range []struct {
		name      string
		overrides []string // targets and values in turn
		matches   []match
	}{
		{"the rule for any value", []string{"shop|tenant", `{"requests_per_unit": 7}`}, []match{
			{"7 per minute", []string{"tenant", "acme"}},
			{"1000 per minute", []string{"tenant", "big"}},
			{"5 per second", []string{"tenant", "acme", "path", "/"}},
		}},
		{"the rule for one value", []string{"shop|tenant=big", `{"requests_per_unit": 7}`}, []match{
			{"7 per minute", []string{"tenant", "big"}},
			{"100 per minute", []string{"tenant", "acme"}},
		}},
		{"a single value of a rule for any value", []string{"shop|tenant=acme", `{"factor": 10}`}, []match{
			{"1000 per minute", []string{"tenant", "acme"}},
			{"100 per minute", []string{"tenant", "other"}},
			{"1000 per minute", []string{"tenant", "big"}},
			{"5 per second", []string{"tenant", "acme", "path", "/"}},
		}},
		{"a child of a single value", []string{"shop|tenant=acme|path", `{"factor": 2}`}, []match{
			{"100 per minute", []string{"tenant", "acme"}},
			{"10 per second", []string{"tenant", "acme", "path", "/"}},
			{"5 per second", []string{"tenant", "other", "path", "/"}},
		}},
		{"a single value of a child of a single value", []string{"shop|tenant=acme|path=/a", `{"factor": 2}`, "shop|tenant=acme", `{"factor": 3}`}, []match{
			{"300 per minute", []string{"tenant", "acme"}},
			{"10 per second", []string{"tenant", "acme", "path", "/a"}},
			{"5 per second", []string{"tenant", "acme", "path", "/b"}},
			{"5 per second", []string{"tenant", "other", "path", "/a"}},
		}},
		{"a single value, and a single value of its child for any parent", []string{"shop|tenant=acme", `{"factor": 2}`, "shop|tenant|path=/a", `{"requests_per_unit": 1}`}, []match{
			{"200 per minute", []string{"tenant", "acme"}},
			{"1 per second", []string{"tenant", "acme", "path", "/a"}},
			{"1 per second", []string{"tenant", "other", "path", "/a"}},
			{"5 per second", []string{"tenant", "acme", "path", "/b"}},
		}},
		{"a single value, its child, and a single value of the child for any parent", []string{
			"shop|tenant=acme|path", `{"factor": 5}`, "shop|tenant=acme", `{"factor": 2}`, "shop|tenant|path=/a", `{"requests_per_unit": 1}`,
		}, []match{
			{"200 per minute", []string{"tenant", "acme"}},
			{"5 per second", []string{"tenant", "acme", "path", "/a"}},
			{"25 per second", []string{"tenant", "acme", "path", "/b"}},
			{"5 per second", []string{"tenant", "other", "path", "/b"}},
		}},
		{"a single value and its rule", []string{"shop|tenant=acme", `{"shadow_mode": true}`, "shop|tenant", `{"requests_per_unit": 3}`}, []match{
			{"3 per minute, shadow", []string{"tenant", "acme"}},
			{"3 per minute", []string{"tenant", "other"}},
		}},
		{"a pattern", []string{"shop|api=/v1/*", `{"requests_per_unit": 70}`}, []match{
			{"70 per hour", []string{"api", "/v1/a"}},
		}},
		{"one value of a pattern", []string{"shop|api=/v1/a", `{"requests_per_unit": 70}`}, []match{
			{"70 per hour", []string{"api", "/v1/a"}},
			{"7 per hour", []string{"api", "/v1/b"}},
			{"nothing", []string{"api", "/v2/a"}},
		}},
		{"one key and value of a pattern for keys", []string{"shop|x1=v", `{"requests_per_unit": 80}`}, []match{
			{"80 per hour", []string{"x1", "v"}},
			{"8 per hour", []string{"x1", "w"}},
			{"8 per hour", []string{"x2", "v"}},
		}},
		{"a window and its multiplier", []string{"shop|tenant", `{"unit": "hour", "unit_multiplier": 2}`}, []match{
			{"100 per 2 hours", []string{"tenant", "acme"}},
		}},
		{"a changed algorithm brings its own defaults", []string{"shop|tenant", `{"algorithm": "sliding_log"}`, "shop|bucket", `{"algorithm": "fixed_window"}`}, []match{
			{"100 per minute, sliding_log", []string{"tenant", "acme"}},
			{"10 per second", []string{"bucket", "b"}},
		}},
		{"a factor multiplies the burst", []string{"shop|bucket", `{"factor": 2.5}`}, []match{
			{"25 per second, token_bucket, burst 75", []string{"bucket", "b"}},
		}},
		{"a factor gives at least 1", []string{"shop|bucket", `{"factor": 0.001}`}, []match{
			{"1 per second, token_bucket", []string{"bucket", "b"}},
		}},
		{"a factor multiplies all limits of a rule", []string{"shop|two", `{"factor": 2}`}, []match{
			{"20 per second and 2000 per day", []string{"two", "v"}},
		}},
		{"one limit of a rule with several", []string{"shop|two=v", `{"rate_limits": [{}, {"requests_per_unit": 5}]}`}, []match{
			{"10 per second and 5 per day", []string{"two", "v"}},
			{"10 per second and 1000 per day", []string{"two", "w"}},
		}},
		{"a limit that is off", []string{"shop|tenant=acme", `{"enabled": false}`}, []match{
			{"nothing", []string{"tenant", "acme"}},
			{"100 per minute", []string{"tenant", "other"}},
		}},
		{"an unlimited value", []string{"shop|tenant=acme", `{"unlimited": true}`}, []match{
			{"unlimited", []string{"tenant", "acme"}},
		}},
		{"a limit in place of unlimited", []string{"shop|free=v", `{"unit": "hour", "requests_per_unit": 9}`}, []match{
			{"9 per hour", []string{"free", "v"}},
			{"unlimited", []string{"free", "w"}},
		}},
		{"a number over unlimited over a number", []string{"shop|tenant", `{"unlimited": true}`, "shop|tenant=acme", `{"requests_per_unit": 1}`, "shop|tenant=b", `{"factor": 2}`, "shop|tenant=c", `{"shadow_mode": true}`}, []match{
			{"1 per minute", []string{"tenant", "acme"}},
			{"200 per minute", []string{"tenant", "b"}},
			{"unlimited, shadow", []string{"tenant", "c"}},
			{"unlimited", []string{"tenant", "other"}},
		}},
		{"a limit where there was none", []string{"shop|none=v", `{"unit": "hour", "requests_per_unit": 9}`}, []match{
			{"9 per hour", []string{"none", "v"}},
			{"1 per day", []string{"none", "v", "below", "b"}},
			{"nothing", []string{"none", "w"}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			base := compile(t, shopLimits)
			var overrides []*Override
			for i := 0; i < len(test.overrides); i += 2 {
				overrides = append(overrides, parseOverride(t, test.overrides[i], test.overrides[i+1]))
			}
			changedLimits, outcomes := base.withOverrides(overrides...)
			for _, out := range outcomes {
				assert.Empty(t, out.Problem)
				assert.NotEqual(t, out.BaseLimits, out.Limits)
			}
			for _, m := range test.matches {
				assert.Equal(t, m.want, matchedLimits(changedLimits.Config, "shop", m.keysAndValues...), "%v", m.keysAndValues)
			}
			for _, baseLimits := range []limits{base, compile(t, shopLimits)} {
				assert.Equal(t, "100 per minute", matchedLimits(baseLimits.Config, "shop", "tenant", "acme"))
				assert.Equal(t, "5 per second", matchedLimits(baseLimits.Config, "shop", "tenant", "acme", "path", "/"))
				assert.Equal(t, "10 per second and 1000 per day", matchedLimits(baseLimits.Config, "shop", "two", "v"))
			}
		})
	}
}

func TestApplyKeepsOtherFields(t *testing.T) {
	changedLimits, out := compile(t, shopLimits).withOverrides(
		parseOverride(t, "shop|tenant=acme|path", `{"requests_per_unit": 50}`),
		parseOverride(t, "shop|free=v", `{"unit": "hour", "requests_per_unit": 9}`),
	)
	rule := changedLimits.Domain("shop").Match(entries("tenant", "acme", "path", "/"))
	assert.Equal(t, "path", rule.Limits[0].Name)
	assert.Equal(t, "path", rule.Limits[0].Response.Name)
	assert.EqualValues(t, 50, rule.Limits[0].Response.RequestsPerUnit)
	assert.Equal(t, 0.25, rule.Limits[0].FallbackRatio)
	assert.Equal(t, "shop > tenant=acme > path", rule.Path)
	assert.Equal(t, outcome{State: State{
		Path:       "shop > tenant=acme > path",
		BaseLimits: "5 per second, fallback_ratio 0.25 (named path)", Limits: "50 per second, fallback_ratio 0.25 (named path)",
		KeepsCounters: true,
	}}, out[0])

	rule = changedLimits.Domain("shop").Match(entries("free", "v"))
	assert.Equal(t, "free", rule.Limits[0].Response.Name)
}

func TestChangedNumberKeepsKeyAndTag(t *testing.T) {
	base := compile(t, shopLimits)
	changedLimits, _ := base.withOverrides(
		parseOverride(t, "shop|tenant=acme", `{"factor": 10}`),
		parseOverride(t, "shop|tenant=big", `{"algorithm": "token_bucket"}`),
	)
	for _, keysAndValues := range [][]string{{"tenant", "acme"}, {"tenant", "other"}, {"tenant", "acme", "path", "/"}} {
		oldRule, newRule := base.Domain("shop").Match(entries(keysAndValues...)), changedLimits.Domain("shop").Match(entries(keysAndValues...))
		assert.Equal(t, string(oldRule.AppendKey(nil, "shop", entries(keysAndValues...))), string(newRule.AppendKey(nil, "shop", entries(keysAndValues...))))
		assert.Equal(t, oldRule.Limits[0].Tag(), newRule.Limits[0].Tag())
	}
	assert.Equal(t, "tb60", changedLimits.Domain("shop").Match(entries("tenant", "big")).Limits[0].Tag(), "another algorithm has new counters")
	assert.Equal(t, "fw60", base.Domain("shop").Match(entries("tenant", "big")).Limits[0].Tag(), "the base stays as it is")
}

func TestOutcomeReportsKeptCounters(t *testing.T) {
	for _, test := range []struct {
		target, value string
		keepsCounters bool
	}{
		{"shop|tenant=acme", `{"factor": 2}`, true},
		{"shop|tenant=acme", `{"shadow_mode": true}`, true},
		{"shop|tenant=acme", `{"enabled": false}`, true},
		{"shop|tenant=acme", `{"unlimited": true}`, true},
		{"shop|tenant=acme", `{"algorithm": "sliding_log"}`, false},
		{"shop|tenant=acme", `{"unit": "hour"}`, false},
		{"shop|tenant=acme", `{"scope": "instance"}`, false},
		{"shop|two", `{"rate_limits": [{"requests_per_unit": 3}, {}]}`, true},
		{"shop|two", `{"rate_limits": [{}, {"unit": "week"}]}`, false},
		{"shop|api=/v1/*", `{"factor": 2}`, true},
		{"shop|api=/v1/a", `{"factor": 2}`, false}, // the value leaves the shared counter
		{"shop|none", `{"unit": "day", "requests_per_unit": 3}`, false},
	} {
		_, outcomes := compile(t, shopLimits).withOverrides(parseOverride(t, test.target, test.value))
		require.Empty(t, outcomes[0].Problem)
		assert.Equal(t, test.keepsCounters, outcomes[0].KeepsCounters, "%s %s", test.target, test.value)
	}
}

func TestChangedAlgorithmBesideOtherOverridesStartsNewCounter(t *testing.T) {
	_, outcomes := compile(t, shopLimits).withOverrides(
		parseOverride(t, "shop|tenant=acme|path=/a", `{"algorithm": "token_bucket"}`),
		parseOverride(t, "shop|tenant=acme|path", `{"factor": 2}`),
		parseOverride(t, "shop|tenant|path=/a", `{"factor": 2}`),
	)
	require.Empty(t, outcomes[0].Problem)
	assert.False(t, outcomes[0].KeepsCounters)
}

const sharedLimits = `
domain: shop
descriptors:
  - key: api
    value: /v1/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 7}
    descriptors:
      - {key: method, rate_limit: {unit: hour, requests_per_unit: 7}}
`

func TestOverrideForAnyValueKeepsSharedCounterOfCopy(t *testing.T) {
	changedLimits, outcomes := compile(t, sharedLimits).withOverrides(
		parseOverride(t, "shop|api=/v1/*", `{"factor": 2}`),
		parseOverride(t, "shop|api=/v1/a|method", `{"factor": 2}`),
	)
	require.Empty(t, outcomes[1].Problem)
	request := entries("api", "/v1/a")
	rule := changedLimits.Domain("shop").Match(request)
	assert.Equal(t, "shop|api=/v1/*", string(rule.AppendKey(nil, "shop", request)))
}

func TestOverrideBelowSharedCounterKeepsOtherValuesInIt(t *testing.T) {
	base := compile(t, sharedLimits)
	requests := [][]string{{"api", "/v1/a"}, {"api", "/v1/a", "method", "GET"}, {"api", "/v1/a", "method", "PUT"}, {"api", "/v1/b", "method", "GET"}}
	for target, ownCounter := range map[string][]bool{
		"shop|api=/v1/a|method=GET": {false, true, false, false},
		"shop|api=/v1/a|method":     {false, true, true, false},
		"shop|api=/v1/a":            {true, false, false, false},
		"shop|api=/v1/*|method=GET": {false, false, false, false},
	} {
		changedLimits, outcomes := base.withOverrides(parseOverride(t, target, `{"factor": 2}`))
		require.Empty(t, outcomes[0].Problem)
		for i, keysAndValues := range requests {
			request := entries(keysAndValues...)
			oldRule, newRule := base.Domain("shop").Match(request), changedLimits.Domain("shop").Match(request)
			isSameKey := string(oldRule.AppendKey(nil, "shop", request)) == string(newRule.AppendKey(nil, "shop", request))
			assert.Equal(t, ownCounter[i], !isSameKey, "%s: the counter of %v", target, keysAndValues)
		}
	}
}

func TestApplyLeavesOutOverridesThatDoNotFit(t *testing.T) {
	for _, test := range []struct{ target, value, want string }{
		{"none|tenant", `{"factor": 2}`, "unknown domain none; want shop"},
		{"shop|tenat", `{"factor": 2}`, "shop: unknown descriptor tenat; want tenant, bucket, two, api, x*, free or none; did you mean tenant?"},
		{"shop|tenat=acme", `{"factor": 2}`, "shop: unknown descriptor tenat=acme; want tenant, bucket, two, api, x*, free or none; did you mean tenant?"},
		{"shop|tenant=acme|method=GET", `{"factor": 2}`, "shop > tenant=acme: unknown descriptor method=GET; want path"},
		{"shop|tenant=big|path", `{"factor": 2}`, "shop > tenant=big: the descriptor has no children"},
		{"shop|api=/v2", `{"factor": 2}`, "unknown descriptor api=/v2"},
		{"shop|api=/v*", `{"factor": 2}`, "a pattern must be written as in the limits file"},
		{"shop|x1", `{"factor": 2}`, "unknown descriptor x1"},
		{"shop|tenant", `{"burst": 3}`, "burst is only for algorithm token_bucket"},
		{"shop|tenant", `{"unit_multiplier": 100000000}`, "longer than ten years"},
		{"shop|tenant", `{"factor": 1000000, "unit": "day"}`, ""},
		{"shop|tenant=big", `{"rate_limits": [{"requests_per_unit": 4294967295}, {}]}`, "rate_limits: got 2 items, want 1, one for each limit of the descriptor ({} keeps a limit as it is)"},
		{"shop|two", `{"requests_per_unit": 3}`, "the descriptor has 2 limits; put requests_per_unit into rate_limits"},
		{"shop|two", `{"rate_limits": [{"unit": "day"}, {}]}`, "they would share one counter"},
		{"shop|free", `{"factor": 3}`, "factor: the descriptor has no number to multiply"},
		{"shop|none", `{"factor": 3}`, "factor: the descriptor has no number to multiply"},
		{"shop|none", `{"shadow_mode": true}`, "the descriptor has no limit to change"},
		{"shop|none", `{"requests_per_unit": 3}`, "unit is missing"},
		{"shop|none", `{"unit": "day"}`, "requests_per_unit is missing"},
	} {
		base := compile(t, shopLimits)
		changedLimits, outcomes := base.withOverrides(parseOverride(t, test.target, test.value), parseOverride(t, "shop|tenant=good", `{"requests_per_unit": 1}`))
		if test.want == "" {
			assert.Empty(t, outcomes[0].Problem, test.value)
			continue
		}
		assert.ErrorContains(t, outcomes[0].Problem, test.want, test.value)
		assert.ErrorContains(t, outcomes[0].Problem, "override "+test.target+":", test.value)
		assert.Empty(t, outcomes[0].Limits)
		assert.Empty(t, outcomes[1].Problem, "the other override is in force")
		assert.Equal(t, "1 per minute", matchedLimits(changedLimits.Config, "shop", "tenant", "good"))
		assert.Equal(t, "100 per minute", matchedLimits(changedLimits.Config, "shop", "tenant", "acme"))
	}
}

func TestParseRejectsBadOverrides(t *testing.T) {
	for value, want := range map[string]string{
		``:                                       "is not JSON",
		`requests_per_unit: 3`:                   "is not JSON",
		`[]`:                                     "want a JSON object",
		`3.5`:                                    "want a JSON object",
		`99999999999`:                            "requests_per_unit: got 99999999999",
		`null`:                                   "want a JSON object",
		`{}`:                                     "changes nothing",
		`{"expires_at": "2030-01-31T12:00:00Z"}`: "changes nothing",
		`{"factor": 2, "expires_at": "tomorrow"}`:                  "want a time such as",
		`{"factor": 2, "expires_at": 3}`:                           "want a time such as",
		`{"factor": 0}`:                                            "want a number over 0",
		`{"factor": -1}`:                                           "want a number over 0",
		`{"factor": 1e300}`:                                        "want a number over 0 and up to 1000000",
		`{"factor": 2, "requests_per_unit": 3}`:                    "factor and requests_per_unit are both given",
		`{"rate_limits": [{"factor": 2, "burst": 3}]}`:             "factor and burst are both given",
		`{"request_per_unit": 3}`:                                  "did you mean requests_per_unit?",
		`{"requests_per_unit": "3"}`:                               "want a whole number from 0 to 4294967295 without quotes",
		`{"requests_per_unit": -3}`:                                "want a whole number",
		`{"requests_per_unit": 3, "requests_per_unit": 4}`:         `duplicate map key "requests_per_unit"`,
		`{"value": "v"}`:                                           "unknown key \"value\"",
		`{"descriptors": []}`:                                      "unknown key \"descriptors\"",
		`{"rate_limits": [{"expires_at": "x"}]}`:                   "expires_at has no meaning in an item of rate_limits; it belongs in the override",
		`{"rate_limits": [{"shadow_mode": true}]}`:                 "shadow_mode has no meaning in an item of rate_limits",
		`{"rate_limits": [` + strings.Repeat("{}, ", 100) + `{}]}`: "rate_limits has 101 items; maximum is 100",
		`{"rate_limits": [3]}`:                                     "item of rate_limits: got 3, want a mapping",
		`{"rate_limits": [{}], "burst": 3}`:                        "burst is beside rate_limits",
		`{"unit": "fortnight", "factor": 0}`:                       `unit: got "fortnight", want millisecond, second, minute`,
		`{"algorithm": "sliding"}`:                                 "want fixed_window, sliding_window",
		`{"name": "` + strings.Repeat("x", MaxBytes) + `"}`:        "maximum is 65536",
	} {
		_, err := Parse("shop|tenant", []byte(value))
		assert.ErrorContains(t, err, want, "%.80s", value)
	}
	_, err := Parse("shop", []byte(`{"factor": 0}`))
	assert.ErrorContains(t, err, "want DOMAIN|KEY=VALUE")
	assert.ErrorContains(t, err, "factor: got 0", "all problems are reported at once")
}

func TestChangesListCopiesForSingleValues(t *testing.T) {
	base := compile(t, shopLimits)
	tenant, path := parseOverride(t, "shop|tenant=acme", `{"factor": 2}`), parseOverride(t, "shop|tenant=acme|path", `{"factor": 2}`)
	tenantLimits, _ := base.withOverrides(tenant)
	bothLimits, _ := base.withOverrides(tenant, path)
	acme := descriptors.RuleChange{Path: "shop > tenant=acme", New: "200 per minute, fallback_ratio 0.25"}
	acmePath := descriptors.RuleChange{Path: "shop > tenant=acme > path", New: "10 per second, fallback_ratio 0.25 (named path)"}
	assert.Equal(t, descriptors.Changes{Added: descriptors.RuleChanges{acme}}, tenantLimits.ChangesFrom(base.Config))
	assert.Equal(t, descriptors.Changes{Added: descriptors.RuleChanges{acme, acmePath}}, bothLimits.ChangesFrom(base.Config))
	acmePath.Old = "5 per second, fallback_ratio 0.25 (named path)"
	assert.Equal(t, descriptors.RuleChanges{acmePath}, bothLimits.ChangesFrom(tenantLimits.Config).Changed)
	assert.Len(t, tenantLimits.ChangesFrom(bothLimits.Config).Changed, 1)
	assert.Empty(t, bothLimits.ChangesFrom(bothLimits.Config))
}

func TestMisspeltFieldHasOneProblem(t *testing.T) {
	_, err := Parse("shop|tenant", []byte(`{"request_per_unit": 3}`))
	assert.NotContains(t, err.Error(), "changes nothing")
	_, err = Parse("", []byte(`{"factor": 3}`))
	assert.ErrorContains(t, err, `target: got ""`)
}

func TestParseReadsAnyJSON(t *testing.T) {
	o := parseOverride(t, "shop|tenant", "\n{\n\t\"name\"\n:\n\"a\\/b \\ud83d\\ude00 <<\", \"requests_per_unit\":7 }\n\t")
	c, out := compile(t, shopLimits).withOverrides(o)
	require.Empty(t, out[0].Problem)
	assert.Equal(t, "a/b 😀 <<", c.Domain("shop").Match(entries("tenant", "acme")).Limits[0].Name)

	_, err := Parse("shop|tenant", []byte("{\n \"name\": \"ü\", \"<<\": {\"factor\": 2},\n  \"rate_limits\" : [ {},\n\t{\"burst\": \"3\"}]}"))
	assert.ErrorContains(t, err, `shop|tenant: unknown key "<<"`)
	assert.ErrorContains(t, err, `shop|tenant: burst: got "3", want a whole number`)
}

func TestFieldsOfOverridesAreUnknownInFiles(t *testing.T) {
	_, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, factor: 2}}]")}}, limitsfile.Options{})
	assert.ErrorContains(t, err, "unknown key factor")
	assert.NotContains(t, err.Error(), "override")
}

func FuzzOverride(f *testing.F) {
	f.Add("shop|tenant=acme", `{"factor": 10, "expires_at": "2030-01-31T12:00:00Z"}`)
	f.Add("shop|two", `{"rate_limits": [{"requests_per_unit": 3}, {}]}`)
	f.Add("shop|api=/v1/a", `{"unlimited": true, "name": "n", "replaces": [{"name": "path"}]}`)
	base := compile(f, shopLimits)
	f.Fuzz(func(t *testing.T, target, value string) {
		o, err := Parse(target, []byte(value))
		if err != nil || o.Kind != KindOverride { // FuzzFields has the other kinds
			return
		}
		changedLimits, outcomes := base.withOverrides(o)
		if outcomes[0].Problem == nil {
			assert.NotNil(t, changedLimits.Domain(o.Target.Domain))
			changedLimits.ChangesFrom(base.Config)
		}
	})
}

func TestApplyOfNoOverridesChangesNothing(t *testing.T) {
	base := compile(t, shopLimits)
	changedLimits, _ := base.withOverrides()
	for _, write := range []func(*descriptors.Config, *strings.Builder) error{
		func(c *descriptors.Config, b *strings.Builder) error { return c.WriteTree(b) },
		func(c *descriptors.Config, b *strings.Builder) error { return c.WriteLines(b) },
	} {
		var want, got strings.Builder
		require.NoError(t, write(base.Config, &want))
		require.NoError(t, write(changedLimits.Config, &got))
		assert.Equal(t, want.String(), got.String())
	}
	assert.Equal(t, descriptors.Changes{}, changedLimits.ChangesFrom(base.Config))
}

func TestCopiesForSingleValuesAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n- key: tenant\n  rate_limit: {unit: day, requests_per_unit: 1}\n  descriptors:\n")
	const childCount = maxCopies/100 - 1 // a copy counts too, so 100 copies fit exactly
	for i := range childCount {
		fmt.Fprintf(&text, "  - {key: k, value: v%d, rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	base := compile(t, text.String())
	var tenantOverrides, keyOverrides []*Override
	for i := range 102 {
		tenantOverrides = append(tenantOverrides, parseOverride(t, fmt.Sprintf("d|tenant=%03d", i), `{"factor": 2}`))
		keyOverrides = append(keyOverrides, parseOverride(t, fmt.Sprintf("d|tenant=%03d|k=v7", i), `{"factor": 2}`))
	}
	countRejected := func(outcomes []outcome) (n int) {
		for _, out := range outcomes {
			if out.Problem != nil {
				n++
				assert.ErrorContains(t, out.Problem, "would copy more than 100000 descriptors")
			}
		}
		return n
	}
	_, outcomes := base.withOverrides(tenantOverrides...)
	assert.Zero(t, countRejected(outcomes), "children are shared")
	c, outcomes := base.withOverrides(keyOverrides...)
	assert.Equal(t, 2, countRejected(outcomes))
	assert.Equal(t, "1 per day", matchedLimits(c.Config, "d", "tenant", "000", "k", "v8"))
	assert.Equal(t, "2 per day", matchedLimits(c.Config, "d", "tenant", "000", "k", "v7"))
	assert.Equal(t, "1 per day", matchedLimits(c.Config, "d", "tenant", "101", "k", "v7"))
}

func TestOrderOfOverridesDoesNotMatter(t *testing.T) {
	base := compile(t, shopLimits)
	targets := []string{
		"shop|tenant", "shop|tenant=acme", "shop|tenant=b", "shop|tenant=big", "shop|tenant|path", "shop|tenant|path=/a", "shop|tenant=acme|path",
		"shop|tenant=acme|path=/a", "shop|tenant=b|path=/a", "shop|api=/v1/*", "shop|api=/v1/a", "shop|x*", "shop|x1=v", "shop|none|below", "shop|none=n|below=m",
	}
	requests := [][]string{
		{"tenant", "acme"},
		{"tenant", "b"},
		{"tenant", "c"},
		{"tenant", "big"},
		{"api", "/v1/a"},
		{"api", "/v1/b"},
		{"x1", "v"},
		{"x1", "w"},
		{"tenant", "acme", "path", "/a"},
		{"tenant", "acme", "path", "/b"},
		{"tenant", "b", "path", "/a"},
		{"tenant", "b", "path", "/b"},
		{"tenant", "c", "path", "/a"},
		{"tenant", "c", "path", "/b"},
		{"none", "n", "below", "m"},
		{"none", "n", "below", "o"},
		{"none", "o", "below", "m"},
	}
	rapid.Check(t, func(t *rapid.T) {
		var overrides []*Override
		for _, target := range rapid.SliceOfDistinct(rapid.SampledFrom(targets), rapid.ID[string]).Draw(t, "targets") {
			o, err := Parse(target, []byte(fmt.Sprintf(`{"factor": %d}`, rapid.IntRange(1, 9).Draw(t, "factor"))))
			require.NoError(t, err)
			overrides = append(overrides, o)
		}
		firstLimits, outcomes := base.withOverrides(overrides...)
		secondLimits, _ := base.withOverrides(rapid.Permutation(overrides).Draw(t, "order")...)
		for _, r := range requests {
			assert.Equal(t, matchedLimits(firstLimits.Config, "shop", r...), matchedLimits(secondLimits.Config, "shop", r...), "%v", r)
		}
		assert.Equal(t, descriptors.Changes{}, firstLimits.ChangesFrom(secondLimits.Config))
		// The limits of an outcome are those of a request with its target.
		for i, o := range overrides {
			var keysAndValues []string
			for _, e := range o.Target.Entries {
				keysAndValues = append(keysAndValues, e.Key, e.Value)
			}
			if slices.Contains(keysAndValues, "") || strings.Contains(o.Target.String(), "*") {
				continue
			}
			assert.Contains(t, outcomes[i].Limits, strings.Split(matchedLimits(firstLimits.Config, "shop", keysAndValues...), ",")[0])
		}
	})
}

// The limit of a request is the limit of its descriptor times the factors of all overrides
// that match: their entries have the keys of the request, with its values or none.
func TestAllMatchingOverridesApply(t *testing.T) {
	base := compile(t, `
domain: d
descriptors:
  - key: a
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 1}
        descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]
`)
	value := rapid.SampledFrom([]string{"", "x", "y"})
	keys := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		var overrides []*Override
		factors := map[string]int{}
		for range rapid.IntRange(0, 8).Draw(t, "overrides") {
			target := "d"
			for _, key := range keys[:rapid.IntRange(1, 3).Draw(t, "depth")] {
				target += "|" + strings.TrimSuffix(key+"="+value.Draw(t, "value"), "=")
			}
			if factors[target] > 0 {
				continue
			}
			factors[target] = rapid.IntRange(2, 5).Draw(t, "factor")
			o, err := Parse(target, fmt.Appendf(nil, `{"factor": %d}`, factors[target]))
			require.NoError(t, err)
			overrides = append(overrides, o)
		}
		c, _ := base.withOverrides(overrides...)
		for i := range 3 + 9 + 27 {
			var request []string
			depth, digits := 1, i
			if i >= 12 {
				depth, digits = 3, i-12
			} else if i >= 3 {
				depth, digits = 2, i-3
			}
			for _, key := range keys[:depth] {
				request = append(request, key, []string{"x", "y", "z"}[digits%3])
				digits /= 3
			}
			want := 1
			for _, o := range overrides {
				matches := len(o.Target.Entries) == depth
				for j, e := range o.Target.Entries {
					matches = matches && (e.Value == "" || e.Value == request[2*j+1])
				}
				if matches {
					want *= factors[o.Target.String()]
				}
			}
			assert.Equal(t, fmt.Sprintf("%d per day", want), matchedLimits(c.Config, "d", request...), "%v", request)
		}
	})
}

func TestOverrideOfASingleValueKeepsTheMetricKey(t *testing.T) {
	base := compile(t, shopLimits)
	for _, c := range []struct {
		target   string
		request  []string
		wantPath string
	}{
		{"shop|tenant=acme", []string{"tenant", "acme"}, "shop > tenant=acme"},
		{"shop|tenant=acme|path=/a", []string{"tenant", "acme", "path", "/a"}, "shop > tenant=acme > path=/a"},
		{"shop|api=/v1/a", []string{"api", "/v1/a"}, "shop > api=/v1/a"},
		{"shop|x1=y", []string{"x1", "y"}, "shop > x1"},
	} {
		t.Run(c.target, func(t *testing.T) {
			changedLimits, outcomes := base.withOverrides(parseOverride(t, c.target, `{"requests_per_unit": 9}`))
			require.Empty(t, outcomes[0].Problem)
			request := entries(c.request...)
			oldRule, newRule := base.Domain("shop").Match(request), changedLimits.Domain("shop").Match(request)
			assert.NotSame(t, oldRule, newRule)
			assert.Equal(t, string(oldRule.AppendMetricKey(nil, "shop", request)), string(newRule.AppendMetricKey(nil, "shop", request)))
			assert.Equal(t, c.wantPath, newRule.MetricPath(request))
		})
	}
}

func TestOverrideOfConditionNamesItsTextOrOneValue(t *testing.T) {
	l := compile(t, "domain: d\ndescriptors: [{key: ip, cidr: [10.0.0.0/8, '::1'], share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 5}}]")
	ruleLimits, outcomes := l.withOverrides(parseOverride(t, "d|ip=cidr(10.0.0.0/8%20::1)", `{"requests_per_unit": 7}`))
	require.Empty(t, outcomes[0].Problem)
	assert.Equal(t, "7 per minute", matchedLimits(ruleLimits.Config, "d", "ip", "10.1.1.1"))
	assert.True(t, outcomes[0].KeepsCounters)

	valueLimits, outcomes := l.withOverrides(parseOverride(t, "d|ip=10.1.1.1", `{"requests_per_unit": 9}`))
	require.Empty(t, outcomes[0].Problem)
	assert.Equal(t, "9 per minute", matchedLimits(valueLimits.Config, "d", "ip", "10.1.1.1"))
	assert.Equal(t, "5 per minute", matchedLimits(valueLimits.Config, "d", "ip", "10.1.1.2"))
	assert.Equal(t, "d > ip=10.1.1.1", outcomes[0].Path)

	_, outcomes = l.withOverrides(parseOverride(t, "d|ip=192.0.2.1", `{"requests_per_unit": 9}`))
	assert.Contains(t, outcomes[0].Problem.Error(), "want ip=cidr(10.0.0.0/8 ::1)")
	_, err := Parse("d|ip", []byte(`{"cidr": ["10.0.0.0/8"]}`))
	assert.ErrorContains(t, err, "unknown key \"cidr\"")
}

func TestOverrideOfOneValueBesideAnExpressionOverEntriesIsRejected(t *testing.T) {
	l := compile(t, `domain: d
descriptors:
- key: plan
  descriptors:
  - {key: path, cel: 'entries.plan == "free"', rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 50}}
- {key: user, cel: 'size(value) > 3', rate_limit: {unit: minute, requests_per_unit: 5}}
`)
	ruleLimits, outcomes := l.withOverrides(parseOverride(t, `d|plan|path=cel(entries.plan%20%3D%3D%20"free")`, `{"requests_per_unit": 7}`))
	require.Empty(t, outcomes[0].Problem)
	assert.Equal(t, "7 per minute", matchedLimits(ruleLimits.Config, "d", "plan", "free", "path", "/a"))
	assert.Equal(t, "50 per minute", matchedLimits(ruleLimits.Config, "d", "plan", "gold", "path", "/a"))

	_, outcomes = l.withOverrides(parseOverride(t, "d|plan|path=/a", `{"requests_per_unit": 7}`))
	assert.Contains(t, outcomes[0].Problem.Error(), `the value alone does not decide whether path=/a matches, because its expression reads other entries; want the target of a descriptor, such as path=cel(entries.plan == "free")`)

	valueLimits, outcomes := l.withOverrides(parseOverride(t, "d|user=anna", `{"requests_per_unit": 9}`))
	require.Empty(t, outcomes[0].Problem)
	assert.Equal(t, "9 per minute", matchedLimits(valueLimits.Config, "d", "user", "anna"))
	assert.Equal(t, "5 per minute", matchedLimits(valueLimits.Config, "d", "user", "bert"))
}

func TestOnlyTargetsWithoutEntriesAreDomains(t *testing.T) {
	for target, want := range map[string]bool{"": false, "shop": true, "shop|tenant": false, "|": false} {
		assert.Equal(t, want, IsDomain(target), target)
	}
}

func TestAdviceNamesAtMostTenDescriptors(t *testing.T) {
	assert.Equal(t, "unknown domain shop; no limits are loaded", unknownDomain("shop", nil))
	assert.Equal(t, "unknown domain shop; want other", unknownDomain("shop", []string{"other"}))
	var list []*limitsfile.Descriptor
	for i := range 11 {
		list = append(list, limitsfile.NewDescriptor(fmt.Sprint("key", i), ""))
	}
	unknownEntry := &ratelimitv3.RateLimitDescriptor_Entry{Key: "zzz"}
	assert.Equal(t, "want key0, key1, key2, key3, key4, key5, key6, key7, key8 or key9", adviceForUnknown(list[:10], unknownEntry))
	assert.Equal(t, "want key0, key1, key2, key3, key4, key5, key6, key7, key8, key9 or another descriptor of this level", adviceForUnknown(list, unknownEntry))
}
