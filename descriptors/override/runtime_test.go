package override

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/descriptors"
)

const twoDomains = `
domain: shop
defaults: {algorithm: sliding_window}
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: path
    value: /api/*
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: plan
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - {key: user, rate_limit: {unit: hour, requests_per_unit: 7}}
  - key: region
    descriptors:
      - {key: zone, rate_limit: {unit: hour, requests_per_unit: 8}}
`

// apply returns the limits with the values of fields, and the state of each field.
func (l limits) apply(fields map[string]string) (*descriptors.Config, map[string]State) {
	var table Table
	table.Set(fields)
	set, _ := table.Apply(l.set, time.Now())
	states := map[string]State{}
	for _, s := range table.States() {
		states[s.Field()] = s
	}
	return descriptors.Compile(set), states
}

const ruleOf3PerDay = `{"rate_limit": {"unit": "day", "requests_per_unit": 3}}`

func TestRulesAddLimitsLikeFiles(t *testing.T) {
	base := compile(t, twoDomains)
	for name, c := range map[string]struct {
		field, value string
		request      string // domain, keys and values
		want         string
	}{
		"a new key":                        {"|rule|shop|user", ruleOf3PerDay, "shop user a", "3 per day, sliding_window"},
		"a value of a key with a limit":    {"|rule|shop|tenant=acme", ruleOf3PerDay, "shop tenant acme", "3 per day, sliding_window"},
		"other values keep their limit":    {"|rule|shop|tenant=acme", ruleOf3PerDay, "shop tenant b", "100 per minute, sliding_window"},
		"a pattern":                        {"|rule|shop|host=*.example", ruleOf3PerDay, "shop host a.example", "3 per day, sliding_window"},
		"patterns of files come first":     {"|rule|shop|path=/api/v1*", ruleOf3PerDay, "shop path /api/v1", "10 per minute, sliding_window"},
		"a child of a rule":                {"|rule|shop|tenant|user", ruleOf3PerDay, "shop tenant a user b", "3 per day, sliding_window"},
		"the parent keeps its limit":       {"|rule|shop|tenant|user", ruleOf3PerDay, "shop tenant a", "100 per minute, sliding_window"},
		"a descriptor without a limit":     {"|rule|shop|region", ruleOf3PerDay, "shop region eu", "3 per day, sliding_window"},
		"its children keep their limits":   {"|rule|shop|region", ruleOf3PerDay, "shop region eu zone 1", "8 per hour, sliding_window"},
		"a missing parent":                 {"|rule|shop|a=1|b", ruleOf3PerDay, "shop a 1 b x", "3 per day, sliding_window"},
		"a new domain without defaults":    {"|rule|bank|user", ruleOf3PerDay, "bank user a", "3 per day"},
		"all fields of a descriptor":       {"|rule|shop|user", `{"rate_limits": [{"unit": "day", "requests_per_unit": 3}, {"unit": "hour", "requests_per_unit": 1}], "shadow_mode": true, "reason": "test"}`, "shop user a", "3 per day, sliding_window and 1 per hour, sliding_window, shadow"},
		"a condition, named by its text":   {"|rule|shop|agent=prefix(bot)", `{"prefix": "bot", "rate_limit": {"unit": "day", "requests_per_unit": 3}}`, "shop agent bot-1", "3 per day, sliding_window"},
		"an expression":                    {"|rule|shop|plan|path=cel(entries.plan%20%3D%3D%20'free')", `{"cel": "entries.plan == 'free'", "rate_limit": {"unit": "day", "requests_per_unit": 3}}`, "shop plan free path /a", "3 per day, sliding_window"},
		"an expression that is false":      {"|rule|shop|plan|path=cel(entries.plan%20%3D%3D%20'free')", `{"cel": "entries.plan == 'free'", "rate_limit": {"unit": "day", "requests_per_unit": 3}}`, "shop plan gold path /a", "nothing"},
		"the other requests have no limit": {"|rule|shop|a=1|b", ruleOf3PerDay, "shop a 1", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			config, states := base.apply(map[string]string{c.field: c.value})
			require.NoError(t, states[c.field].Problem)
			words := strings.Fields(c.request)
			assert.Equal(t, c.want, matchedLimits(config, words[0], words[1:]...))
		})
	}
	assert.Equal(t, "nothing", matchedLimits(base.Config, "shop", "user", "a"), "the base stays as it is")
}

