package explain_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/quota"
)

var updateGolden = flag.Bool("update", false, "write the expected texts")

// start is the time of all reports: 37.5 seconds after the start of a minute.
var start = time.Date(2026, 11, 20, 10, 0, 37, 500_000_000, time.UTC)

// replica is a service and its Explainer. Its clock always shows start.
type replica struct {
	testing.TB
	service   *service.Service
	explainer *explain.Explainer
	counters  *brokenCounters
}

// brokenCounters is a backend.Limiter that fails with err if err is set.
type brokenCounters struct {
	backend.Limiter
	err error
}

// Take implements backend.Limiter.
func (b *brokenCounters) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if b.err == nil {
		b.Limiter.Take(ctx, now, hits, results)
		for i := range results {
			results[i].Source = backend.SourceRedis
		}
		return
	}
	for i := range results {
		results[i] = backend.Result{Err: b.err}
	}
}

// noEvents ignores the events of a fallback.
type noEvents struct{}

func (noEvents) StateChanged(fallback.StateChange)     {}
func (noEvents) BreakerChanged(fallback.BreakerChange) {}
func (noEvents) HitsServed(int)                        {}
func (noEvents) HitsReplayed(int64)                    {}
func (noEvents) BlipEnded(fallback.Outage)             {}

// newReplica returns a replica with the limits in testdata/limits.yaml and with overrides.
func newReplica(t testing.TB, overrides map[string]string) *replica {
	data, err := os.ReadFile("testdata/limits.yaml")
	require.NoError(t, err)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: data}}, limitsfile.Options{})
	require.NoError(t, err)
	var overrideTable override.Table
	overrideTable.Set(overrides)
	set, _ = overrideTable.Apply(set, start)
	for _, s := range overrideTable.States() {
		require.NoError(t, s.Problem)
	}
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))

	counters := &brokenCounters{Limiter: local.New(local.Options{})}
	fallbackLayer := fallback.New(fallback.Options{
		Primary: counters, Secondary: local.New(local.Options{}), Ratio: 1, Shards: 1,
		ShardOf: func(*backend.Hit) int { return 0 }, Probe: func(context.Context, int) error { return nil }, Observer: noEvents{},
	})
	t.Cleanup(fallbackLayer.Close)
	denyCache := denycache.New(fallbackLayer, denycache.Options{SizeBytes: 1 << 16})
	now := func() time.Time { return start }
	return &replica{
		TB: t, counters: counters,
		service: service.New(service.Options{Limits: store, Limiter: denyCache, Now: now}),
		explainer: explain.New(explain.Options{
			Limits: store, Layer: denyCache, Now: now,
			RedisKey: func(h *backend.Hit) (server, key string) {
				return "redis:6379", "v1:" + h.Limit.Tag() + ":" + string(h.Key)
			},
		}),
	}
}

// send sends a request n times.
func (r *replica) send(n int, texts ...string) {
	req, err := explain.NewRequest("shop", texts, "")
	require.NoError(r, err)
	for range n {
		_, err := r.service.ShouldRateLimit(r.Context(), req)
		require.NoError(r, err)
	}
}

// text returns the explanation of a request as text.
func (r *replica) text(domain, ownLimit string, texts ...string) string {
	req, err := explain.NewRequest(domain, texts, ownLimit)
	require.NoError(r, err)
	var b bytes.Buffer
	require.NoError(r, r.explainer.Explain(r.Context(), req).WriteText(&b))
	return b.String()
}

func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *updateGolden {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), got)
}

