package metrics

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// ruleFixture is a service whose rules are counted.
type ruleFixture struct {
	*Metrics
	t       testing.TB
	ctx     context.Context // the context of all calls
	store   *descriptors.Store
	service *service.Service
}

func newRuleFixture(t testing.TB, limits string, l backend.Limiter, o RuleOptions, change ...func(*service.Options)) *ruleFixture {
	metrics := New()
	o.Log, o.MaxSeries = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(o.MaxSeries, 1000)
	f := &ruleFixture{Metrics: metrics, t: t, ctx: context.Background(), store: &descriptors.Store{Prepare: metrics.PrepareRules}}
	serviceOptions := service.Options{Limits: f.store, Limiter: l, Observers: []service.Observer{metrics.RuleObserver(o)}}
	for _, f := range change {
		f(&serviceOptions)
	}
	f.service = service.New(serviceOptions)
	f.load(limits)
	return f
}

// load puts limits in force.
func (f *ruleFixture) load(limits string) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(f.t, err)
	f.store.Set(descriptors.Compile(set))
}

// Rules returns the counts of all limits, sorted by rule and limit.
func (f *ruleFixture) Rules() []RuleCounts {
	return slices.SortedFunc(f.Metrics.Rules(), func(a, b RuleCounts) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
}

// hit sends a request of domain d with n hits. entries are keys and values in turn.
func (f *ruleFixture) hit(n int64, entries ...string) {
	f.sendTo("d", &ratelimitv3.RateLimitDescriptor{
		Entries: entriesOf(entries...), HitsAddend: wrapperspb.UInt64(uint64(max(n, -n))), IsNegativeHits: n < 0,
	})
}

// entriesOf returns the entries with these keys and values in turn.
func entriesOf(keysAndValues ...string) []*ratelimitv3.RateLimitDescriptor_Entry {
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: keysAndValues[i], Value: keysAndValues[i+1]})
	}
	return entries
}

// sendTo sends a request of domain.
func (f *ruleFixture) sendTo(domain string, descriptors ...*ratelimitv3.RateLimitDescriptor) {
	_, _ = f.service.ShouldRateLimit(f.ctx, &rlsv3.RateLimitRequest{Domain: domain, Descriptors: descriptors})
}

const tenPerYear = `
domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: log, rate_limit: {unit: year, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: several, rate_limits: [
      {unit: hour, requests_per_unit: 10, name: n}, {unit: year, requests_per_unit: 10},
      {unit: year, requests_per_unit: 10, algorithm: token_bucket, scope: instance}]}
  - {key: unlimited, rate_limit: {unlimited: true}}
`

const hundredPerYear = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 100}}]\n"

func TestHitsAreCountedLikeTheIncumbent(t *testing.T) {
	for _, test := range []struct {
		name string
		key  string
		hits []int64
		want HitSums
	}{
		{"single hits up to the near limit", "a", []int64{7, 1}, HitSums{Total: 8, WithinLimit: 8}},
		{"hits from the near limit on", "a", []int64{7, 1, 1}, HitSums{Total: 9, WithinLimit: 9, NearLimit: 1}},
		{"hits across near limit and limit", "a", []int64{7, 1, 1, 3}, HitSums{Total: 12, WithinLimit: 9, NearLimit: 2, OverLimit: 2}},
		{"hits beyond the limit", "a", []int64{7, 1, 1, 3, 2}, HitSums{Total: 14, WithinLimit: 9, NearLimit: 2, OverLimit: 4}},
		{"many hits at once", "a", []int64{15}, HitSums{Total: 15, NearLimit: 2, OverLimit: 5}},
		{"allowed hits across the near limit", "a", []int64{10}, HitSums{Total: 10, WithinLimit: 10, NearLimit: 2}},
		{"peeks and refunds", "a", []int64{3, 0, -2}, HitSums{Total: 3, WithinLimit: 3, RefundedHits: 2}},
		{"denied hits that are not charged", "log", []int64{7, 1, 1, 3, 2}, HitSums{Total: 14, WithinLimit: 9, NearLimit: 1, OverLimit: 5}},
		{"shadow mode", "shadow", []int64{1, 4, 4}, HitSums{Total: 9, WithinLimit: 1, NearLimit: 1, OverLimit: 7, ShadowHits: 7}},
	} {
		t.Run(test.name, func(t *testing.T) {
			fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8})
			for _, n := range test.hits {
				fixture.hit(n, test.key, "x")
			}
			assert.Equal(t, []RuleCounts{{"d > " + test.key, "", test.want}}, fixture.Rules())
		})
	}
}

