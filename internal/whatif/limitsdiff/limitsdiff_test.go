package limitsdiff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

func compile(t *testing.T, name, yaml string) *descriptors.Config {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: name, Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err, yaml)
	return descriptors.Compile(set)
}

func compare(t *testing.T, oldText, newText string) *Report {
	t.Helper()
	return Compare(compile(t, "old.yaml", oldText), compile(t, "new.yaml", newText))
}

// shopFile returns a limits file with the descriptors of the items.
func shopFile(items ...string) string {
	return "domain: shop\ndescriptors:\n  - " + strings.Join(append(items, "{key: last}"), "\n  - ")
}

// descriptorWith returns a descriptor with a limit.
func descriptorWith(fields, limitFields string) string {
	return fmt.Sprintf("{key: k, %s rate_limit: {unit: minute, requests_per_unit: 10, %s}}", fields, limitFields)
}

func TestEachChangeHasItsKindAndReason(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, old, current string
		kind               Kind
		counters, reason   string
	}{
		{"lower number", descriptorWith("", ""), "{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}", Tighter, "kept", "10 per minute becomes 9 per minute"},
		{"window of the same rate", descriptorWith("", ""), "{key: k, rate_limit: {unit: hour, requests_per_unit: 600}}", Looser, "new", "10 per minute becomes 600 per hour"},
		{"window with a higher rate and less at once", descriptorWith("", ""), "{key: k, rate_limit: {unit: second, requests_per_unit: 1}}", Mixed, "new", "becomes 1 per second"},
		{"stricter algorithm", descriptorWith("", ""), descriptorWith("", "algorithm: sliding_log"), Tighter, "new", "becomes 10 per minute, sliding_log"},
		{"milder algorithm", descriptorWith("", "algorithm: sliding_log"), descriptorWith("", ""), Looser, "new", "10 per minute, sliding_log becomes"},
		{"other algorithm", descriptorWith("", ""), descriptorWith("", "algorithm: first_hit_window"), Mixed, "new", "first_hit_window"},
		{"other timezone", "{key: k, rate_limit: {unit: day, requests_per_unit: 10, timezone: UTC}}", "{key: k, rate_limit: {unit: day, requests_per_unit: 10, timezone: Europe/Berlin}}", Mixed, "new", "10 per day in UTC becomes 10 per day in Europe/Berlin"},
		{"higher burst", descriptorWith("", "algorithm: token_bucket"), descriptorWith("", "algorithm: token_bucket, burst: 20"), Looser, "kept", "burst 20"},
		{"scope instance", descriptorWith("", ""), descriptorWith("", "scope: instance"), Looser, "new", "per instance"},
		{"limit of zero", descriptorWith("", ""), "{key: k, rate_limit: {unit: second, requests_per_unit: 0}}", Tighter, "new", "becomes 0 per second"},
		{"limit becomes unlimited", descriptorWith("", ""), "{key: k, rate_limit: {unlimited: true}}", Looser, "", "limit gone: 10 per minute"},
		{"further limit", descriptorWith("", ""), "{key: k, rate_limits: [{unit: minute, requests_per_unit: 10}, {unit: day, requests_per_unit: 5}]}", Tighter, "new", "new limit: 5 per day"},
		{"charge_denied", descriptorWith("", "algorithm: token_bucket"), descriptorWith("", "algorithm: token_bucket, charge_denied: true"), Tighter, "kept", "denied hits are charged now"},
		{"lease", descriptorWith("", ""), descriptorWith("", "lease: true, lease_waste: 0.2"), Same, "kept", "(no lease → lease with lease_waste 0.2)"},
		{"new name", descriptorWith("", ""), descriptorWith("", "name: n"), Same, "kept", "the name of the limit becomes n"},
		{"limit replaces another limit", descriptorWith("", ""), descriptorWith("", "replaces: [{name: n}]"), Mixed, "kept", "replaces other limits"},
		{"failure mode", descriptorWith("", ""), descriptorWith("", "on_backend_failure: deny"), Mixed, "kept", "(default → deny)"},
		{"shadow_mode on", descriptorWith("", ""), descriptorWith("shadow_mode: true,", ""), Looser, "kept", "shadow_mode is set"},
		{"shadow_mode off", descriptorWith("shadow_mode: true,", ""), descriptorWith("", ""), Tighter, "kept", "the rule denies now"},
		{"quota_mode on", descriptorWith("", ""), descriptorWith("quota_mode: true,", ""), Looser, "kept", "quota_mode is set"},
		{"quota_mode without a limit", "{key: k}", "{key: k, quota_mode: true}", Looser, "", "no longer deny these requests"},
		{"quota_mode with a disabled limit", descriptorWith("quota_mode: true,", "enabled: false"), descriptorWith("", "enabled: false"), Tighter, "", "can deny these requests"},
		{"a limit in quota_mode becomes unlimited", descriptorWith("quota_mode: true,", ""), "{key: k, quota_mode: true, rate_limit: {unlimited: true}}", Looser, "", "no longer deny these requests"},
		{"a limit without refunds comes into force", descriptorWith("refunds: false,", "enabled: false"), descriptorWith("refunds: false,", ""), Tighter, "", "new limit: 10 per minute"},
		{"enforce of more keys", descriptorWith("enforce: 5,", ""), descriptorWith("enforce: 20,", ""), Tighter, "kept", "enforce: 5 % of the keys become 20 %"},
		{"enforce is new", descriptorWith("", ""), descriptorWith("enforce: 5,", ""), Looser, "kept", "enforce: 100 % of the keys become 5 %"},
		{"refunds are rejected", descriptorWith("", ""), descriptorWith("refunds: false,", ""), Tighter, "kept", "refunds are rejected"},
		{"max_hits is new", descriptorWith("", ""), descriptorWith("max_hits: 9,", ""), Tighter, "kept", "calls with more than 9 hits are denied"},
		{"max_hits is gone", descriptorWith("max_hits: 9,", ""), descriptorWith("", ""), Looser, "kept", "calls with more than 9 hits are no longer denied"},
		{"lower max_hits", descriptorWith("max_hits: 9,", ""), descriptorWith("max_hits: 8,", ""), Tighter, "kept", "max_hits 9 becomes 8"},
		{"higher max_hits", descriptorWith("max_hits: 8,", ""), descriptorWith("max_hits: 9,", ""), Looser, "kept", "max_hits 8 becomes 9"},
		{"share_threshold", descriptorWith(`value: "a*",`, ""), descriptorWith(`value: "a*", share_threshold: true,`, ""), Tighter, "new", "all values share one counter"},
		{"other metadata", descriptorWith("", ""), descriptorWith("metadata: {a: 1},", ""), Same, "kept", "metadata differs"},
		{"other denial", descriptorWith("denial: {message: a},", ""), descriptorWith("denial: {message: b},", ""), Same, "kept", "the body or the headers of denials differ"},
		{"other metrics", descriptorWith("", ""), descriptorWith("detailed_metric: true,", ""), Same, "kept", "the names of metrics differ"},
		{"limit is disabled", descriptorWith("", ""), descriptorWith("", "enabled: false"), Looser, "", "limit gone: 10 per minute"},
		{"new rule", "{key: other}", descriptorWith("", ""), Tighter, "", "new limit: 10 per minute"},
		{"one limit is raised, another lowered", "{key: k, rate_limits: [{unit: minute, requests_per_unit: 10}, {unit: day, requests_per_unit: 5}]}", "{key: k, rate_limits: [{unit: minute, requests_per_unit: 11}, {unit: day, requests_per_unit: 4}]}", Mixed, "kept", "5 per day becomes 4 per day"},
		{"limits in requests are disabled", "{key: k}", "{key: k}\ndefaults: {enabled: false}", Looser, "", "limits in requests are off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			newText := shopFile(test.current)
			if item, domainFields, ok := strings.Cut(test.current, "\n"); ok {
				newText = shopFile(item) + "\n" + domainFields
			}
			report := compare(t, shopFile(test.old), newText)
			require.Len(t, report.Changes, 1)
			assert.Equal(t, test.kind, report.Kind)
			assert.Equal(t, test.counters, report.Changes[0].Counters)
			assert.Contains(t, strings.Join(report.Changes[0].Reasons, "\n"), test.reason)
		})
	}
}

