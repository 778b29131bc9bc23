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
		r := newRig(t, nil)
		for range 20 {
			for i := range 30 {
				r.call(fmt.Sprintf("tenant=%d", i%2)) // 10 of each in a minute pass
			}
			r.options.Recorder.RedisAnswered(3 * time.Millisecond)
			r.tick(1)
		}
		f := r.Snapshot().Figures
		assert.InDelta(t, 30, float64(f.Calls.Now), 0.01)
		assert.InDelta(t, 1, float64(f.DeniedShare.Now), 0.01)
		assert.InEpsilon(t, 0.003, float64(f.RedisP99.Now), 0.13)
		assert.Len(t, f.Calls.Points, 4)
		assert.InDelta(t, 130.0/150, float64(f.DeniedShare.Points[0]), 0.01)

		r.result = &backend.Result{Err: errors.New("broken")}
		for range 5 {
			r.call("tenant=1")
			r.tick(1)
		}
		f = r.Snapshot().Figures
		assert.InDelta(t, 1, float64(f.Errors.Now), 0.01)
		assert.Zero(t, float64(f.DeniedShare.Now))
		r.tick(600)
		f = r.Snapshot().Figures
		assert.Len(t, f.Calls.Points, historySteps)
		assert.Zero(t, float64(f.Calls.Now))
		assert.False(t, f.DeniedShare.Now.IsKnown())
		assert.False(t, f.P99.Points[0].IsKnown())
	})
}

func labels(rules []Rule) string {
	var names []string
	for _, r := range rules {
		names = append(names, r.Label)
	}
	return strings.Join(names, " ")
}

func TestRulesAreSortedByDenialsAndQuietRulesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		assert.Equal(t, RuleList{Total: 4, Shown: []Rule{}, Quiet: 5}, r.Snapshot().Rules, "a disabled rule is quiet and not in force")
		r.tick(5)
		r.counts = []metrics.RuleCounts{
			counts("shop > tenant", "", 500, 50, 0, 0),
			counts("shop > tenant > path", "per minute", 100, 0, 0, 0),
			counts("shop > tenant > path", "per hour", 60, 0, 40, 0),
			counts("shop > trial", "", 5, 0, 0, 10),
			counts("gone > rule", "", 5, 0, 0, 0),
		}
		r.tick(5)
		list := r.Snapshot().Rules
		assert.Equal(t, "path trial tenant rule", labels(list.Shown))
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

		r.counts = r.counts[:4]
		r.tick(5)
		list = r.Snapshot().Rules
		assert.Equal(t, "path trial tenant", labels(list.Shown), "rules that the metrics forget are gone")
		assert.Zero(t, float64(list.Shown[0].Denied))
		r.tick(historySteps * stepSeconds)
		list = r.Snapshot().Rules
		assert.Empty(t, list.Shown)
		assert.Equal(t, 5, list.Quiet)
	})
}

func TestSnapshotOfThousandsOfRulesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		var limits strings.Builder
		limits.WriteString("domain: shop\ndescriptors:\n")
		for i := range 5000 {
			fmt.Fprintf(&limits, "  - {key: k%d, rate_limit: {unit: minute, requests_per_unit: 1}}\n", i)
			r.counts = append(r.counts, counts(fmt.Sprintf("shop > k%d", i), "", uint64(i), 0, uint64(i), 0))
		}
		r.load(limits.String())
		for range historySteps {
			r.tick(stepSeconds)
			for i := range r.counts {
				r.counts[i].WithinLimit += uint64(i) * 1000
				r.counts[i].OverLimit += uint64(i)
			}
		}
		s := r.Snapshot()
		assert.Len(t, s.Rules.Shown, maxRules)
		assert.Equal(t, 4999-maxRules, s.Rules.More)
		assert.Equal(t, 1, s.Rules.Quiet)
		assert.Equal(t, "k4999", s.Rules.Shown[0].Label)
		assert.Less(t, len(encode(r.Snapshot())), 150<<10, "bytes of JSON")

		rules, more := r.Rules("K49")
		assert.Len(t, rules, 111)
		assert.Zero(t, more)
		rules, more = r.Rules("")
		assert.Len(t, rules, maxFoundRules)
		assert.Equal(t, 4500, more)
		rules, _ = r.Rules("1 per minute")
		assert.Len(t, rules, maxFoundRules)
	})
}

func TestRuleHasItsOwnBusiestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for range 20 {
			r.call("tenant=a", "tenant=a,path=/x", "trial=1")
		}
		r.tick(1)
		rule, keys, isKnown := r.Rule("shop > trial")
		require.True(t, isKnown)
		assert.Equal(t, "trial", rule.Label)
		require.Len(t, keys.Hottest, 1)
		assert.Equal(t, "shop|trial=1", keys.Hottest[0].Key)
		assert.InDelta(t, 1.0/3, float64(keys.Hottest[0].Share), 0.01)
		require.Len(t, keys.Denied, 1)
		assert.True(t, keys.Denied[0].Shadow)
		_, _, isKnown = r.Rule("shop > nothing")
		assert.False(t, isKnown)
		rule, _, isKnown = r.Rule("shop > old")
		assert.True(t, isKnown)
		assert.Equal(t, []string{"disabled"}, rule.Marks)
		assert.True(t, rule.Limits[0].Disabled)
		rule, _, _ = r.Rule("shop > free")
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
		r := newRig(t, nil)
		for range 7 {
			r.cpuTime += 500 * time.Millisecond
			r.tick(1)
		}
		cpu := r.Snapshot().Figures.CPU
		assert.EqualValues(t, 0.5, cpu.Now)
		assert.Equal(t, []Value{0.5}, cpu.Points)
	})
}