func TestHitsInShadowNeverExceedHitsOverTheLimit(t *testing.T) {
	const hits = 2_000_000
	var c hitCounts
	var h hitClassifier
	var goroutine sync.WaitGroup
	goroutine.Go(func() {
		for range hits {
			h.count(&c, &service.Decision{Limit: &descriptors.RateLimit{Limit: &limit.Limit{}}, Hit: &backend.Hit{N: 1, Shadow: true}})
		}
	})
	for sums := (HitSums{}); sums.OverLimit < hits; {
		sums = c.sums()
		if !assert.LessOrEqual(t, sums.ShadowHits, sums.OverLimit) {
			break
		}
	}
	goroutine.Wait()
}

func TestHitsDeniedWithoutTheBackendAreCounted(t *testing.T) {
	halfLimit, err := limit.New(limit.Spec{Requests: 5, Unit: limit.Year, ChargeDenied: true})
	require.NoError(t, err)
	fallback := func(mode limit.FailureMode, r limit.Result) backend.Result {
		result := backend.Result{Source: backend.SourceFallback, Mode: mode, Result: r}
		if mode == limit.FailLocal {
			result.Share = halfLimit
		}
		return result
	}
	for _, test := range []struct {
		name   string
		result backend.Result
		want   HitSums
	}{
		{"deny cache", backend.Result{Source: backend.SourceDenyCache}, HitSums{Total: 4, OverLimit: 4, DeniedByCache: 4}},
		{"a region that denies before the limit is spent", backend.Result{Source: backend.SourceRedis, Result: limit.Result{Remaining: 8}}, HitSums{Total: 4, OverLimit: 4}},
		{"failed call", backend.Result{Err: backend.ErrUnavailable}, HitSums{Total: 4}},
		{"fallback that allows all", fallback(limit.FailAllow, limit.Result{Allowed: true}), HitSums{Total: 4, WithinLimit: 4}},
		{"fallback that denies all", fallback(limit.FailDeny, limit.Result{}), HitSums{Total: 4, OverLimit: 4}},
		{"fallback, 4 of half the limit spent", fallback(limit.FailLocal, limit.Result{Allowed: true, Remaining: 1}), HitSums{Total: 4, WithinLimit: 4}},
		{"fallback, 5 of half the limit spent", fallback(limit.FailLocal, limit.Result{Allowed: true}), HitSums{Total: 4, WithinLimit: 4, NearLimit: 1}},
		{"fallback, 8 of half the limit spent", fallback(limit.FailLocal, limit.Result{Remaining: -3}), HitSums{Total: 4, OverLimit: 3, NearLimit: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer := backendtest.Func(func(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
				results[0] = test.result
			})
			fixture := newRuleFixture(t, tenPerYear, answer, RuleOptions{NearLimitRatio: 0.8})
			fixture.hit(4, "a", "x")
			assert.Equal(t, []RuleCounts{{"d > a", "", test.want}}, fixture.Rules())
		})
	}
}

func TestDeniedHitsAreOverIfTheyAreNotCharged(t *testing.T) {
	fixture := newRuleFixture(t, tenPerYear+"  - {key: small, max_hits: 3, rate_limit: {unit: year, requests_per_unit: 10}}\n", local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8})
	fixture.ctx = metadata.NewIncomingContext(t.Context(), metadata.Pairs(limit.AcquireKey, "true"))
	fixture.hit(7, "a", "x")
	fixture.hit(5, "a", "x")
	fixture.hit(2, "small", "x")
	fixture.hit(4, "small", "x")
	assert.Equal(t, []RuleCounts{
		{"d > a", "", HitSums{Total: 12, WithinLimit: 7, OverLimit: 5}},
		{"d > small", "", HitSums{Total: 6, WithinLimit: 2, OverLimit: 4}},
	}, fixture.Rules())
}