func TestRequestsThatMeetAnotherRuleAreFound(t *testing.T) {
	t.Parallel()
	const limit10, limit5 = "rate_limit: {unit: minute, requests_per_unit: 10}", "rate_limit: {unit: minute, requests_per_unit: 5}"
	for _, test := range []struct{ name, old, current, want string }{
		{
			"a value gets its own rule", shopFile("{key: k, " + limit10 + "}"), shopFile("{key: k, "+limit10+"}", "{key: k, value: a, "+limit5+"}"),
			"tighter  shop > k=a: requests meet another rule: shop > k before, shop > k=a now\n    before: 10 per minute (old.yaml:3)\n    now:    5 per minute (new.yaml:4)\n",
		},
		{
			"a value hides the rule below", shopFile("{key: k, descriptors: [{key: p, " + limit10 + "}]}"), shopFile("{key: k, descriptors: [{key: p, "+limit10+"}]}", "{key: k, value: a}"),
			"looser   shop > k=a > p: has no rule now; was limited by shop > k > p\n",
		},
		{
			"patterns change their order", shopFile(`{key: k, value: "a*", `+limit10+"}", `{key: k, value: "*b", `+limit5+"}"), shopFile(`{key: k, value: "*b", `+limit5+"}", `{key: k, value: "a*", `+limit10+"}"),
			"tighter  shop > k=a*b: requests meet another rule: shop > k=a* before, shop > k=*b now\n",
		},
		{
			"a network joins a list", shopFile("{key: k, cidr: [10.0.0.0/8], "+limit10+"}", "{key: k, "+limit5+"}"), shopFile("{key: k, cidr: [10.0.0.0/8, 192.0.0.0/8], "+limit10+"}", "{key: k, "+limit5+"}"),
			"looser   shop > k=192.0.0.0: requests meet another rule: shop > k before, shop > k=cidr(10.0.0.0/8 192.0.0.0/8) now\n",
		},
		{
			"conditions change their order", shopFile("{key: k, prefix: a, "+limit10+"}", "{key: k, regex: 'a.*', "+limit5+"}"), shopFile("{key: k, regex: 'a.*', "+limit5+"}", "{key: k, prefix: a, "+limit10+"}"),
			"requests meet another rule: shop > k=prefix(a) before, shop > k=regex(a.*) now\n",
		},
		{
			"a domain is removed", "domain: d\ndescriptors: [{key: k, " + limit10 + "}]", shopFile(),
			"looser   d > k: rule gone; these requests have no rule now\n    before: 10 per minute (old.yaml:2)\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var text bytes.Buffer
			require.NoError(t, compare(t, test.old, test.current).WriteText(&text))
			assert.Contains(t, text.String(), test.want)
		})
	}
}

