package live

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/service"
)

// run sends calls for some seconds. Each tenant sends callsPerSecond.
func (r *liveFixture) run(seconds, callsPerSecond int, tenants ...string) {
	for range seconds {
		for range callsPerSecond {
			for _, tenant := range tenants {
				r.call("tenant=" + tenant)
			}
		}
		r.tick(1)
	}
}

// limitsOf returns limits that admit n calls of each tenant a second.
func limitsOf(n int) string {
	return fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {unit: second, requests_per_unit: %d}}\n", n)
}

func TestMassDenialIsTroubleWithinTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(100))
		fixture.run(120, 5, "a", "b")
		assert.Equal(t, Well, fixture.Snapshot().State.Level)

		fixture.load(limitsOf(0))
		fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: []timeline.Attr{
			{Name: "source", Value: "file"}, {Name: "rules", Value: "1"}, {Name: "changed", Value: "shop > tenant: 100 per second → 0 per second"},
		}})
		fixture.run(20, 5, "a", "b")
		state := fixture.Snapshot().State
		assert.Equal(t, Trouble, state.Level)
		assert.Contains(t, fmt.Sprint(state.Details), "Now 0.0 calls a second are admitted, because limits deny")
		assert.Contains(t, fmt.Sprint(state.Details), "The limits changed 15s before the alarm: limits in force at ")
		assert.Contains(t, state.Headline, "Mass denial: 100 % of the calls denied since")
		assert.Contains(t, fmt.Sprint(state.Details), "changed shop > tenant: 100 per second → 0 per second")

		fixture.run(600, 1, "a", "b")
		assert.Equal(t, Trouble, fixture.Snapshot().State.Level, "the trouble lasts as long as the denials")
		fixture.load(limitsOf(100))
		fixture.run(10, 5, "a", "b")
		assert.Equal(t, Well, fixture.Snapshot().State.Level, "the alarm ends soon after the repair")
		fixture.run(60, 5, "a", "b")
		assert.Equal(t, Well, fixture.Snapshot().State.Level)
	})
}

func TestRuleThatDeniesMostSinceItsLimitsChangedIsAWarning(t *testing.T) {
	const change = "shop > tenant=a: 100 per second → 0 per second"
	for name, test := range map[string]struct {
		secondsBefore, secondsAfter int
		okAfter, deniedAfter        uint64 // hits a second
		change                      string
		want                        bool
	}{
		"MostHitsDenied":      {60, 25, 0, 5, change, true},
		"ManyHitsStillPass":   {60, 25, 4, 36, change, false},
		"OtherRuleChanged":    {60, 25, 0, 5, "shop > tenant: 90 per second → 100 per second", false},
		"NoHitsBefore":        {0, 25, 0, 5, change, false},
		"ChangeOfLastSeconds": {60, 4, 0, 5, change, false},
		"DenialsLast":         {60, 600, 0, 5, change, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fixture := newFixture(t, nil)
				var ok, denied uint64
				send := func(seconds int, okRate, deniedRate uint64) {
					for range seconds {
						ok, denied = ok+okRate, denied+deniedRate
						fixture.counts = []metrics.RuleCounts{counts("shop > tenant=a", "", ok, 0, denied, 0), counts("shop > tenant", "", 2*ok+2*denied, 0, 0, 0)}
						fixture.tick(1)
					}
				}
				send(test.secondsBefore, 5, 0)
				fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: []timeline.Attr{{Name: "changed", Value: test.change}}})
				send(test.secondsAfter, test.okAfter, test.deniedAfter)
				state := fixture.Snapshot().State
				if !test.want {
					assert.NotContains(t, state.Headline, "since its limits changed")
					return
				}
				assert.Equal(t, Warning, state.Level)
				assert.Contains(t, state.Headline, "Rule shop > tenant=a denies 100 % of its hits since its limits changed at ")
				assert.Contains(t, state.Headline, ", 0 % before")
				assert.Contains(t, fmt.Sprint(state.Details), "until then: rls limits off 'shop > tenant=a' --for 15m --reason incident")
				assert.Equal(t, []string{"shop > tenant=a"}, fixture.RulesDenyingSinceChange())
				assert.Equal(t, 1, strings.Count(fixture.log.String(), "rule denies most hits since its limits changed"))
				fixture.redis.Up = false
				send(5, test.okAfter, test.deniedAfter)
				assert.NotContains(t, fmt.Sprint(fixture.Snapshot().State.Details), "rls limits off", "the command needs Redis")
				fixture.redis.Up = true
				send(20, 5, 0)
				assert.Equal(t, Well, fixture.Snapshot().State.Level, "the warning ends soon after the repair")
				assert.Empty(t, fixture.RulesDenyingSinceChange())
			})
		})
	}
}