func TestDeniedHitsAreOverIfAllOrNoneAreCharged(t *testing.T) {
	fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8}, func(o *service.Options) { o.AllOrNone = true })
	fixture.hit(7, "a", "x")
	fixture.hit(5, "a", "x")
	fixture.hit(3, "shadow", "x")
	assert.Equal(t, []RuleCounts{
		{"d > a", "", HitSums{Total: 12, WithinLimit: 7, OverLimit: 5}},
		{"d > shadow", "", HitSums{Total: 3, NearLimit: 1, OverLimit: 1, ShadowHits: 1}},
	}, fixture.Rules())
}

func TestNearLimitHasSinglePrecision(t *testing.T) {
	for _, test := range []struct {
		ratio float32
		want  uint64
	}{{0.8, 20}, {0.29, 71}, {1, 0}, {1.5, 0}, {0, 100}, {-1, 100}} {
		fixture := newRuleFixture(t, hundredPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: test.ratio})
		fixture.hit(100, "a", "x")
		assert.Equal(t, test.want, fixture.Rules()[0].NearLimit, test.ratio)
	}
}

func TestLimitsOfOneRuleAreCountedApart(t *testing.T) {
	fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8})
	fixture.hit(3, "several", "x")
	fixture.hit(3, "unlimited", "x")
	threeHits := HitSums{Total: 3, WithinLimit: 3}
	assert.Equal(t, []RuleCounts{
		{"d > several", "n", threeHits},
		{"d > several", "per year", threeHits},
		{"d > several", "per year, token_bucket, per instance", threeHits},
	}, fixture.Rules())
}

func TestCountsSurviveReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const otherLimits = "domain: d\ndescriptors: [{key: other, rate_limit: {unit: year, requests_per_unit: 10}}]\n"
		fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{NearLimitRatio: 0.8})
		fixture.hit(1, "a", "x")
		fixture.load(tenPerYear)
		fixture.hit(1, "a", "x")
		assertTotal := func(want uint64) {
			t.Helper()
			if counts := fixture.Rules(); assert.Len(t, counts, 1) {
				assert.Equal(t, want, counts[0].Total)
			}
		}
		assertTotal(2)
		fixture.load(otherLimits)
		time.Sleep(removedRuleTTL - time.Second)
		fixture.load(tenPerYear)
		fixture.hit(1, "a", "x")
		assertTotal(3)
		fixture.load(otherLimits)
		time.Sleep(removedRuleTTL - time.Second)
		assertTotal(3)
		time.Sleep(time.Second)
		assert.Empty(t, fixture.Rules())
		fixture.load(tenPerYear)
		fixture.hit(1, "a", "x")
		assertTotal(1)
	})
}

func TestRemovedRulesAreDeletedWithoutScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newRuleFixture(t, tenPerYear, local.New(local.Options{}), RuleOptions{})
		for i := range 100 {
			key := fmt.Sprintf("k%d", i)
			fixture.load("domain: d\ndescriptors: [{key: " + key + ", rate_limit: {unit: year, requests_per_unit: 10}}]\n")
			fixture.hit(1, key, "x")
			time.Sleep(time.Minute)
			assert.LessOrEqual(t, len(fixture.rules.limits.limitsByRule), 11)
		}
	})
}

func TestCountsWithTheSameKeyHaveDifferentIDs(t *testing.T) {
	fixture := newPerValueFixture(t, 1)
	fixture.hit(1, "user", "other")
	fixture.hit(2, "user", "x")
	totals := map[string]uint64{}
	for c := range fixture.KeyCounts() {
		assert.Equal(t, "d.user_other", c.Key)
		totals[c.ID] += c.Total
	}
	assert.ElementsMatch(t, []uint64{1, 2}, slices.Collect(maps.Values(totals)))
}

func TestCountsHaveTheMetricKeysOfTheIncumbent(t *testing.T) {
	fixture := newRuleFixture(t, "domain: d\ndescriptors:\n  - {key: a, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}\n", local.New(local.Options{}), RuleOptions{MaxSeries: 2})
	for range 3 {
		fixture.hit(1, "a", "10.0.0.1:80")
	}
	fixture.hit(1, "a", "x")
	byKey := map[string]uint64{}
	for c := range fixture.KeyCounts() {
		byKey[c.Key] += c.Total
	}
	assert.Equal(t, map[string]uint64{"d.a_10_0_0_1_80": 3, "d.a_x": 1}, byKey)
}