func TestHeadlineSaysWhetherAllIsWell(t *testing.T) {
	start := time.Date(2026, 11, 20, 14, 2, 0, 0, time.UTC)
	now := start.Add(time.Hour)
	ago := func(d time.Duration) *time.Time { return new(now.Add(-d)) }
	loaded := Limits{Loaded: true, Since: &start}
	up := &Redis{Up: true}
	price := &Outage{Start: *ago(41 * time.Second), Calls: 1204, MaxExcessHits: 310}
	for name, c := range map[string]struct {
		state   State
		level   Level
		want    string
		details []string
	}{
		"Redis is up":   {State{Redis: up, Limits: loaded, Replicas: 3}, Well, "Counting in Redis · 3 replicas seen · limits of 14:02 UTC in force", nil},
		"one replica":   {State{Redis: up, Limits: loaded, Replicas: 1}, Well, "Counting in Redis · 1 replica seen · limits of 14:02 UTC in force", nil},
		"local backend": {State{Limits: loaded}, Well, "Counting in this process · limits of 14:02 UTC in force", nil},
		"no limits":     {State{Redis: up}, Trouble, "No limits loaded: calls fail until valid limits arrive", nil},
		"draining":      {State{Limits: loaded, Draining: true}, Warning, "Stopping · counting in this process · limits of 14:02 UTC in force", nil},
		"shadow mode of the service": {
			State{Limits: loaded, ShadowMode: true},
			Warning,
			"The whole service is in shadow mode: it denies nothing · counting in this process · limits of 14:02 UTC in force", nil,
		},
		"outage": {
			State{Redis: &Redis{Since: ago(41 * time.Second), Mode: "local", Ratio: 0.5, Outage: price}, Limits: loaded},
			Trouble,
			"Redis away for 00:41 · deciding here at half of each limit · 1,204 calls decided without Redis, at most 310 hits too many · limits of 14:02 UTC in force", nil,
		},
		"outage of hours in mode deny": {
			State{Redis: &Redis{Since: ago(2*time.Hour + time.Second), Mode: "deny"}, Limits: loaded},
			Trouble,
			"Redis away for 2:00:01 · denying all hits · limits of 14:02 UTC in force", nil,
		},
		"outage in mode allow": {State{Redis: &Redis{Mode: "allow"}, Limits: loaded}, Trouble, "Redis away · admitting all hits · limits of 14:02 UTC in force", nil},
		"past outage": {
			State{Redis: &Redis{Up: true, Outage: &Outage{End: ago(time.Minute), Seconds: 41.5, Calls: 1}}, Limits: loaded},
			Well,
			"Counting in Redis · limits of 14:02 UTC in force",
			[]string{"Last outage of Redis ended at 15:01 UTC and lasted 41.5s: 1 call decided without Redis, no hit too many"},
		},
		"failing breaker": {
			State{Redis: &Redis{Up: true, Breakers: Breakers{Failing: 1}}, Limits: loaded},
			Warning, "Counting in Redis · limits of 14:02 UTC in force",
			[]string{"Redis fails some calls now; this process decides those calls"},
		},
		"findings of the self-check": {
			State{Redis: &Redis{Up: true, Findings: []RedisFinding{
				{Level: "problem", Check: "rights", Address: "a:1", Text: "the user rls may not run mget", Advice: "run ACL SETUSER rls +mget"},
				{Level: "warning", Check: "clock", Address: "a:1", Text: "the clock of Redis is 5s ahead", Advice: "set both clocks with NTP"},
				{Level: "note", Check: "persistence", Address: "a:1", Text: "Redis has no append-only file"},
			}}, Limits: loaded},
			Trouble, "Counting in Redis · limits of 14:02 UTC in force",
			[]string{
				"Redis a:1: the user rls may not run mget; run ACL SETUSER rls +mget",
				"Redis a:1: the clock of Redis is 5s ahead; set both clocks with NTP",
			},
		},
		"rejected limits": {
			State{Limits: Limits{Loaded: true, Since: &start, Problems: []string{"a.yaml:1: wrong"}, MoreProblems: 2}},
			Warning,
			"Newest limits or overrides rejected · counting in this process · limits of 14:02 UTC in force",
			[]string{"3 problems, so the newest limits or overrides are not in force: a.yaml:1: wrong"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.state.setSummary(now, signals{}, nil)
			assert.Equal(t, c.level, c.state.Level)
			assert.Equal(t, c.want, c.state.Headline)
			assert.Equal(t, append([]string{}, c.details...), c.state.Details)
		})
	}
}

func TestSnapshotIsJSONWithoutNumbersThatJSONCannotExpress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.events.Add(timeline.Event{Kind: timeline.Start, Text: "<script>"})
		for range 3 {
			r.call("tenant=</script>\x1b[31m")
		}
		r.tick(1)
		text := encode(r.Snapshot())
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
		r := newRig(t, func(o *Options) {
			o.Limits = func() Limits { return Limits{Problems: make([]string, 70)} }
			o.Overrides = func() []Override { return overrides }
		})
		s := r.Snapshot()
		assert.Len(t, s.State.Limits.Problems, maxProblems)
		assert.Equal(t, 20, s.State.Limits.MoreProblems)
		assert.Len(t, s.Overrides.Shown, maxOverrides)
		assert.Equal(t, 100, s.Overrides.More)
		assert.Equal(t, []string{"shop"}, s.State.Limits.Domains)
		assert.Equal(t, 4, s.State.Limits.Rules)
	})
}

// TestFirstViewOfManyRulesIsFresh lets the first viewer come between two readings of the counts of rules.
func TestFirstViewOfManyRulesIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for i := range 1001 {
			r.counts = append(r.counts, counts(fmt.Sprintf("shop > k%d", i), "", 1, 0, 0, 0))
		}
		r.tick(2 * stepSeconds)
		r.counts[7].OverLimit += 30
		r.tick(3)
		time.Sleep(100 * time.Millisecond) // the viewer comes between two samples
		first := r.Snapshot().Rules.Shown[0]
		assert.Equal(t, "shop > k7", first.Path)
		assert.Positive(t, float64(first.Denied))
	})
}