func TestInvalidRulesAreRejected(t *testing.T) {
	base := compile(t, twoDomains)
	for name, c := range map[string]struct{ target, value, want string }{
		"a rule of a file":       {"shop|tenant", ruleOf3PerDay, "limits.yaml:5 has limits for this descriptor (100 per minute, sliding_window)"},
		"no limit":               {"shop|user", `{"shadow_mode": true}`, "rule has no limit; want rate_limit or rate_limits"},
		"a limit at the top":     {"shop|user", `{"unit": "day"}`, "unit belongs in rate_limit"},
		"a key":                  {"shop|user", `{"key": "user"}`, "key is in the target of a rule"},
		"children":               {"shop|user", `{"descriptors": []}`, "create each child as a rule of its own"},
		"a misspelt field":       {"shop|user", `{"rate_limt": {}}`, "did you mean rate_limit?"},
		"a misspelt note":        {"shop|user", `{"expire_at": "2030-01-31T12:00:00Z"}`, "did you mean expires_at?"},
		"a wrong unit":           {"shop|user", `{"rate_limit": {"unit": "fortnight", "requests_per_unit": 1}}`, `unit: got "fortnight"`},
		"a long reason":          {"shop|user", `{"reason": "` + strings.Repeat("x", 501) + `"}`, "reason: got 501 bytes, want at most 500"},
		"a domain alone":         {"shop", ruleOf3PerDay, "want DOMAIN|KEY=VALUE"},
		"a text":                 {"shop|user", `"3"`, "want a JSON object"},
		"another condition":      {"shop|user=a", `{"prefix": "b", "rate_limit": {"unit": "day", "requests_per_unit": 1}}`, "want the condition as the value"},
		"a list in a file":       {"shop|user", `{"in": {"file": "/etc/passwd"}, "rate_limit": {"unit": "day", "requests_per_unit": 1}}`, "only if the limits are in a file"},
		"a wrong expression":     {"shop|user=cel(valeu)", `{"cel": "valeu", "rate_limit": {"unit": "day", "requests_per_unit": 1}}`, "cel: at character 1: unknown name valeu"},
		"an unknown entry":       {"shop|user=cel(entries.tenant%20%3D%3D%20'a')", `{"cel": "entries.tenant == 'a'", "rate_limit": {"unit": "day", "requests_per_unit": 1}}`, "cel: got the entry tenant, which neither this descriptor nor its parents have; want user"},
		"a misspelt domain":      {"shpo|user", ruleOf3PerDay, "unknown domain shpo; want shop; did you mean shop?"},
		"a lost child":           {"shop|plan=pro", ruleOf3PerDay, "plan matches plan=pro now, and its children would no longer apply; set an override of shop|plan=pro"},
		"a lost limit of a path": {"shop|tenant=acme|user", ruleOf3PerDay, "tenant matches tenant=acme now, and would no longer apply; create a rule for shop|tenant=acme first"},
	} {
		t.Run(name, func(t *testing.T) {
			var table Table
			table.Apply(base.set, time.Now())
			s := table.DryRun(base.set, Field(KindRule, c.target), c.value, time.Now())
			require.Error(t, s.Problem)
			assert.ErrorContains(t, s.Problem, c.want)
			assert.Empty(t, s.Limits)
		})
	}
}

