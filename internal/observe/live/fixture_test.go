package live

import (
	"bytes"
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/service"
)

const testLimits = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 10}
    descriptors:
      - key: path
        rate_limits: [{unit: minute, requests_per_unit: 100}, {unit: hour, requests_per_unit: 5, algorithm: token_bucket}]
  - {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: free, quota_mode: true, rate_limit: {unlimited: true}}
  - {key: old, rate_limit: {unit: day, requests_per_unit: 3, enabled: false}}
`

// liveFixture is a Live and the service that it shows.
type liveFixture struct {
	*Live
	t        testing.TB
	service  *service.Service
	store    *descriptors.Store
	events   *timeline.Timeline
	log      *bytes.Buffer
	counts   []metrics.RuleCounts
	redis    *Redis
	result   *backend.Result // if it is not nil, all hits get this result, and nothing is counted
	draining bool
	cpuTime  time.Duration
}

// counts returns the hits on a limit. The limit is empty if the rule has one limit only.
func counts(rule, limit string, ok, near, denied, shadow uint64) metrics.RuleCounts {
	return metrics.RuleCounts{Rule: rule, Limit: limit, HitSums: metrics.HitSums{WithinLimit: ok, NearLimit: near, OverLimit: denied + shadow, ShadowHits: shadow}}
}

// allHits counts all hits of a denied decision.
func allHits(d service.Decision) int64 { return d.N }

func newFixture(t testing.TB, change func(*Options)) *liveFixture {
	fixture := &liveFixture{t: t, store: new(descriptors.Store), events: timeline.New(10), log: new(bytes.Buffer)}
	options := Options{
		Backend:  "redis",
		Recorder: NewRecorder(allHits, true),
		Store:    fixture.store,
		Limits:   func() Limits { return Limits{Source: "file"} },
		Counts:   func() iter.Seq[metrics.RuleCounts] { return slices.Values(fixture.counts) },
		CPUTime:  func() time.Duration { return fixture.cpuTime },
		Process:  func() Process { return Process{Cores: 2} },
		Redis:    func() *Redis { return fixture.redis },
		Draining: func() bool { return fixture.draining },
		Events:   fixture.events,
		Log:      slog.New(slog.NewTextHandler(fixture.log, nil)),
		Keys:     KeysOn,
	}
	fixture.redis = &Redis{Up: true, Mode: "local", Ratio: 0.5}
	if change != nil {
		change(&options)
	}
	fixture.load(testLimits)
	fixture.Live = New(options)
	counters := local.New(local.Options{MaxKeys: 100_000})
	limiter := backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
		if fixture.result == nil {
			counters.Take(ctx, now, hits, results)
			return
		}
		for i := range results {
			results[i] = *fixture.result
		}
	})
	fixture.service = service.New(service.Options{Limits: fixture.store, Limiter: limiter, Observers: []service.Observer{options.Recorder}})
	return fixture
}

func (r *liveFixture) load(limits string) {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(r.t, err)
	r.store.Set(descriptors.Compile(set))
}

// call sends a request with the descriptors, each written key=value,key=value.
func (r *liveFixture) call(texts ...string) {
	_, _ = r.service.ShouldRateLimit(context.Background(), request(texts...))
}

func request(texts ...string) *rlsv3.RateLimitRequest {
	req := &rlsv3.RateLimitRequest{Domain: "shop"}
	for _, text := range texts {
		d := &ratelimitv3.RateLimitDescriptor{}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// tick lets n seconds pass, with a sample in each second.
func (r *liveFixture) tick(n int) {
	for range n {
		time.Sleep(time.Second)
		r.takeSample(time.Now())
	}
}
