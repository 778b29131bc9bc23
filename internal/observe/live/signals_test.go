package live

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/service"
)

// run sends calls for some seconds. Each tenant sends callsPerSecond.
func (r *rig) run(seconds, callsPerSecond int, tenants ...string) {
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
		r := newRig(t, nil)
		r.load(limitsOf(100))
		r.run(120, 5, "a", "b")
		assert.Equal(t, Well, r.Snapshot().State.Level)

		r.load(limitsOf(0))
		r.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: []timeline.Attr{
			{Name: "source", Value: "file"}, {Name: "rules", Value: "1"}, {Name: "changed", Value: "shop > tenant: 100 per second → 0 per second"},
		}})
		r.run(20, 5, "a", "b")
		state := r.Snapshot().State
		assert.Equal(t, Trouble, state.Level)
		assert.Contains(t, fmt.Sprint(state.Details), "Now 0.0 calls a second are admitted, because limits deny")
		assert.Contains(t, fmt.Sprint(state.Details), "The limits changed 15s before the alarm: limits in force at ")
		assert.Contains(t, state.Headline, "Mass denial: 100 % of the calls denied since")
		assert.Contains(t, fmt.Sprint(state.Details), "changed shop > tenant: 100 per second → 0 per second")

		r.run(600, 1, "a", "b")
		assert.Equal(t, Trouble, r.Snapshot().State.Level, "the trouble lasts as long as the denials")
		r.load(limitsOf(100))
		r.run(10, 5, "a", "b")
		assert.Equal(t, Well, r.Snapshot().State.Level, "the alarm ends soon after the repair")
		r.run(60, 5, "a", "b")
		assert.Equal(t, Well, r.Snapshot().State.Level)
	})
}

func TestLogHasStartAndEndOfAMassDenialWithoutViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.load(limitsOf(100))
		r.run(120, 5, "a", "b")
		change := func(n int) {
			r.load(limitsOf(n))
			r.events.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force", Attrs: make([]timeline.Attr, 3)})
		}
		change(0)
		r.run(55, 5, "a", "b")
		require.Equal(t, 1, strings.Count(r.log.String(), "\n"), "the log has one line for the whole denial")
		assert.Contains(t, r.log.String(), `level=WARN msg="mass denial started" state="Mass denial: 100 % of the calls denied since `)
		assert.Contains(t, r.log.String(), "stop the denials with rls limits off --all")
		assert.Contains(t, r.log.String(), "rls limits rollback")

		change(100)
		r.run(10, 5, "a", "b")
		assert.Contains(t, r.log.String(), `level=INFO msg="mass denial ended" lasted=1m0s`, "since the first denials, and not since the alarm")
		r.run(40, 5, "a", "b")
		change(0)
		r.run(40, 5, "a", "b")
		assert.Equal(t, Trouble, r.Snapshot().State.Level)
		assert.Equal(t, 2, strings.Count(r.log.String(), "\n"), "a second denial within five minutes has no line yet")
		r.run(300, 5, "a", "b")
		assert.Equal(t, 3, strings.Count(r.log.String(), "\n"))
	})
}

func TestMassDenialSaysHowToUndoTheLastChange(t *testing.T) {
	for kind, want := range map[timeline.Kind]string{
		timeline.Reload:   "put the old limits back where they come from; rls limits rollback undoes only overrides",
		timeline.Override: "rls limits rollback undoes it",
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, nil)
			r.load(limitsOf(100))
			r.run(120, 5, "a", "b")
			r.load(limitsOf(0))
			r.events.Add(timeline.Event{Kind: kind, Text: "limits changed", Attrs: make([]timeline.Attr, 3)})
			r.run(20, 5, "a", "b")
			assert.Contains(t, fmt.Sprint(r.Snapshot().State.Details), "If this change is the cause: "+want)
		})
	}
}

func TestDenialsOfAFloodAreNoMassDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.load(limitsOf(10))
		r.run(120, 5, "a", "b")
		r.events.Add(timeline.Event{Kind: timeline.Override, Text: "override set: shop|tenant=other"})
		for range 60 {
			r.run(1, 5, "a", "b")
			for range 100 {
				r.call("tenant=hot")
			}
		}
		state := r.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "as many calls admitted as before")
		assert.NotContains(t, fmt.Sprint(state.Details), "The limits changed", "a flood has another cause")
	})
}

func TestFloodOfAYoungProcessIsToldFromAMassDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.load(limitsOf(10))
		r.run(45, 5, "a", "b")
		for range 30 {
			for range 400 {
				r.call("tenant=hot")
			}
			r.run(1, 5, "a", "b")
		}
		assert.Contains(t, r.Snapshot().State.Headline, "as many calls admitted as before")
	})
}

