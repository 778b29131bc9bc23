package admin_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/limit"
)

// setClock sets the clock to 10 s after the start of a day.
func (r *testAPI) setClock() { r.now = time.Date(2030, 1, 31, 0, 0, 10, 0, time.UTC) }

func TestGetCounterReturnsSpentHits(t *testing.T) {
	perMinute := func(spent, remaining int64, isOver bool) admin.Limit {
		return admin.Limit{Limit: "100 per minute", Tag: "fw60", Scope: "region", Capacity: 100, Spent: spent, Remaining: remaining, ResetSeconds: 50, Over: isOver}
	}
	for name, test := range map[string]struct {
		target string
		spent  int64
		want   admin.Counter
	}{
		"nothing spent": {acme, 0, admin.Counter{
			Path: "shop > tenant", Key: acme, Limits: []admin.Limit{perMinute(0, 100, false)},
		}},
		"some spent": {acme, 60, admin.Counter{
			Path: "shop > tenant", Key: acme, Limits: []admin.Limit{perMinute(60, 40, false)},
		}},
		"all spent": {acme, 100, admin.Counter{
			Path: "shop > tenant", Key: acme, Limits: []admin.Limit{perMinute(100, 0, true)},
		}},
		"more than all spent": {acme, 130, admin.Counter{
			Path: "shop > tenant", Key: acme, Limits: []admin.Limit{perMinute(130, 0, true)},
		}},
		"several limits": {"shop|ip=10.0.0.1", 4, admin.Counter{
			Path: "shop > ip", Key: "shop|ip=10.0.0.1", Limits: []admin.Limit{
				{Limit: "5 per second", Name: "ip-second", Tag: "fw1", Scope: "region", Capacity: 5, Spent: 4, Remaining: 1, ResetSeconds: 1},
				{Limit: "50 per hour, token_bucket, burst 80", Tag: "tb3600", Scope: "region", Capacity: 80, Spent: 4, Remaining: 76, ResetSeconds: 288},
				{Limit: "500 per day, sliding_window, per instance", Tag: "sw86400i", Scope: "instance", Capacity: 500, Spent: 4, Remaining: 496, ResetSeconds: 2*86_400 - 10},
			},
		}},
		"shared threshold": {"shop|tenant=acme|path=/api/orders", 20, admin.Counter{
			Path: "shop > tenant > path=/api/*", Key: "shop|tenant=acme|path=/api/*", Limits: []admin.Limit{
				{Limit: "20 per hour, sliding_log", Tag: "sl3600", Scope: "region", Capacity: 20, Spent: 20, ResetSeconds: 3600, Over: true},
			},
		}},
		"limit of 0": {"shop|trial=x", 0, admin.Counter{
			Path: "shop > trial", Key: "shop|trial=x", ShadowMode: true,
			Limits: []admin.Limit{{Limit: "0 per minute", Tag: "fw60", Scope: "region", ResetSeconds: 50, Over: true}},
		}},
		"escaped characters": {"shop|tenant=a%7Cb%20%25*", 0, admin.Counter{
			Path: "shop > tenant", Key: "shop|tenant=a%7Cb%20%25%2A", Limits: []admin.Limit{perMinute(0, 100, false)},
		}},
		"no value": {"shop|tenant", 0, admin.Counter{
			Path: "shop > tenant", Key: "shop|tenant=", Limits: []admin.Limit{perMinute(0, 100, false)},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t)
			api.setClock()
			if test.spent > 0 {
				api.spend(test.target, test.spent)
			}
			test.want.Target = test.target
			for range 2 {
				var got admin.Counter
				require.Equal(t, http.StatusOK, api.call("GET", "counters", test.target, "", &got))
				assert.Equal(t, test.want, got, "reading charges nothing")
			}
		})
	}
	t.Run("unlimited", func(t *testing.T) {
		api := newTestAPI(t)
		var got admin.Counter
		require.Equal(t, http.StatusOK, api.call("GET", "counters", "shop|free=x", "", &got))
		assert.Equal(t, []admin.Limit{{Limit: "unlimited", Unlimited: true}}, got.Limits)
		assert.Equal(t, http.StatusOK, api.call("DELETE", "counters", "shop|free=x", "", nil))
	})
	t.Run("with an override", func(t *testing.T) {
		api := newTestAPI(t)
		require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"factor": 2}`, nil))
		var got admin.Counter
		require.Equal(t, http.StatusOK, api.call("GET", "counters", acme, "", &got))
		assert.Equal(t, "shop > tenant=acme", got.Path)
		assert.EqualValues(t, 200, got.Limits[0].Capacity)
	})
}

func TestUnknownCounterIsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		code   int
		want   string
	}{
		"no target":           {"", http.StatusBadRequest, "want DOMAIN|KEY=VALUE"},
		"bad encoding":        {"shop|tenant=%zz", http.StatusBadRequest, "%25"},
		"unknown domain":      {"bank|tenant=acme", http.StatusNotFound, `unknown domain "bank"; loaded domains: "shop"`},
		"unknown key":         {"shop|user=x", http.StatusNotFound, `no descriptor with a limit matches requests with "shop|user=x"`},
		"too deep":            {"shop|tenant=acme|path=/x", http.StatusNotFound, "no descriptor with a limit matches"},
		"rule without limit":  {"shop|quiet=x", http.StatusNotFound, "no descriptor with a limit matches"},
		"keys in other order": {"shop|path=/api/x|tenant=acme", http.StatusNotFound, "in their order"},
	} {
		for _, method := range []string{"GET", "DELETE"} {
			t.Run(name+" "+method, func(t *testing.T) {
				api := newTestAPI(t)
				code, text := api.problems(method, "counters", test.target, "")
				assert.Equal(t, test.code, code)
				assert.Contains(t, text, test.want)
				assert.Empty(t, api.audits())
			})
		}
	}
	t.Run("limits switched off", func(t *testing.T) {
		api := newTestAPI(t)
		require.Equal(t, http.StatusOK, api.call("PUT", "switches", "shop", `{"reason": "incident"}`, nil))
		code, text := api.problems("DELETE", "counters", acme, "")
		assert.Equal(t, http.StatusNotFound, code)
		assert.Equal(t, `"shop|tenant=acme" has no limits now: shop is off by ops, reason "incident"; end the switch (rls limits on), or reset with --prefix`, text)
	})
	t.Run("no limits loaded", func(t *testing.T) {
		api := newTestAPI(t, func(o *admin.Options) { o.Counters.Limits = new(descriptors.Store) })
		code, text := api.problems("GET", "counters", acme, "")
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, "no limits are loaded", text)
	})
}

func TestResetNeedsOneValueOfEachKey(t *testing.T) {
	api := newTestAPI(t)
	api.setClock()
	api.spend("shop|tenant", 3)
	api.spend(acme, 3)
	code, text := api.problems("DELETE", "counters", "shop|tenant", "")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, text, "got a key without a value; a reset is for one value of each key, want shop|tenant= for the empty value")
	require.Equal(t, http.StatusOK, api.call("DELETE", "counters", "shop|tenant=", "", nil))
	for target, spent := range map[string]int64{"shop|tenant=": 0, acme: 3} {
		var got admin.Counter
		require.Equal(t, http.StatusOK, api.call("GET", "counters", target, "", &got))
		assert.Equal(t, spent, got.Limits[0].Spent, target)
	}
}

func TestResetDropsAllCountersOfTarget(t *testing.T) {
	var publishedResets []string
	api := newTestAPI(t, func(o *admin.Options) {
		o.Counters.PublishReset = func(_ context.Context, target string) error {
			publishedResets = append(publishedResets, target)
			return nil
		}
	})
	api.setClock()
	const ip = "shop|ip=10.0.0.1"
	api.spend(ip, 5)
	api.spend("shop|ip=10.0.0.2", 5)
	var got admin.Reset
	require.Equal(t, http.StatusOK, api.call("DELETE", "counters", ip, "", &got))
	for i, capacity := range []int64{5, 80, 500} {
		assert.EqualValues(t, 5, got.LimitsBefore[i].Spent)
		assert.Zero(t, got.Limits[i].Spent)
		assert.Equal(t, capacity, got.Limits[i].Remaining)
	}
	assert.True(t, got.LimitsBefore[0].Over)
	assert.False(t, got.Limits[0].Over)
	assert.True(t, got.Published)
	assert.Equal(t, "limits per instance were reset on this replica only", got.Note)
	assert.Equal(t, []string{ip}, publishedResets)

	var laterCounter admin.Counter
	require.Equal(t, http.StatusOK, api.call("GET", "counters", ip, "", &laterCounter))
	assert.Equal(t, got.Limits, laterCounter.Limits)
	require.Equal(t, http.StatusOK, api.call("GET", "counters", "shop|ip=10.0.0.2", "", &laterCounter))
	assert.EqualValues(t, 5, laterCounter.Limits[0].Spent, "other counters keep their values")

	lines := api.audits()
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], `action=reset by=ops from=192.0.2.1:1234 target="shop|ip=10.0.0.1" path="shop > ip" before="5 spent of 5 per second; 5 spent of 50 per hour, token_bucket, burst 80; 5 spent of 500 per day, sliding_window, per instance" after="0 spent of 5 per second; `)
}

