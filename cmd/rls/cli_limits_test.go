package main

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
)

func TestLimitsAreSetListedAndUnset(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	out, _, code := api.run("limits", "show", "--changes")
	assert.Zero(t, code)
	assert.Equal(t, "no overrides, rules or switches\n", out)

	out, errOut, code := api.run("limits", "set", "-d", "shop", "tenant=acme", "factor=10", "--for", "1h")
	require.Zero(t, code, errOut)
	assert.Regexp(t, `^shop > tenant=acme: 100 per minute -> 1000 per minute, counters=kept, until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \(in 1h\)\n$`, out)
	state := api.overrides.States()[0]
	assert.Equal(t, "shop|tenant=acme", state.Target)
	assert.WithinDuration(t, time.Now().Add(time.Hour), state.ExpiresAt, time.Minute)

	out, _, code = api.run("limits", "set", "-d", "shop", "tenant=acme", "requests_per_unit=7", "algorithm=sliding_window", "enabled=true")
	require.Zero(t, code)
	assert.Regexp(t, `^shop > tenant=acme: 100 per minute -> 7 per minute, sliding_window, counters=new\nreplaced: \{"factor":10,"expires_at":"[^"]+"\}\n$`, out)

	_, errOut, code = api.run("limits", "set", "-d", "shop", "tenant=acme", "factor=2", "--for", "1h")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `its value {"requests_per_unit":7,`)
	assert.Contains(t, errOut, "To replace it for good, add --replace")

	_, _, code = api.run("limits", "set", "-d", "shop", "ip", `rate_limits=[{"requests_per_unit": 20}, {}]`)
	require.Zero(t, code)
	api.overrides.SetField("shop|trial", `{"factor": 2}`)
	out, _, code = api.run("limits", "show", "--changes")
	assert.Zero(t, code)
	lines := strings.Split(out, "\n")
	require.Len(t, lines, 6)
	assert.Regexp(t, `^KIND +TARGET +VALUE +STATE +SET +EXPIRES +BY +ETAG$`, lines[0])
	assert.Regexp(t, `^override +shop\|ip +\{"rate_limits":\[\{"requests_per_unit":20\},\{\}\]\} +in force +\d+s ago +never +ops +[0-9a-f]{16}$`, lines[1])
	assert.Regexp(t, `^override +shop\|tenant=acme +\{"requests_per_unit":7,"algorithm":"sliding_window","enabled":true\} +in force +\d+s ago +never +ops +[0-9a-f]{16}$`, lines[2])
	assert.Regexp(t, `^override +shop\|trial +\{"factor":2\} +rejected +- +never +- +[0-9a-f]{16}$`, lines[3])
	assert.Regexp(t, `^  override shop\|trial: shop > trial: factor: the descriptor has no number to multiply$`, lines[4])
	for _, line := range lines[1:4] {
		assert.Equal(t, strings.Index(lines[0], "VALUE"), strings.Index(line, "{"), "the values are in one column")
	}

	out, _, code = api.run("limits", "show", "--changes", "--json")
	assert.Zero(t, code)
	var list admin.List
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	assert.Len(t, list.Overrides, 3)
	assert.Contains(t, out, "shop > tenant=acme")

	out, _, code = api.run("limits", "unset", "-d", "shop", "tenant=acme")
	assert.Zero(t, code)
	assert.Equal(t, "shop > tenant=acme: 7 per minute, sliding_window -> 100 per minute, counters=new\n", out)
	_, errOut, code = api.run("limits", "unset", "-d", "shop", "tenant=acme")
	assert.Equal(t, 1, code)
	assert.Equal(t, "rls: no override has target \"shop|tenant=acme\"\n", errOut)
}

func TestSetReportsOverridesItMakesInvalid(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	for _, args := range [][]string{{"tenant", "algorithm=token_bucket"}, {"tenant=acme", "burst=7"}} {
		_, errOut, code := api.run(append([]string{"limits", "set", "-d", "shop"}, args...)...)
		require.Zero(t, code, errOut)
	}
	const otherOverride = "no longer valid: override shop|tenant=acme: shop > tenant=acme: burst is only for algorithm token_bucket, not sliding_log\n"
	for _, flag := range []string{"--dry-run", "--dry-run=false"} {
		out, _, code := api.run("limits", "set", "-d", "shop", "tenant", "algorithm=sliding_log", flag)
		assert.Zero(t, code)
		assert.Contains(t, out, otherOverride)
	}
}

func TestUnsetDeletesInvalidTarget(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	api.overrides.SetField("shop|tenant=a b", `{"factor": 2}`)
	_, errOut, code := api.run("limits", "unset", "--target", "shop|tenant=a b")
	assert.Zero(t, code, errOut)
	assert.Empty(t, api.overrides.States())
	for _, args := range [][]string{{}, {"tenant=a"}, {"-d", "shop"}, {"-d", "shop", "tenant=a", "--target", "shop|tenant=a"}} {
		_, errOut, code := api.run(append([]string{"limits", "unset"}, args...)...)
		assert.Equal(t, 1, code)
		assert.Contains(t, errOut, "give -d DOMAIN and a descriptor")
	}
}

func TestDryRunOfSetChangesNothing(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	out, _, code := api.run("limits", "set", "-d", "shop", "tenant=acme", "factor=2", "--dry-run")
	assert.Zero(t, code)
	assert.Equal(t, "shop > tenant=acme: 100 per minute -> 200 per minute, counters=kept (dry run; nothing has changed)\n", out)
	assert.Empty(t, api.overrides.States())
}