func TestChangedConditionThatMayMatchOtherRequestsIsMixed(t *testing.T) {
	t.Parallel()
	const limit10 = "rate_limit: {unit: minute, requests_per_unit: 10}"
	rule := func(condition string) string { return "{key: k, " + condition + ", " + limit10 + "}" }
	for name, test := range map[string]struct {
		old, current []string
		kind         Kind
	}{
		"wider network":                     {[]string{rule("cidr: [10.0.0.0/24]")}, []string{rule("cidr: [10.0.0.0/8]")}, Mixed},
		"narrower network":                  {[]string{rule("cidr: [10.0.0.0/8]")}, []string{rule("cidr: [10.0.0.0/16]")}, Mixed},
		"wider network without a limit":     {[]string{"{key: k, cidr: [10.0.0.0/24]}", "{key: k, " + limit10 + "}"}, []string{"{key: k, cidr: [10.0.0.0/8]}", "{key: k, " + limit10 + "}"}, Mixed},
		"wider network with a higher limit": {[]string{rule("cidr: [10.0.0.0/24]")}, []string{"{key: k, cidr: [10.0.0.0/8], rate_limit: {unit: minute, requests_per_unit: 20}}"}, Mixed},
		"wider network above a rule":        {[]string{"{key: k, cidr: [10.0.0.0/24], descriptors: [" + rule("value: a") + "]}"}, []string{"{key: k, cidr: [10.0.0.0/8], descriptors: [" + rule("value: a") + "]}"}, Mixed},
		"other expression":                  {[]string{rule("regex: '[a-z]+'")}, []string{rule("regex: '[a-y]+'")}, Mixed},
		"pattern becomes an expression":     {[]string{rule("value: /a/*")}, []string{rule("regex: '/a/.+'")}, Mixed},
		"further network":                   {[]string{rule("cidr: [10.0.0.0/8]")}, []string{rule("cidr: [10.0.0.0/8, 192.0.2.0/24]")}, Tighter},
		"further value":                     {[]string{rule("in: [a]")}, []string{rule("in: [a, b]")}, Tighter},
		"condition of its own":              {[]string{"{key: k, " + limit10 + "}"}, []string{"{key: k, " + limit10 + "}", "{key: k, regex: 'a+', rate_limit: {unit: minute, requests_per_unit: 5}}"}, Tighter},
		"equal negation":                    {[]string{rule("not: {cidr: [10.0.0.0/8]}")}, []string{rule("not: {cidr: [10.0.0.0/8]}")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := compare(t, shopFile(test.old...), shopFile(test.current...))
			assert.Equal(t, test.kind, report.Kind)
			var text bytes.Buffer
			require.NoError(t, report.WriteText(&text))
			assert.Equal(t, test.kind == Mixed, strings.Contains(text.String(), "the condition changed: other requests may match"), text.String())
		})
	}
}