func TestRuleWithMostHitsComesFirstAmongDenialsSinceChange(t *testing.T) {
	pointsOf := func(okRate float32) []hits {
		return slices.Concat(slices.Repeat([]hits{{ok: okRate}}, 10), slices.Repeat([]hits{{denied: okRate}}, 4))
	}
	traffic := traffic{rules: map[string]*ruleTraffic{"shop > a": {points: pointsOf(5.2)}, "shop > b": {points: pointsOf(5.9)}}}
	now := time.Now()
	change := timeline.Event{Kind: timeline.Reload, Time: now.Add(-15 * time.Second), Attrs: []timeline.Attr{{Name: "changed", Value: "shop > a: 9 → 0\nshop > b: 9 → 0"}}}
	denials := traffic.denialsSinceChange(now, []timeline.Event{change}, nil)
	require.Len(t, denials, 2)
	assert.Equal(t, "shop > b", denials[0].path)
}

func TestFloodSoonAfterAMassDenialIsNoMassDenial(t *testing.T) {
	for _, quietSeconds := range []int{10, 25, 64} {
		t.Run(fmt.Sprint(quietSeconds), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fixture := newFixture(t, nil)
				change := func(n int) {
					fixture.load(limitsOf(n))
					fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: make([]timeline.Attr, 3)})
				}
				fixture.load(limitsOf(20))
				fixture.run(90, 5, "a", "b", "c", "d")
				change(0)
				fixture.run(40, 5, "a", "b", "c", "d")
				change(20)
				fixture.run(quietSeconds, 5, "a", "b", "c", "d")
				for range 60 {
					for range 1000 {
						fixture.call("tenant=flood")
					}
					fixture.run(1, 5, "a", "b", "c", "d")
					assert.NotContains(t, fixture.Snapshot().State.Headline, "Mass denial")
				}
				assert.Contains(t, fixture.Snapshot().State.Headline, "of the calls denied")
			})
		})
	}
}

func TestLimitsThatDenyAllAreNeverToldAsAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(100))
		fixture.run(90, 5, "a", "b")
		fixture.run(30, 10, "a", "b") // so the recent calls admit much for a while after the change
		fixture.load(limitsOf(0))
		fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: make([]timeline.Attr, 3)})
		var levels []Level
		for range 40 {
			fixture.run(1, 10, "a", "b")
			state := fixture.Snapshot().State
			assert.NotContains(t, state.Headline, "as many calls admitted as before")
			levels = append(levels, state.Level)
		}
		assert.Contains(t, levels, Warning, "the denials are told before their cause is known")
		assert.Equal(t, Trouble, levels[len(levels)-1])
	})
}

func TestMassDenialSoonAfterAQuietTimeIsNotToldAsAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(100))
		fixture.tick(200)
		fixture.run(90, 10, "a", "a", "b")
		fixture.load("domain: shop\ndescriptors:\n" +
			"  - {key: tenant, value: a, rate_limit: {unit: second, requests_per_unit: 0}}\n" +
			"  - {key: tenant, rate_limit: {unit: second, requests_per_unit: 100}}\n")
		fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: make([]timeline.Attr, 3)})
		for range 40 {
			fixture.run(1, 10, "a", "a", "b")
			assert.NotContains(t, fixture.Snapshot().State.Headline, "some callers send more")
		}
		assert.Contains(t, fixture.Snapshot().State.Headline, "Mass denial: 67 % of the calls denied since")
	})
}

func TestLogHasStartAndEndOfAMassDenialWithoutViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(100))
		fixture.run(120, 5, "a", "b")
		change := func(n int) {
			fixture.load(limitsOf(n))
			fixture.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: make([]timeline.Attr, 3)})
		}
		change(0)
		fixture.run(55, 5, "a", "b")
		require.Equal(t, 1, strings.Count(fixture.log.String(), "\n"), "the log has one line for the whole denial")
		assert.Contains(t, fixture.log.String(), `level=WARN msg="mass denial started" state="Mass denial: 100 % of the calls denied since `)
		assert.Contains(t, fixture.log.String(), "For all limits, it is rls limits off --all")
		assert.Contains(t, fixture.log.String(), "rls limits rollback")

		change(100)
		fixture.run(10, 5, "a", "b")
		assert.Contains(t, fixture.log.String(), `level=INFO msg="mass denial ended" lasted=1m0s`, "since the first denials, and not since the alarm")
		fixture.run(40, 5, "a", "b")
		change(0)
		fixture.run(40, 5, "a", "b")
		assert.Equal(t, Trouble, fixture.Snapshot().State.Level)
		assert.Equal(t, 2, strings.Count(fixture.log.String(), "\n"), "a second denial within five minutes has no line yet")
		fixture.run(300, 5, "a", "b")
		assert.Equal(t, 3, strings.Count(fixture.log.String(), "\n"))
	})
}

func TestOutageIsNamedAsTheCauseOfDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(100))
		fixture.run(120, 5, "a", "b")
		fixture.redis.Up = false
		fixture.load(limitsOf(1)) // as the fallback does
		fixture.run(40, 5, "a", "b")
		state := fixture.Snapshot().State
		assert.Contains(t, state.Headline, " UTC: Redis is down · ")
		details := fmt.Sprint(state.Details)
		assert.Contains(t, details, "so rls is deciding here at half of each limit, or as its rule says")
		assert.Contains(t, details+fixture.log.String(), "Write shadow_mode: true into the most denied rule")
		assert.NotContains(t, details+fixture.log.String(), "rls limits off", "the command needs Redis")

		fixture.redis.Up = true
		fixture.run(10, 5, "a", "b")
		state = fixture.Snapshot().State
		assert.Contains(t, state.Headline, " UTC: Redis was down")
		assert.Contains(t, fmt.Sprint(state.Details), "rls limits off")
	})
}

func TestDenialsOfAnOutageAreNotBlamedOnTheCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(10))
		fixture.run(120, 10, "a", "b", "c")
		fixture.redis.Up = false
		for range 60 {
			fixture.run(1, 1, "a")
			for range 100 {
				fixture.call("tenant=hot")
			}
		}
		assert.Contains(t, fixture.Snapshot().State.Headline, ": Redis is down")
	})
}

func TestMassDenialSaysHowToUndoTheLastChange(t *testing.T) {
	for kind, want := range map[timeline.Kind]string{
		timeline.Reload:   "put the old limits back where they come from; rls limits rollback undoes only overrides",
		timeline.Override: "rls limits rollback undoes it",
	} {
		synctest.Test(t, func(t *testing.T) {
			fixture := newFixture(t, nil)
			fixture.load(limitsOf(100))
			fixture.run(120, 5, "a", "b")
			fixture.load(limitsOf(0))
			fixture.events.Add(timeline.Event{Kind: kind, Text: "limits changed", Attrs: make([]timeline.Attr, 3)})
			fixture.run(20, 5, "a", "b")
			assert.Contains(t, fmt.Sprint(fixture.Snapshot().State.Details), "If this change is the cause: "+want)
		})
	}
}

func TestDenialsOfAFloodAreNoMassDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(10))
		fixture.run(120, 5, "a", "b")
		fixture.events.Add(timeline.Event{Kind: timeline.Override, Text: "override set: shop|tenant=other"})
		for range 60 {
			fixture.run(1, 5, "a", "b")
			for range 100 {
				fixture.call("tenant=hot")
			}
		}
		state := fixture.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "as many calls admitted as before")
		assert.NotContains(t, fmt.Sprint(state.Details), "The limits changed", "a flood has another cause")
	})
}

func TestFloodSoonAfterTheStartIsNoMassDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(10))
		fixture.run(45, 5, "a", "b")
		for range 30 {
			for range 400 {
				fixture.call("tenant=hot")
			}
			fixture.run(1, 5, "a", "b")
		}
		assert.Contains(t, fixture.Snapshot().State.Headline, "as many calls admitted as before")
	})
}

func TestFloodIsNoMassDenialIfAnotherClientStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(10))
		fixture.run(120, 10, "a", "b", "c")
		for range 60 { // b and c have stopped
			fixture.run(1, 1, "a")
			for range 100 {
				fixture.call("tenant=hot")
			}
		}
		state := fixture.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "no limit changed, some callers send more, and others less")
	})
}

func TestFewDenialsAndShadowModeRaiseNoAlarm(t *testing.T) {
	for name, test := range map[string]struct {
		limits    string
		perSecond int
	}{
		"less than a call a second": {limitsOf(0), 0},
		"shadow mode":               {"domain: shop\ndescriptors:\n  - {key: tenant, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}\n", 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fixture := newFixture(t, nil)
				fixture.load(test.limits)
				fixture.run(120, test.perSecond, "a")
				fixture.call("tenant=a")
				fixture.tick(10)
				assert.Equal(t, Well, fixture.Snapshot().State.Level)
			})
		})
	}
}

func TestMassDenialFromTheStartIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.load(limitsOf(0))
		fixture.run(40, 5, "a")
		state := fixture.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "100 % of the calls denied")
	})
}

func TestCallsThatCallersGaveUpAreTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 40 {
			fixture.options.Recorder.CallGivenUp()
			fixture.options.Recorder.CallGivenUp()
			fixture.run(1, 50, "a", "b", "c") // answered calls must not dilute the signal
		}
		snapshot := fixture.Snapshot()
		assert.InDelta(t, 2, float64(snapshot.Figures.GivenUp.Now), 0.01)
		assert.Equal(t, Trouble, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Headline, "Callers gave up 2.0 calls a second")
	})
}

func TestRefusedCallsAreAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		refusingService := service.New(service.Options{
			Limits: fixture.store, Observers: []service.Observer{fixture.options.Recorder},
			AdmitCaller: func(context.Context, time.Time) error { return status.Error(codes.ResourceExhausted, "too many calls") },
		})
		busyCaller := callerContext("10.0.0.1", nil)
		for range 40 {
			for range 3 {
				_, err := refusingService.ShouldRateLimit(busyCaller, request("tenant=acme"))
				require.Error(t, err)
			}
			fixture.tick(1)
		}
		snapshot := fixture.Snapshot()
		assert.InDelta(t, 3, float64(snapshot.Figures.Refused.Now), 0.01)
		assert.Zero(t, snapshot.Figures.Errors.Now)
		assert.Equal(t, Warning, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Headline, "Refusing 3.0 calls a second of callers that send too many")
		require.Len(t, snapshot.Keys.Callers, 1)
		assert.InDelta(t, 3, float64(snapshot.Keys.Callers[0].DeniedRate), 0.01, "a refused call is a denied call of its caller")
		assert.Empty(t, snapshot.Keys.Hottest, "no limit counted the calls")
	})
}

func TestRefusedConnectionsAreAWarningForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.options.Recorder.ConnectionRefused("MAX_PEER_CONNECTIONS")
		fixture.tick(1)
		state := fixture.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "Refusing connections at MAX_PEER_CONNECTIONS")
		fixture.tick(60)
		assert.Equal(t, Well, fixture.Snapshot().State.Level)
	})
}

func TestStallsOfRedisAreAWarningForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 60 {
			for range 10 {
				fixture.options.Recorder.RedisAnswered(300 * time.Microsecond)
			}
			fixture.tick(1)
		}
		assert.Equal(t, Well, fixture.Snapshot().State.Level)
		for range 4 {
			fixture.options.Recorder.RedisAnswered(63 * time.Millisecond)
			fixture.options.Recorder.RedisStalled()
		}
		fixture.tick(5)
		snapshot := fixture.Snapshot()
		assert.Equal(t, Warning, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Headline, "Redis stands still at times, the network doesn't; last 0s ago")
		assert.Contains(t, fmt.Sprint(snapshot.State.Details), "Redis kept 4 batches waiting, the last 0s ago")
		assert.InEpsilon(t, 0.063, float64(snapshot.Figures.RedisMax.Max()), 0.13)
		fixture.tick(50)
		assert.Equal(t, Warning, fixture.Snapshot().State.Level)
		fixture.tick(15)
		snapshot = fixture.Snapshot()
		assert.Equal(t, Well, snapshot.State.Level, "the last stall was more than a minute ago")
		assert.NotContains(t, snapshot.State.Headline, "stands still")
		assert.Contains(t, fmt.Sprint(snapshot.State.Details), "Redis kept 4 batches waiting")
		fixture.tick(301)
		assert.NotContains(t, fmt.Sprint(fixture.Snapshot().State.Details), "batches waiting")
	})
}

func TestLostCountersAreAWarningForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.tick(1)
		assert.Equal(t, Well, fixture.Snapshot().State.Level)
		fixture.options.Recorder.RedisLostCounters()
		lossTime := time.Now().UTC().Format("15:04 UTC")
		fixture.tick(540)
		snapshot := fixture.Snapshot()
		assert.Equal(t, Warning, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Headline, "Redis lost counters at "+lossTime)
		assert.Contains(t, fmt.Sprint(snapshot.State.Details), "rls limits show --changes lists the overrides in force")
		fixture.tick(61)
		assert.Equal(t, Well, fixture.Snapshot().State.Level)
	})
}
