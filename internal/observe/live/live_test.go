package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

func TestFiguresShowTheLastSecondsAndFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 20 {
			for i := range 30 {
				fixture.call(fmt.Sprintf("tenant=%d", i%2)) // 10 of each in a minute pass
			}
			fixture.options.Recorder.RedisAnswered(3 * time.Millisecond)
			fixture.tick(1)
		}
		figures := fixture.Snapshot().Figures
		assert.InDelta(t, 30, float64(figures.Calls.Now), 0.01)
		assert.InDelta(t, 1, float64(figures.DeniedShare.Now), 0.01)
		assert.InEpsilon(t, 0.003, float64(figures.RedisP99.Now), 0.13)
		assert.Len(t, figures.Calls.Points, 4)
		assert.InDelta(t, 130.0/150, float64(figures.DeniedShare.Points[0]), 0.01)

		fixture.result = &backend.Result{Err: errors.New("broken")}
		for range 5 {
			fixture.call("tenant=1")
			fixture.tick(1)
		}
		figures = fixture.Snapshot().Figures
		assert.InDelta(t, 1, float64(figures.Errors.Now), 0.01)
		assert.Zero(t, float64(figures.DeniedShare.Now))
		fixture.tick(600)
		figures = fixture.Snapshot().Figures
		assert.Len(t, figures.Calls.Points, historySteps)
		assert.Zero(t, float64(figures.Calls.Now))
		assert.False(t, figures.DeniedShare.Now.IsKnown())
		assert.False(t, figures.P99.Points[0].IsKnown())
	})
}

func joinLabels(rules []Rule) string {
	var names []string
	for _, rule := range rules {
		names = append(names, rule.Label)
	}
	return strings.Join(names, " ")
}

func TestRulesAreSortedByDenialsAndQuietRulesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		assert.Equal(t, RuleList{Total: 4, Shown: []Rule{}, Quiet: 5}, fixture.Snapshot().Rules, "a disabled rule is quiet and not in force")
		fixture.tick(5)
		fixture.counts = []metrics.RuleCounts{
			counts("shop > tenant", "", 500, 50, 0, 0),
			counts("shop > tenant > path", "per minute", 100, 0, 0, 0),
			counts("shop > tenant > path", "per hour", 60, 0, 40, 0),
			counts("shop > trial", "", 5, 0, 0, 10),
			counts("gone > rule", "", 5, 0, 0, 0),
		}
		fixture.tick(5)
		list := fixture.Snapshot().Rules
		assert.Equal(t, "path trial tenant rule", joinLabels(list.Shown))
		assert.Equal(t, 2, list.Quiet)
		assert.Zero(t, list.More)
		path, tenant := list.Shown[0], list.Shown[2]
		assert.Equal(t, Rates{OK: 12, Denied: 8}, path.Rates, "the rates of the limit with the most denials")
		assert.Equal(t, Rates{OK: 100, Near: 10}, tenant.Rates)
		assert.Equal(t, []Value{8}, path.DeniedPoints)
		assert.Equal(t, []Value{3}, list.Shown[1].OKPoints, "a hit that shadow mode lets pass has passed")
		assert.Equal(t, []string{"shadow"}, list.Shown[1].Marks)
		assert.Equal(t, 2, path.Depth)
		assert.Equal(t, "limits.yaml", path.File)
		assert.Equal(t, 7, path.Line)
		assert.Len(t, path.Limits, 2)
		assert.Equal(t, "token_bucket", path.Limits[1].Algorithm)

		fixture.counts = fixture.counts[:4]
		fixture.tick(5)
		list = fixture.Snapshot().Rules
		assert.Equal(t, "path trial tenant", joinLabels(list.Shown), "rules that the metrics forget are gone")
		assert.Zero(t, float64(list.Shown[0].Denied))
		fixture.tick(historySteps * stepSeconds)
		list = fixture.Snapshot().Rules
		assert.Empty(t, list.Shown)
		assert.Equal(t, 5, list.Quiet)
	})
}

func TestSnapshotOfThousandsOfRulesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		var limits strings.Builder
		limits.WriteString("domain: shop\ndescriptors:\n")
		for i := range 5000 {
			fmt.Fprintf(&limits, "  - {key: k%d, rate_limit: {unit: minute, requests_per_unit: 1}}\n", i)
			fixture.counts = append(fixture.counts, counts(fmt.Sprintf("shop > k%d", i), "", uint64(i), 0, uint64(i), 0))
		}
		fixture.load(limits.String())
		for range historySteps {
			fixture.tick(stepSeconds)
			for i := range fixture.counts {
				fixture.counts[i].WithinLimit += uint64(i) * 1000
				fixture.counts[i].OverLimit += uint64(i)
			}
		}
		snapshot := fixture.Snapshot()
		assert.Len(t, snapshot.Rules.Shown, maxRules)
		assert.Equal(t, 4999-maxRules, snapshot.Rules.More)
		assert.Equal(t, 1, snapshot.Rules.Quiet)
		assert.Equal(t, "k4999", snapshot.Rules.Shown[0].Label)
		assert.Less(t, len(encode(fixture.Snapshot())), 150<<10, "bytes of JSON")

		rules, hiddenCount := fixture.Rules("K49")
		assert.Len(t, rules, 111)
		assert.Zero(t, hiddenCount)
		rules, hiddenCount = fixture.Rules("")
		assert.Len(t, rules, maxFoundRules)
		assert.Equal(t, 4500, hiddenCount)
		rules, _ = fixture.Rules("1 per minute")
		assert.Len(t, rules, maxFoundRules)
	})
}

func TestRuleHasItsOwnBusiestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 20 {
			fixture.call("tenant=a", "tenant=a,path=/x", "trial=1")
		}
		fixture.tick(1)
		rule, keys, isKnown := fixture.Rule("shop > trial")
		require.True(t, isKnown)
		assert.Equal(t, "trial", rule.Label)
		require.Len(t, keys.Hottest, 1)
		assert.Equal(t, "shop|trial=1", keys.Hottest[0].Key)
		assert.InDelta(t, 1.0/3, float64(keys.Hottest[0].Share), 0.01)
		require.Len(t, keys.Denied, 1)
		assert.True(t, keys.Denied[0].Shadow)
		_, _, isKnown = fixture.Rule("shop > nothing")
		assert.False(t, isKnown)
		rule, _, isKnown = fixture.Rule("shop > old")
		assert.True(t, isKnown)
		assert.Equal(t, []string{"disabled"}, rule.Marks)
		assert.True(t, rule.Limits[0].Disabled)
		rule, _, _ = fixture.Rule("shop > free")
		assert.Equal(t, []string{"quota", "unlimited"}, rule.Marks)
	})
}

// TestSwitchIsOneMark has a rule whose limits a switch has put in shadow mode and disabled.
func TestSwitchIsOneMark(t *testing.T) {
	d := &limitsfile.Descriptor{Key: "tenant", Overrides: []limitsfile.AppliedOverride{{Target: "shop|tenant", IsSwitch: true}}}
	d.ShadowMode = true
	assert.Equal(t, []string{"off"}, newRule("shop", []*limitsfile.Descriptor{d}).Marks)
	d.Overrides[0].IsSwitch = false
	assert.Equal(t, []string{"shadow", "disabled", "override"}, newRule("shop", []*limitsfile.Descriptor{d}).Marks)
}

func TestFiguresHaveTheCPUTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 7 {
			fixture.cpuTime += 500 * time.Millisecond
			fixture.tick(1)
		}
		cpu := fixture.Snapshot().Figures.CPU
		assert.EqualValues(t, 0.5, cpu.Now)
		assert.Equal(t, []Value{0.5}, cpu.Points)
	})
}