func TestTextExplainsTypicalRequests(t *testing.T) {
	t.Parallel()
	overrides := map[string]string{
		"shop|tenant=big": `{"factor": 2, "expires_at": "2026-11-20T12:00:00Z", "set_by": "alice", "set_at": "2026-11-20T09:00:00Z"}`,
	}
	for _, test := range []struct {
		name     string
		hits     int // the number of times that the request is sent before it is explained
		domain   string
		ownLimit string
		request  []string
	}{
		{name: "any_value", hits: 2, request: []string{"tenant=bob"}},
		{name: "several_limits_and_descriptors", hits: 6, request: []string{"remote_address=10.0.0.1", "tenant=bob,path=/login"}},
		{name: "exact_match_replaces", request: []string{"tenant=Acme", "tenant=bob,path=/login"}},
		{name: "first_of_two_patterns_is_unlimited", request: []string{"tenant=acme/a"}},
		{name: "override", hits: 1, request: []string{"tenant=big"}},
		{name: "limit_of_request", hits: 0, ownLimit: "7/hour", request: []string{"tenant=big"}},
		{name: "shadow_mode", hits: 3, request: []string{"trial=x"}},
		{name: "quota_mode", hits: 3, request: []string{"quota=x"}},
		{name: "limit_of_zero", request: []string{"closed=x"}},
		{name: "limits_off", request: []string{"quiet=x"}},
		{name: "unknown_domain", domain: "shopp", request: []string{"tenant=bob"}},
		{name: "unknown_key", request: []string{"tenent=bob"}},
		{name: "other_case", request: []string{"tenant=bob,path=/Login"}},
		{name: "extra_space", request: []string{"tenant=bob,path=/login "}},
		{name: "part_of_pattern", request: []string{"tenant=acme"}},
		{name: "rule_is_longer", request: []string{"path=/login"}},
		{name: "rule_is_shorter", request: []string{"trial=x,path=/"}},
		{name: "other_order", request: []string{"path=/login,tenant=bob"}},
		{name: "no_way_back", request: []string{"plan=gold,user=u"}},
		{name: "nothing_near", request: []string{"country=fr,city=paris"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			replica := newReplica(t, overrides)
			replica.send(test.hits, test.request...)
			if test.domain == "" {
				test.domain = "shop"
			}
			checkGolden(t, test.name, replica.text(test.domain, test.ownLimit, test.request...))
		})
	}
}

func TestSwitchIsNotToldAsAnOverride(t *testing.T) {
	t.Parallel()
	text := newReplica(t, map[string]string{override.Field(override.KindSwitch, "shop|tenant"): "{}"}).text("shop", "", "tenant=bob")
	assert.Contains(t, text, "switched off: shop|tenant, without an end")
	assert.NotContains(t, text, "from the override")
}

func TestTextSaysThatRedisFails(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	replica.counters.err = backend.ErrUnavailable
	replica.send(2, "tenant=bob", "quota=x")
	checkGolden(t, "without_redis", replica.text("shop", "", "tenant=bob", "quota=x"))
}

func TestTextSaysThatNoServiceWasAsked(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	offlineExplainer := explain.New(explain.Options{Limits: replica.limits(), Now: func() time.Time { return start }})
	replica.explainer = offlineExplainer
	checkGolden(t, "offline", replica.text("shop", "", "tenant=bob,path=/login"))
}

// limits returns the limits in testdata/limits.yaml.
func (r *replica) limits() *descriptors.Store {
	data, err := os.ReadFile("testdata/limits.yaml")
	require.NoError(r, err)
	return compileLimits(r, string(data))
}

func TestTextSaysThatNoLimitsAreLoaded(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	replica.explainer = explain.New(explain.Options{Limits: new(descriptors.Store)})
	assert.Contains(t, replica.text("shop", "", "tenant=bob"), "next answer: error: no rate limit configuration loaded")
}

func TestTextQuotesControlCharacters(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	text := replica.text("shop", "", "tenant=\x1b[31mred,\x1b=\x00")
	assert.NotContains(t, text, "\x1b")
	assert.Contains(t, replica.text("sh\x1bop", "", "tenant=\x1b"), `"sh\x1bop"`)
}

func TestReportIsTheSameAfterJSON(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	replica.send(5, "tenant=bob,path=/login", "trial=x")
	req, err := explain.NewRequest("shop", []string{"tenant=bob,path=/login", "trial=x", "tenant=acme"}, "")
	require.NoError(t, err)
	want := replica.explainer.Explain(t.Context(), req)
	text, err := json.Marshal(want)
	require.NoError(t, err)
	got := &explain.Report{}
	require.NoError(t, json.Unmarshal(text, got))
	var wantText, gotText bytes.Buffer
	require.NoError(t, want.WriteText(&wantText))
	require.NoError(t, got.WriteText(&gotText))
	assert.Equal(t, wantText.String(), gotText.String())
	assert.Equal(t, explain.Counted, got.Descriptors[0].Limits[0].State)
	assert.Equal(t, limit.FixedWindow.String(), got.Descriptors[0].Limits[0].Algorithm)
}