func TestEqualLimitsHaveNoChange(t *testing.T) {
	t.Parallel()
	report := compare(t, shopFile(descriptorWith("", ""), "{key: off, rate_limit: {unit: day, requests_per_unit: 1, enabled: false}}"), shopFile(descriptorWith("", "")))
	assert.Empty(t, report.Changes)
	assert.Empty(t, report.Kind)
	text, err := json.Marshal(report)
	require.NoError(t, err)
	assert.JSONEq(t, `{"kind": "", "changes": []}`, string(text))
	assert.Empty(t, compare(t, shopFile(descriptorWith("", "enabled: false")), shopFile(descriptorWith("refunds: false,", "enabled: false"))).Changes, "without a limit in force, a change of refunds has no effect")
	assert.Equal(t, Same, compare(t, shopFile("{key: k, rate_limit: {unlimited: true}}"), shopFile("{key: k, refunds: false, rate_limit: {unlimited: true}}")).Kind)
}

// randomTree returns random limits of depth 2.
func randomTree(r *rand.Rand) string {
	level := func(children func() string) string {
		var items []string
		for _, i := range r.Perm(5)[:r.IntN(5)] {
			item := "{key: k, value: '" + []string{"", "a", "b", "a*", "*"}[i] + "'"
			if r.IntN(3) > 0 {
				item += fmt.Sprintf(", rate_limit: {unit: minute, requests_per_unit: %d}", 1+r.IntN(2))
			}
			items = append(items, item+children()+"}")
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return "domain: shop\ndescriptors: " + level(func() string {
		return ", descriptors: " + level(func() string { return "" })
	})
}

func TestEveryChangedAnswerOfRandomLimitsIsReported(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	changedAnswers := 0
	for range 300 {
		oldText, newText := randomTree(random), randomTree(random)
		oldConfig, newConfig := compile(t, "old", oldText), compile(t, "new", newText)
		report := Compare(oldConfig, newConfig)
		for _, firstValue := range []string{"a", "b", "c", "ab"} {
			for _, secondValue := range []string{"", "a", "b", "c", "ab"} {
				entries := []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: firstValue}}
				if secondValue != "" {
					entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "k", Value: secondValue})
				}
				oldRule, newRule := oldConfig.Domain("shop").Match(entries), newConfig.Domain("shop").Match(entries)
				if ruleText(oldRule) == ruleText(newRule) {
					continue
				}
				changedAnswers++
				isReported := false
				for _, c := range report.Changes {
					isReported = isReported || changedRulePath(c.Old) == rulePath(oldRule) && changedRulePath(c.New) == rulePath(newRule)
				}
				require.True(t, isReported, "%s\n%s\nrequest %s: %s, then %s", oldText, newText, entries, ruleText(oldRule), ruleText(newRule))
			}
		}
	}
	assert.Greater(t, changedAnswers, 1000)
}