func TestResetReportsIfNotPublished(t *testing.T) {
	for name, publish := range map[string]func(context.Context, string) error{
		"no publisher": nil,
		"Redis down":   func(context.Context, string) error { return errors.New("gone") },
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t, func(o *admin.Options) { o.Counters.PublishReset = publish })
			api.spend(acme, 5)
			var got admin.Reset
			require.Equal(t, http.StatusOK, api.call("DELETE", "counters", acme, "", &got))
			assert.False(t, got.Published)
			assert.Equal(t, "other replicas were not notified; they may deny until their cached denials end", got.Note)
			assert.Len(t, api.audits(), 1)
		})
	}
}

func TestResetReportsCountersPerReplica(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.Counters.PerReplica = true })
	var got admin.Reset
	require.Equal(t, http.StatusOK, api.call("DELETE", "counters", acme, "", &got))
	assert.False(t, got.Published)
	assert.Equal(t, "each replica has its own counters; only the counters of this replica were reset", got.Note)
}

// A reset drops only the counter of the algorithm in force. The counter of another algorithm stays.
func TestResetDropsCounterOfAlgorithmInForce(t *testing.T) {
	for _, oldAlgorithm := range limit.Algorithms() {
		for _, newAlgorithm := range limit.Algorithms() {
			t.Run(oldAlgorithm.String()+" to "+newAlgorithm.String(), func(t *testing.T) {
				api := newTestAPI(t)
				put := func(a limit.Algorithm) {
					window := `"unit": "hour"`
					if a.HasHolds() {
						window = `"hold": "1h"`
					}
					require.Equal(t, http.StatusOK, api.call("PUT", "overrides", acme, `{"requests_per_unit": 50, `+window+`, "algorithm": "`+a.String()+`"}`, nil))
				}
				put(oldAlgorithm)
				api.now = time.Now()
				api.spend(acme, 40)
				put(newAlgorithm)
				api.now = time.Now()
				api.spend(acme, 5)

				var reset admin.Reset
				require.Equal(t, http.StatusOK, api.call("DELETE", "counters", acme, "", &reset))
				spent, spentUnderOld := 5, 40
				if oldAlgorithm == newAlgorithm {
					spent, spentUnderOld = 45, 0
				}
				assert.EqualValues(t, spent, reset.LimitsBefore[0].Spent)
				assert.Zero(t, reset.Limits[0].Spent)
				put(oldAlgorithm)
				var got admin.Counter
				require.Equal(t, http.StatusOK, api.call("GET", "counters", acme, "", &got))
				assert.EqualValues(t, spentUnderOld, got.Limits[0].Spent)
			})
		}
	}
}