func TestHeadlineSaysWhetherAllIsWell(t *testing.T) {
	start := time.Date(2026, 11, 20, 14, 2, 0, 0, time.UTC)
	now := start.Add(time.Hour)
	timeBefore := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	loadedLimits := Limits{Loaded: true, Since: &start}
	redisUp := &Redis{Up: true}
	price := &Outage{Start: *timeBefore(41 * time.Second), Calls: 1204, MaxExcessHits: 310}
	outageDetails := []string{"connection refused. What to do: start Redis; see docs/operations.md#redis-is-down"}
	for name, test := range map[string]struct {
		state   State
		level   Level
		want    string
		details []string
	}{
		"Redis is up":   {State{Redis: redisUp, Limits: loadedLimits, Replicas: 3}, Well, "Counting in Redis · 3 replicas seen · limits of 14:02 UTC in force", nil},
		"one replica":   {State{Redis: redisUp, Limits: loadedLimits, Replicas: 1}, Well, "Counting in Redis · 1 replica seen · limits of 14:02 UTC in force", nil},
		"local backend": {State{Limits: loadedLimits}, Well, "Counting in this process · limits of 14:02 UTC in force", nil},
		"no limits":     {State{Redis: redisUp}, Trouble, "No limits loaded: calls fail until valid limits arrive", nil},
		"draining":      {State{Limits: loadedLimits, Draining: true}, Warning, "Stopping · counting in this process · limits of 14:02 UTC in force", nil},
		"shadow mode of the service": {
			State{Limits: loadedLimits, ShadowMode: true},
			Warning,
			"The whole service is in shadow mode: it denies nothing · counting in this process · limits of 14:02 UTC in force", nil,
		},
		"outage": {
			State{Redis: &Redis{Since: timeBefore(41 * time.Second), Error: "connection refused", Advice: "start Redis", Mode: "local", Ratio: 0.5, Outage: price}, Limits: loadedLimits},
			Trouble,
			"Redis away for 00:41 · deciding here at half of each limit, or as its rule says · 1,204 calls decided without Redis, at most 310 hits too many · limits of 14:02 UTC in force", outageDetails,
		},
		"outage of hours in mode deny": {
			State{Redis: &Redis{Since: timeBefore(2*time.Hour + time.Second), Error: "connection refused", Advice: "start Redis", Mode: "deny"}, Limits: loadedLimits},
			Trouble,
			"Redis away for 2:00:01 · denying all hits, or as the rule says · limits of 14:02 UTC in force", outageDetails,
		},
		"outage in mode allow": {State{Redis: &Redis{Error: "connection refused", Advice: "start Redis", Mode: "allow"}, Limits: loadedLimits}, Trouble, "Redis away · admitting all hits, or as the rule says · limits of 14:02 UTC in force", outageDetails},
		"past outage": {
			State{Redis: &Redis{Up: true, Outage: &Outage{End: timeBefore(time.Minute), Seconds: 41.5, Calls: 1}}, Limits: loadedLimits},
			Well,
			"Counting in Redis · limits of 14:02 UTC in force",
			[]string{"Last outage of Redis ended at 15:01 UTC and lasted 41.5s: 1 call decided without Redis, no hit too many"},
		},
		"failing breaker": {
			State{Redis: &Redis{Up: true, Breakers: Breakers{Failing: 1}}, Limits: loadedLimits},
			Warning, "Counting in Redis · limits of 14:02 UTC in force",
			[]string{"Redis fails some calls now; this process decides those calls. rls doctor says why"},
		},
		"findings of the self-check": {
			State{Redis: &Redis{Up: true, Findings: []RedisFinding{
				{Level: "problem", Check: "rights", Address: "a:1", Text: "the user rls may not run mget", Advice: "run ACL SETUSER rls +mget"},
				{Level: "warning", Check: "clock", Address: "a:1", Text: "the clock of Redis is 5s ahead", Advice: "set both clocks with NTP"},
				{Level: "note", Check: "persistence", Address: "a:1", Text: "Redis has no append-only file"},
			}}, Limits: loadedLimits},
			Trouble, "Counting in Redis · limits of 14:02 UTC in force",
			[]string{
				"Redis a:1: the user rls may not run mget; run ACL SETUSER rls +mget",
				"Redis a:1: the clock of Redis is 5s ahead; set both clocks with NTP",
			},
		},
		"a region": {
			State{Redis: &Redis{Up: true, Region: &Region{Name: "eu", UnusedHits: 1230, RoundTripSeconds: 0.0351}}, Limits: loadedLimits},
			Well, "Counting in Redis · limits of 14:02 UTC in force",
			[]string{"Region eu: 1,230 hits bought and not used; a purchase takes 35.1ms"},
		},
		"rejected limits": {
			State{Limits: Limits{Loaded: true, Since: &start, Problems: []string{"a.yaml:1: wrong"}, MoreProblems: 2}},
			Warning,
			"Newest limits or overrides rejected · counting in this process · limits of 14:02 UTC in force",
			[]string{"3 problems, so the newest limits or overrides are not in force (docs/operations.md#new-limits-are-not-in-force): a.yaml:1: wrong"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.state.setSummary(now, signals{}, nil)
			assert.Equal(t, test.level, test.state.Level)
			assert.Equal(t, test.want, test.state.Headline)
			assert.Equal(t, append([]string{}, test.details...), test.state.Details)
		})
	}
}