func TestNewRuleIsAcceptedUnlessItTakesRequestsFromOthers(t *testing.T) {
	base := compile(t, twoDomains+`
  - key: tier
    descriptors:
      - {key: page, cel: 'entries.tier == "free"', rate_limit: {unit: minute, requests_per_unit: 5}}
`)
	for target, c := range map[string]struct{ baseLimits, problem string }{
		"shop|user":             {baseLimits: "no limit"},
		"shop|tenant=acme":      {baseLimits: "100 per minute, sliding_window"},
		"shop|tenant|user":      {baseLimits: "no limit"},
		"shop|region|zone=1":    {baseLimits: "8 per hour, sliding_window"},
		"shop|tier|page":        {baseLimits: "no limit"},
		"shop|tier|page|user":   {baseLimits: "no limit"},
		"shop|tier|page=/a":     {problem: `page=cel(entries.tier == "free") may match page=/a now, depending on other entries`},
		"shop|region=eu|zone=1": {problem: "region matches region=eu now, and would no longer apply"},
	} {
		var table Table
		table.Apply(base.set, time.Now())
		s := table.DryRun(base.set, Field(KindRule, target), ruleOf3PerDay, time.Now())
		if c.problem != "" {
			assert.ErrorContains(t, s.Problem, c.problem, target)
			continue
		}
		assert.NoError(t, s.Problem, target)
		assert.Equal(t, c.baseLimits, s.BaseLimits, target)
	}
}

func TestRejectedRuleAddsNoDomain(t *testing.T) {
	config, states := compile(t, twoDomains).apply(map[string]string{"|rule|bank|user=a": `{"prefix": "b", "rate_limit": {"unit": "day", "requests_per_unit": 1}}`})
	require.Error(t, states["|rule|bank|user=a"].Problem)
	assert.Nil(t, config.Domain("bank"))
	assert.NotNil(t, config.Domain("shop"))
}

func TestSwitchAppliesAfterAnOverrideInEachOrder(t *testing.T) {
	base := compile(t, twoDomains)
	overrides := []*Override{parseOverride(t, "|switch|shop|tenant", "{}"), parseOverride(t, "shop|tenant", `{"requests_per_unit": 5}`), parseOverride(t, "shop|plan", `{"requests_per_unit": 5}`)}
	for range overrides {
		overrides = append(overrides[1:], overrides[0])
		changedLimits, _ := base.withOverrides(overrides...)
		offSwitches := changedLimits.OffSwitches()
		require.Len(t, offSwitches, 1)
		assert.Equal(t, "shop > tenant", offSwitches[0].Path)
	}
}

