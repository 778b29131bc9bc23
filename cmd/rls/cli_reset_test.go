package main

import (
	"bytes"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin"
)

func TestResetShowsSpentHits(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	api.spend("shop|ip=10.0.0.1", 5)
	out, _, code := api.run("reset", "-d", "shop", "ip=10.0.0.1")
	assert.Zero(t, code)
	assert.Regexp(t, `^shop > ip \(counter shop\|ip=10.0.0.1\)
LIMIT +SPENT +REMAINING +RESETS IN
50 per day \(daily\) +5 -> 0 +50 +\d+[hms].*
5 per hour, sliding_log +5 -> 0 +5 +0s
other replicas were not notified; they may deny until their cached denials end
$`, out)
	out, _, _ = api.run("reset", "-d", "shop", "ip=10.0.0.1")
	assert.Regexp(t, `5 per hour, sliding_log +0 -> 0 +5 +0s\n`, out)
}

func TestResetOfUnlimitedRuleShowsNoNumbers(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	out, _, code := api.run("reset", "-d", "shop", "trial=x")
	assert.Zero(t, code)
	assert.Regexp(t, `^shop > trial \(counter shop\|trial=x\), in shadow mode
LIMIT +SPENT +REMAINING +RESETS IN
unlimited +- +- +-
`, out)
}

func TestResetRejectsBadArguments(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown domain":     {[]string{"reset", "-d", "bank", "ip=x"}, `unknown domain "bank"; loaded domains: "shop"`},
		"unknown descriptor": {[]string{"reset", "-d", "shop", "user=x"}, `no descriptor with a limit matches requests with "shop|user=x"`},
		"no descriptor":      {[]string{"reset", "-d", "shop"}, "got 0 arguments, want rls reset"},
		"bad descriptor":     {[]string{"reset", "-d", "shop", "=x"}, "is not a descriptor"},
		"no value":           {[]string{"reset", "-d", "shop", "ip"}, `"ip" is not a descriptor: entry 1 has no =`},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := api.run(test.args...)
			assert.Equal(t, 1, code)
			assert.Contains(t, errOut, test.want)
		})
	}
}

func TestResetByPrefixCountsCounters(t *testing.T) {
	t.Parallel()
	one := 1
	for want, answer := range map[string]admin.ResetByPrefix{
		"reset 1 counter with the prefix shop|tenant=a\n":                   {Prefix: "shop|tenant=a", Counters: &one},
		"dry run; would reset all counters with the prefix shop|tenant=a\n": {Prefix: "shop|tenant=a", DryRun: true},
	} {
		var out bytes.Buffer
		require.NoError(t, printAnswer(&out, false, &answer, "reset by prefix"))
		assert.Equal(t, want, out.String())
	}
}

func TestDegradedCounterIsMarked(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := printAnswer(&out, false, &admin.Reset{Counter: admin.Counter{
		Path: "shop > ip", Key: "shop|ip=x",
		Limits: []admin.Limit{{Limit: "5 per hour", Remaining: 2, ResetSeconds: 0.2, Degraded: true}},
	}}, "reset")
	require.NoError(t, err)
	assert.Equal(t, "shop > ip (counter shop|ip=x)\n"+
		"LIMIT       SPENT  REMAINING                             RESETS IN\n"+
		"5 per hour  -      2 (this replica only; Redis is down)  1s\n", out.String())
}