func TestSnapshotIsJSONWithoutNumbersThatJSONCannotExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.events.Add(timeline.Event{Kind: timeline.Start, Text: "<script>"})
		for range 3 {
			fixture.call("tenant=</script>\x1b[31m")
		}
		fixture.tick(1)
		text := encode(fixture.Snapshot())
		assert.NotContains(t, string(text), "<")
		assert.NotContains(t, string(text), "\x1b")
		assert.NotContains(t, string(text), "NaN")
		var read Snapshot
		require.NoError(t, json.Unmarshal(text, &read))
		assert.Equal(t, "shop|tenant=</script>%1B[31m", read.Keys.Hottest[0].Key)
		assert.False(t, read.Figures.RedisP50.Now.IsKnown())
		assert.InDelta(t, 3, float64(read.Figures.Calls.Now), 0.01)
	})
}

func TestProblemsAndOverridesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		overrides := make([]Override, 300)
		fixture := newFixture(t, func(o *Options) {
			o.Limits = func() Limits { return Limits{Problems: make([]string, 70)} }
			o.Overrides = func() []Override { return overrides }
		})
		snapshot := fixture.Snapshot()
		assert.Len(t, snapshot.State.Limits.Problems, maxProblems)
		assert.Equal(t, 20, snapshot.State.Limits.MoreProblems)
		assert.Len(t, snapshot.Overrides.Shown, maxOverrides)
		assert.Equal(t, 100, snapshot.Overrides.More)
		assert.Equal(t, []string{"shop"}, snapshot.State.Limits.Domains)
		assert.Equal(t, 4, snapshot.State.Limits.Rules)
	})
}

// TestFirstViewOfManyRulesIsFresh lets the first viewer come between two readings of the counts of rules.
func TestFirstViewOfManyRulesIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for i := range 1001 {
			fixture.counts = append(fixture.counts, counts(fmt.Sprintf("shop > k%d", i), "", 1, 0, 0, 0))
		}
		fixture.tick(2 * stepSeconds)
		fixture.counts[7].OverLimit += 30
		fixture.tick(3)
		time.Sleep(100 * time.Millisecond) // the viewer comes between two samples
		firstRule := fixture.Snapshot().Rules.Shown[0]
		assert.Equal(t, "shop > k7", firstRule.Path)
		assert.Positive(t, float64(firstRule.Denied))
	})
}
