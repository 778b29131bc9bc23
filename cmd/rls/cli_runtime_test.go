package main

import (
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRuleIsCreatedSwitchedOffAndRolledBack(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	for _, step := range []struct {
		args []string
		want string // regular expression of the output
	}{
		{[]string{"set", "-d", "shop", "--rule", "path=/login", "unit=minute", "requests_per_unit=2", "shadow_mode=true", "--reason", "flood", "--new"}, `^shop > path=/login: no limit -> 2 per minute \[shadow_mode\], counters=new\n$`},
		{[]string{"set", "-d", "shop", "--rule", "path=/login", `rate_limit={"unit": "minute", "requests_per_unit": 2}`, "--for", "1h", "--replace"}, `-> 2 per minute, counters=new, until .*\nreplaced: `},
		{[]string{"off", "shop > path=/login", "--for", "1h", "--reason", "incident"}, `^shop > path=/login: 2 per minute -> 2 per minute \(off\), counters=kept, until`},
		{[]string{"show", "--replicas"}, `^OFF: shop > path=/login, by ops, ends in 1h, reason: incident\nversion 3\n`},
		{[]string{"show", "--changes"}, `(?s)^KIND.*\nswitch +shop\|path=/login .*\nrule +shop\|path=/login `},
		{[]string{"off", "shop", "--for", "0"}, `^shop: \d+ rules -> off, counters=kept\n$`},
		{[]string{"off", "--all", "--for", "90s"}, `^all domains: \d+ rules -> off`},
		{[]string{"history", "--count", "1"}, `\n5 .* ops +put +switch of all .*\n4 older changes; see --count\n$`},
		{[]string{"history", "--target", "shop > path=/login"}, `(?s)^VERSION.*\n3 .*switch shop\|path=/login .*\n2 .*\n1 `},
		{[]string{"history", "--target", "shop|path"}, `^no changes of this target; rls limits history shows all changes, with targets such as 'shop\|tenant=acme'\n$`},
		{[]string{"on", "--all"}, `^all domains: off -> \d+ rules`},
		{[]string{"on", "shop|path=/login"}, `^shop > path=/login: 2 per minute \(off\) -> 2 per minute`},
		{[]string{"rollback", "--dry-run"}, `(?s)^dry run; would restore the limits of version 6, without these changes:\n.*switch shop\|path=/login: in force: 2 per minute \(off\)\n$`},
		{[]string{"rollback", "--to", "1", "--reason", "test"}, `(?s)^restored the limits of version 1,.*rule shop\|path=/login: in force: 2 per minute \[shadow_mode\].*undo this with rls limits rollback --to 7\n$`},
		{[]string{"set", "--all", "shadow_mode=true", "--for", "1m"}, `^SHADOW_MODE: the setting -> true`},
		{[]string{"unset", "--all"}, `^SHADOW_MODE: true -> the setting`},
		{[]string{"unset", "-d", "shop", "--rule", "path=/login", "--reason", "done"}, `^shop > path=/login: 2 per minute \[shadow_mode\] -> no rule`},
	} {
		out, errOut, code := api.run(append([]string{"limits"}, step.args...)...)
		require.Zero(t, code, "%v: %s", step.args, errOut)
		assert.Regexp(t, step.want, out, step.args)
	}
}

func TestSecondOfTwoCollidingSetsFails(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	set := []string{"limits", "set", "-d", "shop", "tenant=acme"}
	_, errOut, code := api.run(append(set, "factor=2", "--new")...)
	require.Zero(t, code, errOut)
	out, _, _ := api.run("limits", "show", "--changes")
	tag := regexp.MustCompile(`[0-9a-f]{16}\n$`).FindString(out)[:16]
	_, errOut, code = api.run(append(set, "factor=3", "--if-match", tag, "--reason", "sale")...)
	require.Zero(t, code, errOut)
	for _, flags := range [][]string{{"--if-match", tag}, {"--new"}} {
		_, errOut, code = api.run(append(append(set, "factor=4"), flags...)...)
		assert.Equal(t, 1, code)
		assert.Regexp(t, `ops set the value at .*Z, reason "sale"; limits now: 300 per minute. Nothing was changed`, errOut)
	}
}

func TestSwitchNeedsClearScopeAndDuration(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"off", "--for", "1h"}, "give a rule, a domain or --all"},
		{[]string{"off", "shop", "--all", "--for", "1h"}, "give a rule, a domain or --all"},
		{[]string{"off", "", "--for", "1h"}, "give a rule, a domain or --all"},
		{[]string{"off", "shop"}, "--for is missing"},
		{[]string{"off", "shop", "--for", "1ms"}, "--for must be at least 1s"},
		{[]string{"off", "shpo", "--for", "1h"}, "unknown domain shpo; want shop; did you mean shop?"},
		{[]string{"off", "shop > tenat", "--for", "1h"}, "unknown descriptor tenat"},
		{[]string{"on", "shop"}, `no switch has target "shop"`},
		{[]string{"set", "--all", "shadow_mode=maybe"}, "shadow_mode: got"},
		{[]string{"set", "--all", "factor=2"}, "factor"},
		{[]string{"set", "--all", "-d", "shop", "shadow_mode=true"}, "none of the others can be"},
		{[]string{"unset", "--all", "shop"}, `got "shop" behind the target`},
		{[]string{"rollback", "abc"}, `rollback: got "abc", want no argument; --to VERSION names the version to restore`},
		{[]string{"set", "-d", "shop", "--rule", "a"}, "give FIELD=VALUE arguments"},
		{[]string{"set", "-d", "shop", "--rule", "tenant", "unit=day", "requests_per_unit=1"}, "has limits for this descriptor"},
		{[]string{"set", "-d", "shop", "--rule", "a", "unit=day", "requests_per_unt=1"}, "did you mean requests_per_unit"},
		{[]string{"set", "-d", "shop", "--rule", "a", "unit=day", "requests_per_unit=1", "--new", "--if-match", "1"}, "exclude each other"},
	} {
		_, errOut, code := api.run(append([]string{"limits"}, test.args...)...)
		assert.Equal(t, 1, code, test.args)
		assert.Contains(t, errOut, test.want, test.args)
	}
	assert.Empty(t, api.overrides.States())
}