func TestResetInvalidatesCachedDenial(t *testing.T) {
	counters := local.New(local.Options{})
	denyCache := denycache.New(backend.Counters{Limiter: counters}, denycache.Options{})
	api := newTestAPI(t, func(o *admin.Options) { o.Counters.Layer = denyCache })
	api.setClock()
	api.counters = denyCache
	api.spend(acme, 100)
	api.spend(acme, 1)
	isDenied := func() bool {
		rule := api.overrides.Limits.Load().Domain("shop").Match(parseTarget(t, acme).Entries)
		results := make([]backend.Result, 1)
		denyCache.Take(t.Context(), api.now, []backend.Hit{{Key: []byte(acme), Limit: rule.Limits[0].Limit, N: 1}}, results)
		return !results[0].Allowed
	}
	require.True(t, isDenied())
	require.Equal(t, http.StatusOK, api.call("DELETE", "counters", acme, "", nil))
	assert.False(t, isDenied())
}

func parseTarget(t *testing.T, text string) descriptors.Target {
	parsedTarget, err := descriptors.ParseTarget(text)
	require.NoError(t, err)
	return parsedTarget
}

// noEvents is an Observer of a fallback without outages.
type noEvents struct{ fallback.Observer }

func (noEvents) HitsServed(int)            {}
func (noEvents) BlipEnded(fallback.Outage) {}