func TestFloodIsNoMassDenialIfAnotherClientStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.load(limitsOf(10))
		r.run(120, 10, "a", "b", "c")
		for range 60 { // b and c have stopped
			r.run(1, 1, "a")
			for range 100 {
				r.call("tenant=hot")
			}
		}
		state := r.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "no limit changed, some callers send more, and others less")
	})
}

func TestFewDenialsAndShadowModeAreWell(t *testing.T) {
	for name, c := range map[string]struct {
		limits    string
		perSecond int
	}{
		"less than a call a second": {limitsOf(0), 0},
		"shadow mode":               {"domain: shop\ndescriptors:\n  - {key: tenant, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0}}\n", 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, nil)
				r.load(c.limits)
				r.run(120, c.perSecond, "a")
				r.call("tenant=a")
				r.tick(10)
				assert.Equal(t, Well, r.Snapshot().State.Level)
			})
		})
	}
}

func TestMostCallsDeniedFromTheStartIsNotWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.load(limitsOf(0))
		r.run(40, 5, "a")
		state := r.Snapshot().State
		assert.Equal(t, Warning, state.Level)
		assert.Contains(t, state.Headline, "100 % of the calls denied")
	})
}

func TestCallsThatCallersGaveUpAreTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for range 40 {
			r.options.Recorder.CallGivenUp()
			r.options.Recorder.CallGivenUp()
			r.run(1, 50, "a", "b", "c") // answered calls must not dilute the signal
		}
		s := r.Snapshot()
		assert.InDelta(t, 2, float64(s.Figures.GivenUp.Now), 0.01)
		assert.Equal(t, Trouble, s.State.Level)
		assert.Contains(t, s.State.Headline, "Callers gave up 2.0 calls a second")
	})
}

func TestRefusedCallsAreAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		refusing := service.New(service.Options{
			Limits: r.store, Observers: []service.Observer{r.options.Recorder},
			AdmitCaller: func(context.Context, time.Time) error { return status.Error(codes.ResourceExhausted, "too many calls") },
		})
		hog := callerContext("10.0.0.1", nil)
		for range 40 {
			for range 3 {
				_, err := refusing.ShouldRateLimit(hog, request("tenant=acme"))
				require.Error(t, err)
			}
			r.tick(1)
		}
		s := r.Snapshot()
		assert.InDelta(t, 3, float64(s.Figures.Refused.Now), 0.01)
		assert.Zero(t, s.Figures.Errors.Now)
		assert.Equal(t, Warning, s.State.Level)
		assert.Contains(t, s.State.Headline, "Refusing 3.0 calls a second of callers that send too many")
		require.Len(t, s.Keys.Callers, 1)
		assert.InDelta(t, 3, float64(s.Keys.Callers[0].DeniedRate), 0.01, "a refused call is a denied call of its caller")
		assert.Empty(t, s.Keys.Hottest, "no limit counted the calls")
	})
}

func TestStallsOfRedisAreAWarningForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		for range 60 {
			for range 10 {
				r.options.Recorder.RedisAnswered(300 * time.Microsecond)
			}
			r.tick(1)
		}
		assert.Equal(t, Well, r.Snapshot().State.Level)
		for range 4 {
			r.options.Recorder.RedisAnswered(63 * time.Millisecond)
			r.options.Recorder.RedisStalled()
		}
		r.tick(5)
		s := r.Snapshot()
		assert.Equal(t, Warning, s.State.Level)
		assert.Contains(t, s.State.Headline, "Redis stands still at times, the network doesn't; last at "+time.Now().UTC().Format("15:04 UTC"))
		assert.Contains(t, fmt.Sprint(s.State.Details), "Redis kept 4 batches waiting, the last at ")
		assert.InEpsilon(t, 0.063, float64(s.Figures.RedisMax.Max()), 0.13)
		r.tick(50)
		assert.Equal(t, Warning, r.Snapshot().State.Level)
		r.tick(15)
		s = r.Snapshot()
		assert.Equal(t, Well, s.State.Level, "the last stall was more than a minute ago")
		assert.NotContains(t, s.State.Headline, "stands still")
		assert.Contains(t, fmt.Sprint(s.State.Details), "Redis kept 4 batches waiting")
		r.tick(301)
		assert.NotContains(t, fmt.Sprint(r.Snapshot().State.Details), "batches waiting")
	})
}

func TestLostCountersAreAWarningForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.tick(1)
		assert.Equal(t, Well, r.Snapshot().State.Level)
		r.options.Recorder.RedisLostCounters()
		lossTime := time.Now().UTC().Format("15:04 UTC")
		r.tick(540)
		s := r.Snapshot()
		assert.Equal(t, Warning, s.State.Level)
		assert.Contains(t, s.State.Headline, "Redis lost counters at "+lossTime)
		assert.Contains(t, fmt.Sprint(s.State.Details), "rls limits show --changes lists the overrides in force")
		r.tick(61)
		assert.Equal(t, Well, r.Snapshot().State.Level)
	})
}