func TestConditionsOfRulesHaveTheBoundsOfAFile(t *testing.T) {
	rule := func(condition string) string {
		return `{` + condition + `, "rate_limit": {"unit": "day", "requests_per_unit": 1}}`
	}
	for name, c := range map[string]struct {
		value func(i int) (value, condition string)
		want  string
	}{
		"too many steps of expressions": {func(i int) (string, string) {
			text := fmt.Sprintf("entries.exists(k, entries[k].contains('x%d'))", i)
			return "cel(" + text + ")", fmt.Sprintf(`"cel": %q`, text)
		}, "the conditions for this key take up to"},
		"too many steps of regular expressions": {func(i int) (string, string) {
			text := fmt.Sprintf(".{400}%d", i)
			return "regex(" + text + ")", fmt.Sprintf(`"regex": %q`, text)
		}, "the conditions for this key take up to"},
		"too large regular expressions": {func(i int) (string, string) {
			text := fmt.Sprintf(`%d.{900}[\pL]{10}`, i)
			return "regex(" + strings.ReplaceAll(text, `\\`, `\`) + ")", fmt.Sprintf(`"regex": %q`, text)
		}, "all regular expressions together need more than"},
		"too many conditions": {func(i int) (string, string) {
			text := fmt.Sprintf("p%d", i)
			return "prefix(" + text + ")", fmt.Sprintf(`"prefix": %q`, text)
		}, "more than 1000 conditions for one key"},
	} {
		t.Run(name, func(t *testing.T) {
			base, fields := compile(t, twoDomains), map[string]string{}
			for i := range 1005 {
				value, condition := c.value(1000 + i)
				fields[Field(KindRule, (&descriptors.Target{Domain: "shop", Entries: entries("agent", value)}).String())] = rule(condition)
			}
			fields["|rule|shop|user"] = ruleOf3PerDay
			fields["|rule|bank|agent=prefix(b)"] = rule(`"prefix": "b"`)
			_, states := base.apply(fields)
			rejectedCount := 0
			for field, s := range states {
				if s.Problem != nil {
					rejectedCount++
					require.ErrorContains(t, s.Problem, c.want, field)
				}
			}
			assert.Positive(t, rejectedCount)
			assert.Less(t, rejectedCount, 1005, "the first rules are in force")
			assert.NoError(t, states["|rule|shop|user"].Problem)
			assert.NoError(t, states["|rule|bank|agent=prefix(b)"].Problem, "another domain has bounds of its own")
		})
	}
}

func TestOverrideChangesARuleOfRunTime(t *testing.T) {
	config, states := compile(t, twoDomains).apply(map[string]string{"|rule|shop|user": ruleOf3PerDay, "shop|user": "9", "shop|user=a": `{"factor": 2}`})
	assert.Equal(t, "9 per day, sliding_window", matchedLimits(config, "shop", "user", "b"))
	assert.Equal(t, "18 per day, sliding_window", matchedLimits(config, "shop", "user", "a"))
	assert.Equal(t, "9 per day, sliding_window", states["shop|user"].Limits)
}

func TestSwitchesTakeLimitsOutOfForce(t *testing.T) {
	base := compile(t, twoDomains)
	for name, c := range map[string]struct {
		fields  map[string]string
		request string
		want    string
	}{
		"a rule":                            {map[string]string{"|switch|shop|tenant": "{}"}, "tenant a", "nothing"},
		"a rule of run time":                {map[string]string{"|switch|shop|user": "{}", "|rule|shop|user": ruleOf3PerDay}, "user a", "nothing"},
		"other rules stay":                  {map[string]string{"|switch|shop|tenant": "{}"}, "plan a", "1 per minute, sliding_window"},
		"children stay":                     {map[string]string{"|switch|shop|plan": "{}"}, "plan a user b", "7 per hour, sliding_window"},
		"one value":                         {map[string]string{"|switch|shop|tenant=acme": "{}"}, "tenant acme", "nothing"},
		"other values stay":                 {map[string]string{"|switch|shop|tenant=acme": "{}"}, "tenant b", "100 per minute, sliding_window"},
		"after overrides":                   {map[string]string{"|switch|shop|tenant": "{}", "shop|tenant=acme": `{"requests_per_unit": 5, "enabled": true}`}, "tenant acme", "nothing"},
		"a domain":                          {map[string]string{"|switch|shop": "{}"}, "tenant a", "nothing"},
		"all domains":                       {map[string]string{"|switch|": `{"reason": "incident"}`}, "plan a user b", "nothing"},
		"a switch that has ended":           {map[string]string{"|switch|": `{"expires_at": "2020-01-01T00:00:00Z"}`}, "tenant a", "100 per minute, sliding_window"},
		"a domain that is missing":          {map[string]string{"|switch|bank": "{}"}, "tenant a", "100 per minute, sliding_window"},
		"an invalid value switches nothing": {map[string]string{"|switch|": "off"}, "tenant a", "100 per minute, sliding_window"},
	} {
		t.Run(name, func(t *testing.T) {
			config, _ := base.apply(c.fields)
			assert.Equal(t, c.want, matchedLimits(config, "shop", strings.Fields(c.request)...))
		})
	}
	config, states := base.apply(map[string]string{
		"|switch|shop": `{"set_by": "alice", "reason": "test"}`, "|switch|bank": "{}", "|switch|shop|gone": "{}", "|switch|a b": "{}", "|switch|shop|tenant": `{"resaon": ""}`,
	})
	assert.Equal(t, "5 rules", states["|switch|shop"].BaseLimits)
	assert.Equal(t, "shop", states["|switch|shop"].Path)
	assert.Equal(t, "off", states["|switch|shop"].Limits)
	for field, isWaiting := range map[string]bool{"|switch|bank": true, "|switch|shop|gone": true, "|switch|a b": false, "|switch|shop|tenant": false} {
		require.Error(t, states[field].Problem, field)
		assert.Equal(t, isWaiting, states[field].IsWaiting, field)
	}
	offSwitches := config.OffSwitches()
	require.Len(t, offSwitches, 1)
	assert.Equal(t, "shop", offSwitches[0].Path)
	assert.Equal(t, ` by alice, reason "test"`, offSwitches[0].String())
	var lines strings.Builder
	require.NoError(t, config.WriteLines(&lines))
	assert.Contains(t, lines.String(), `# off: shop by alice, reason "test"`)
	assert.Contains(t, lines.String(), "shop.tenant: unit=MINUTE requests_per_unit=100, shadow_mode: false, quota_mode: false, algorithm=sliding_window, enabled=false, off=domain by alice")
}

func TestErrorHasExampleOfItsKind(t *testing.T) {
	base := compile(t, twoDomains)
	for field, example := range map[string]string{
		"shop|tenant":     `{"requests_per_unit": 100, "expires_at": "2030-01-31T12:00:00Z"}`,
		"|rule|shop|user": `{"rate_limit": {"unit": "minute", "requests_per_unit": 100}}`,
		"|switch|shop":    `{"reason": "incident", "expires_at": "2030-01-31T12:00:00Z"}`,
		"|shadow_mode|":   `{"shadow_mode": true}`,
	} {
		for value, want := range map[string]string{"off": "value is not JSON", "[]": "value: got a list, want a JSON object"} {
			_, states := base.apply(map[string]string{field: value})
			require.ErrorContains(t, states[field].Problem, want, field)
			assert.ErrorContains(t, states[field].Problem, "such as "+example, field)
		}
		_, states := base.apply(map[string]string{field: example})
		assert.NoError(t, states[field].Problem, "the example is valid")
	}
}

func TestShadowModeReplacesTheSetting(t *testing.T) {
	base := compile(t, twoDomains)
	for value, want := range map[string][2]bool{
		`{"shadow_mode": true}`:  {true, true},
		`{"shadow_mode": false}`: {false, false},
		`{"shadow_mode": 3}`:     {true, false},
		`{"shadow_mode": null}`:  {true, false},
		`{}`:                     {true, false},
		`{"shadow_mode": true, "expires_at": "2020-01-01T00:00:00Z"}`: {true, false},
	} {
		config, _ := base.apply(map[string]string{"|shadow_mode|": value})
		assert.Equal(t, want, [2]bool{config.IsShadow(true), config.IsShadow(false)}, value)
	}
	_, states := base.apply(map[string]string{"|shadow_mode|x": `{"shadow_mode": true}`})
	assert.ErrorContains(t, states["|shadow_mode|x"].Problem, "target: got x, want no target")
}

// FuzzFields checks that no field of any kind panics or changes the limits of others.
func FuzzFields(f *testing.F) {
	for _, c := range [][2]string{
		{"|rule|shop|user", ruleOf3PerDay},
		{"|rule|shop|tenant=a|b=*", `{"rate_limits": [{"unit": "day", "requests_per_unit": 3}], "expires_at": "2030-01-31T12:00:00Z", "reason": "r"}`},
		{"|rule|new|agent=prefix(a)", `{"prefix": "a", "rate_limit": {"unlimited": true}}`},
		{"|switch|", `{"reason": "r"}`},
		{"|switch|bank", `{}`},
		{"|shadow_mode|", `{"shadow_mode": true}`},
		{"shop|plan", `12`},
	} {
		f.Add(c[0], c[1])
	}
	base := compile(f, twoDomains)
	baseHash := base.Hash()
	f.Fuzz(func(t *testing.T, field, value string) {
		config, states := base.apply(map[string]string{field: value})
		if base.Hash() != baseHash || descriptors.Compile(base.set).Hash() != baseHash {
			t.Fatal("the base has changed")
		}
		kind, target := SplitField(field)
		if Field(kind, target) != field || len(states) != 1 {
			t.Fatalf("%q is not the field of %s %q", field, kind, target)
		}
		if states[field].Problem != nil && config.Hash() != baseHash {
			t.Fatal("a rejected value has changed the limits")
		}
	})
}

func TestSwitchOfAnUnknownDomainSaysHowToWriteARule(t *testing.T) {
	base := compile(t, "domain: shop")
	_, states := base.apply(map[string]string{Field(KindSwitch, "login"): "{}"})
	assert.ErrorContains(t, states[Field(KindSwitch, "login")].Problem, "unknown domain login; want shop. A rule is written as a path, such as 'shop > login'")
}