func TestRefundLeavesAtMostTheCapacity(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	req, err := explain.NewRequest("shop", []string{"tenant=bob"}, "")
	require.NoError(t, err)
	req.Descriptors[0].IsNegativeHits = true
	report := replica.explainer.Explain(t.Context(), req)
	answer, err := replica.service.ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	l := report.Descriptors[0].Limits[0]
	assert.Equal(t, l.Counter.Capacity, l.NextHit.Remaining)
	assert.EqualValues(t, answer.Statuses[0].LimitRemaining, l.NextHit.Remaining)
}

func TestTextNamesTheConditionThatIsNotTested(t *testing.T) {
	t.Parallel()
	replica := newReplica(t, nil)
	replica.explainer = explain.New(explain.Options{Now: func() time.Time { return start }, Limits: compileLimits(t, `domain: shop
descriptors:
- {key: agent, regex: '.*a.{500}', rate_limit: {unit: day, requests_per_unit: 1}}
- {key: agent, rate_limit: {unit: day, requests_per_unit: 9}}
`)})
	text := replica.text("shop", "", "agent="+strings.Repeat("a", 5000))
	assert.Contains(t, text, "OVER_LIMIT by shop > a condition that was not tested")
	assert.Contains(t, text, "not tested, because the test takes too many steps for the length of the values")
	assert.Contains(t, text, "same key, any value, but a condition was not tested, so the request is denied")
	assert.NotContains(t, text, "of the request")
}

func TestRejectedRequestCountsNothing(t *testing.T) {
	t.Parallel()
	store := compileLimits(t, `{domain: d, descriptors: [
		{key: kept, refunds: false, rate_limits: [{unit: day, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1, enabled: false}]},
		{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: b, rate_limit: {unlimited: true}}]}`)
	explainer := explain.New(explain.Options{Limits: store, Layer: backend.Counters{Limiter: local.New(local.Options{})}})
	refund, err := explain.NewRequest("d", []string{"a=x", "kept=x", "b=x"}, "")
	require.NoError(t, err)
	refund.Descriptors[1].IsNegativeHits = true
	badLimit, err := explain.NewRequest("d", []string{"a=x", "kept=x", "b=x"}, "")
	require.NoError(t, err)
	badLimit.Descriptors[0].Limit = &ratelimitv3.RateLimitDescriptor_RateLimitOverride{}
	for name, test := range map[string]struct {
		req    *rlsv3.RateLimitRequest
		states []explain.State
	}{
		"the rule refuses the refund":         {refund, []explain.State{explain.Rejected, explain.Rejected, explain.Off, explain.Unlimited}},
		"the limit of the request is invalid": {badLimit, []explain.State{explain.Rejected, explain.Off, explain.Rejected}},
	} {
		report := explainer.Explain(t.Context(), test.req)
		assert.NotEmpty(t, report.Error, name)
		var states []explain.State
		for _, d := range report.Descriptors {
			assert.Empty(t, d.Code)
			for _, l := range d.Limits {
				states = append(states, l.State)
			}
		}
		assert.Equal(t, test.states, states, name)
		assert.Equal(t, "not counted: the service rejects the request", report.Descriptors[1].Summary)
	}
}

func TestReportShowsTheSharesOfEnvoys(t *testing.T) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte("domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 9}}]")}}, limitsfile.Options{})
	require.NoError(t, err)
	var store descriptors.Store
	store.Set(descriptors.Compile(set))
	explainer := explain.New(explain.Options{Limits: &store, Shares: func(counter string) *quota.CounterShares {
		return &quota.CounterShares{Counter: counter, Limit: 9, Shares: []quota.Share{{Envoy: "10.0.0.1:4711", GrantedRate: 6, EnforcedRate: 6, DemandedRate: 5, Reason: "its demand fits into the limit"}}}
	}})
	report := explainer.Explain(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}},
	}})
	var text bytes.Buffer
	require.NoError(t, report.WriteText(&text))
	assert.Contains(t, text.String(), "    shared by Envoys with quotas, beside this counter:\n      d|k=v: 9 requests a second\n        10.0.0.1:4711 asks for 5 and may admit 6: its demand fits into the limit\n")
}