func rulePath(r *descriptors.Rule) string {
	if r == nil {
		return ""
	}
	return r.Path
}

func changedRulePath(r *Rule) string {
	if r == nil {
		return ""
	}
	return r.Path
}

// ruleText returns the path and the limit of r.
func ruleText(r *descriptors.Rule) string {
	if r == nil {
		return "no rule"
	}
	return r.Path + ": " + r.Limits[0].String()
}

func TestNewEntriesOfListInFileAreFound(t *testing.T) {
	t.Parallel()
	parse := func(name, list string) *descriptors.Config {
		yaml := shopFile("{key: k, in: {file: allow.txt}}", descriptorWith("", ""))
		set, err := limitsfile.Parse([]limitsfile.File{{Name: name, Data: []byte(yaml)}}, limitsfile.Options{ReadList: func(string) ([]byte, error) { return []byte(list), nil }})
		require.NoError(t, err)
		return descriptors.Compile(set)
	}
	r := Compare(parse("old", "a\nb"), parse("new", "a\nb\nc"))
	require.Len(t, r.Changes, 1)
	assert.Equal(t, "shop > k=c", r.Changes[0].Requests)
	assert.Equal(t, Looser, r.Kind)
}

func TestChangesBehindExpressionsAreFound(t *testing.T) {
	t.Parallel()
	plan := func(perDay int, cel string) string {
		return fmt.Sprintf("domain: shop\ndescriptors:\n- {key: plan, descriptors: [{key: path, cel: '%s', rate_limit: {unit: day, requests_per_unit: %d}}, {key: path, rate_limit: {unit: day, requests_per_unit: 9}}]}\n", cel, perDay)
	}
	const text = `entries.plan == "free" && value.startsWith("/export/")`
	report := compare(t, plan(5, text), plan(4, text))
	require.Len(t, report.Changes, 1)
	assert.Equal(t, Tighter, report.Kind)
	assert.Equal(t, "shop > plan > path=cel("+text+")", report.Changes[0].New.Path)
	assert.Equal(t, []string{"5 per day becomes 4 per day"}, report.Changes[0].Reasons)

	report = compare(t, "domain: shop\ndescriptors: [{key: plan, descriptors: [{key: path, rate_limit: {unit: day, requests_per_unit: 9}}]}]", plan(4, text))
	require.NotEmpty(t, report.Changes)
	assert.Equal(t, Moved, report.Changes[0].Event)
	assert.Equal(t, Tighter, report.Kind)
	assert.Empty(t, compare(t, plan(5, text), plan(5, text)).Changes)
}