func TestUnsetDeletesExpiredOverride(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	api.overrides.SetField("shop|tenant=acme", `{"factor": 2, "expires_at": "2020-01-01T00:00:00Z"}`)
	out, _, code := api.run("limits", "show", "--changes")
	assert.Zero(t, code)
	assert.Regexp(t, `expired +- +\d+d(\d+h)? ago +- +[0-9a-f]{16}\n$`, out)
	out, _, code = api.run("limits", "unset", "-d", "shop", "tenant=acme")
	assert.Zero(t, code)
	assert.Equal(t, "deleted; the override was not in force\n", out)
}

func TestListShowsLastValidValue(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	api.overrides.SetField("shop|tenant=acme", `{"factor": 2}`)
	api.overrides.SetField("shop|tenant=acme", `{"factr": 3}`)
	out, _, _ := api.run("limits", "show", "--changes")
	assert.Contains(t, out, "\n  the last valid value stays in force: 200 per minute\n")
}

func TestLimitsRejectsBadArguments(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	set := func(args ...string) []string { return append([]string{"limits", "set", "-d", "shop"}, args...) }
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no domain":        {[]string{"limits", "set", "tenant=acme", "factor=2"}, "give -d DOMAIN and a descriptor"},
		"no field":         {set("tenant=acme"), "nothing to change; give FIELD=VALUE"},
		"bad descriptor":   {set(",", "factor=2"), `"," is not a descriptor: entry 1 of the target has no key`},
		"bad field":        {set("tenant=acme", "factor"), `"factor" is not a field: write FIELD=VALUE`},
		"repeated field":   {set("tenant=acme", "factor=2", "factor=3"), "factor is given twice"},
		"repeated end":     {set("tenant=acme", "factor=2", "expires_at=2030-01-01T00:00:00Z", "--for", "1h"), "expires_at is given twice; --for also sets expires_at"},
		"zero duration":    {set("tenant=acme", "factor=2", "--for", "0s"), "--for must be at least 1s"},
		"unknown domain":   {[]string{"limits", "set", "-d", "shpo", "tenant=acme", "factor=2"}, "unknown domain shpo"},
		"several problems": {set("tenant=acme", "factr=2", "algorithm=slow"), "token_bucket, first_hit_window or concurrency\noverride shop|tenant=acme: unknown key \"factr\"; did you mean factor?"},
		"bad number":       {set("tenant=acme", "requests_per_unit=1_000"), "want a whole number"},
		"unknown command":  {[]string{"limits", "get"}, `unknown command "get"; want history, off`},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := api.run(test.args...)
			assert.Equal(t, 1, code)
			assert.Contains(t, errOut, test.want)
		})
	}
	t.Run("store fails", func(t *testing.T) {
		api.overrides.Fail(errors.New("connection refused"))
		_, errOut, code := api.run(set("tenant=acme", "factor=2")...)
		assert.Equal(t, 1, code)
		assert.Contains(t, errOut, "possibly not stored")
	})
	assert.Empty(t, api.overrides.States())
}

func TestOverrideJSONKeepsTheTypesOfValues(t *testing.T) {
	t.Parallel()
	got, err := overrideJSON([]string{"n=1", "f=0.5", "t=true", "l=[{}, 1]", "s=a=b", `q="1"`, "e=", "u=ü\n", "x=<é>", "01=01"})
	require.NoError(t, err)
	assert.JSONEq(t, `{"n":1,"f":0.5,"t":true,"l":[{},1],"s":"a=b","q":"1","e":"","u":"ü\n","x":"<é>","01":"01"}`, string(got))
}

func TestJSONFlagPrintsAnswers(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	api.spend("shop|ip=10.0.0.1", 5)
	for _, test := range []struct {
		args   []string
		target any
		want   string // a part of the output
	}{
		{[]string{"limits", "set", "-d", "shop", "tenant=acme", "factor=2"}, &admin.Override{}, `"base_limits": "100 per minute"`},
		{[]string{"limits", "show", "--changes"}, &admin.List{}, `"target": "shop|tenant=acme"`},
		{[]string{"limits", "unset", "-d", "shop", "tenant=acme"}, &admin.Override{}, `"state": "deleted"`},
		{[]string{"reset", "-d", "shop", "ip=10.0.0.1"}, &admin.Reset{}, `"published": false`},
	} {
		out, errOut, code := api.run(append(test.args, "--json")...)
		require.Zero(t, code, errOut)
		assert.Contains(t, out, test.want)
		d := json.NewDecoder(strings.NewReader(out))
		d.DisallowUnknownFields()
		assert.NoError(t, d.Decode(test.target), "%v", test.args)
	}
}

func TestLimitsShowListsRulesInForce(t *testing.T) {
	t.Parallel()
	service := start(t, []string{"ADMIN_TOKEN=" + adminToken}, "--limits", writeFile(t, "limits.yaml", nestedLimits))
	show := func(args ...string) string {
		out, errOut, code := rls(t, append([]string{"limits", "show", "--admin", service.debug}, args...)...)
		require.Zero(t, code, errOut)
		return out
	}
	assert.Regexp(t, `^RULE +LIMITS +STATE +PLACE\nshop > tenant=acme +2 per minute +in force +\S+limits.yaml:4\n(.*\n){2}$`, show())
	assert.Equal(t, 2, strings.Count(show("path"), "\n"))
	assert.Equal(t, "no such rule is in force\n", show("other"))
	assert.Contains(t, show("--json"), `"path": "shop > tenant=acme"`)
	_, errOut, code := rls(t, "limits", "show", "--admin", service.debug, "path", "--changes")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "leave out TEXT")
}