// splitLayer is a Layer that peeks in another Layer.
type splitLayer struct {
	backend.Layer
	peekLayer backend.Layer
}

func (l splitLayer) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	l.peekLayer.Peek(ctx, now, hits, peeks)
}

func TestCountersAreReadButNotResetWhileBackendIsDown(t *testing.T) {
	primary := backendtest.NewFlaky(local.New(local.Options{}))
	fallbackLayer := fallback.New(fallback.Options{
		Primary: primary, Secondary: local.New(local.Options{}), Ratio: 0.5, Observer: noEvents{},
		Shards: 1, ShardOf: func(*backend.Hit) int { return 0 },
	})
	defer fallbackLayer.Close()
	for name, test := range map[string]struct {
		peekLayer backend.Layer
		getCode   int
	}{
		"without fallback":         {backend.Counters{Limiter: primary}, http.StatusServiceUnavailable},
		"with fallback":            {fallbackLayer, http.StatusOK},
		"down only after the read": {backend.Counters{Limiter: local.New(local.Options{})}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			primary.SetError(backend.ErrUnavailable)
			api := newTestAPI(t, func(o *admin.Options) { o.Counters.Layer = splitLayer{fallbackLayer, test.peekLayer} })
			var got admin.Counter
			require.Equal(t, test.getCode, api.call("GET", "counters", acme, "", &got))
			if test.peekLayer == fallbackLayer {
				assert.True(t, got.Limits[0].Degraded)
				assert.EqualValues(t, 50, got.Limits[0].Remaining)
				assert.Zero(t, got.Limits[0].Capacity)
				assert.Zero(t, got.Limits[0].Spent)
			}
			code, text := api.problems("DELETE", "counters", acme, "")
			assert.Equal(t, http.StatusServiceUnavailable, code)
			assert.Regexp(t, "^counter not (known to be )?reset: ", text)
			if name == "down only after the read" {
				require.Len(t, api.audits(), 1, "some counters may be reset")
				assert.Contains(t, api.audits()[0], "outcome=unknown")
			} else {
				assert.Empty(t, api.audits())
			}
		})
	}
	t.Run("the reset without fallback", func(t *testing.T) {
		api := newTestAPI(t, func(o *admin.Options) {
			o.Counters.Layer = splitLayer{backend.Counters{Limiter: primary}, o.Counters.Layer}
		})
		code, text := api.problems("DELETE", "counters", acme, "")
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, "counter not known to be reset: 100 per minute ("+backend.ErrUnavailable.Error()+")", text)
	})
}

// partlyDownLayer decides the second hit of each call without Redis.
type partlyDownLayer struct{ backend.Layer }

func (d partlyDownLayer) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	d.Layer.Take(ctx, now, hits[:1], results[:1])
	d.Layer.Take(ctx, now, hits[2:], results[2:])
	results[1] = backend.Result{Source: backend.SourceFallback}
}

func TestFailedResetSaysWhichLimitsAreReset(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.Counters.Layer = partlyDownLayer{o.Counters.Layer} })
	const ip = "shop|ip=10.0.0.1"
	api.spend(ip, 4)
	code, text := api.problems("DELETE", "counters", ip, "")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Equal(t, "counter reset in part: 5 per second and 500 per day, sliding_window, per instance; "+
		"not known to be reset: 50 per hour, token_bucket, burst 80 (the backend is down)", text)
	var c admin.Counter
	require.Equal(t, http.StatusOK, api.call("GET", "counters", ip, "", &c))
	assert.EqualValues(t, []int64{0, 4, 0}, []int64{c.Limits[0].Spent, c.Limits[1].Spent, c.Limits[2].Spent})
}
