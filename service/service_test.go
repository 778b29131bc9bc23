package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
)

// limiterFunc is a Limiter that calls a function.
type limiterFunc func(hits []backend.Hit, results []backend.Result)

func (f limiterFunc) Take(_ context.Context, _ time.Time, hits []backend.Hit, results []backend.Result) {
	f(hits, results)
}

func TestErrorsHaveTheirGRPCCode(t *testing.T) {
	request := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(2, desc("k=v"))}
	failWith := func(err error) func(*Options) {
		return func(o *Options) {
			o.Limiter = limiterFunc(func(_ []backend.Hit, results []backend.Result) {
				results[0].Allowed = true
				results[1].Err = err
			})
		}
	}
	for name, c := range map[string]struct {
		req    *rlsv3.RateLimitRequest
		change func(*Options)
		want   string
	}{
		"no domain":                      {&rlsv3.RateLimitRequest{Descriptors: request.Descriptors}, func(*Options) {}, "InvalidArgument: rate limit domain must not be empty"},
		"no descriptors":                 {&rlsv3.RateLimitRequest{Domain: "d"}, func(*Options) {}, "InvalidArgument: rate limit descriptor list must not be empty"},
		"neither domain nor descriptors": {&rlsv3.RateLimitRequest{}, func(*Options) {}, "InvalidArgument: rate limit domain must not be empty"},
		"no limits":                      {request, func(o *Options) { o.Limits = new(descriptors.Store) }, "FailedPrecondition: no rate limit configuration loaded"},
		"backend down":                   {request, failWith(fmt.Errorf("%w: connection refused", backend.ErrUnavailable)), "Unavailable: rate limit backend unavailable: connection refused"},
		"backend slow":                   {request, failWith(fmt.Errorf("%w: %w", backend.ErrUnavailable, context.DeadlineExceeded)), "Unavailable: rate limit backend unavailable: context deadline exceeded"},
		"caller cancelled":               {request, failWith(context.Canceled), "Canceled: context canceled"},
		"caller's deadline":              {request, failWith(context.DeadlineExceeded), "DeadlineExceeded: context deadline exceeded"},
		"another error":                  {request, failWith(errors.New("WRONGTYPE")), "Unavailable: WRONGTYPE"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tenPerMinute, c.change)
			resp, err := f.svc.ShouldRateLimit(t.Context(), c.req)
			require.Error(t, err)
			assert.Nil(t, resp)
			s := status.Convert(err)
			assert.Equal(t, c.want, s.Code().String()+": "+s.Message())
		})
	}
}

func TestLimiterIsNotCalledWithoutHits(t *testing.T) {
	f := newFixture(t, tenPerMinute, func(o *Options) {
		o.Limiter = limiterFunc(func([]backend.Hit, []backend.Result) { t.Error("the Limiter is called") })
	})
	f.request(desc("other=x"))
}

func TestHitHasTheKeyOfItsDescriptor(t *testing.T) {
	limits := `
domain: d
descriptors:
  - key: a
    rate_limits: [{unit: second, requests_per_unit: 5}, {unit: hour, requests_per_unit: 5}]
  - key: b
    shadow_mode: true
    rate_limit: {unit: second, requests_per_unit: 5}
`
	f := newFixture(t, limits, func(o *Options) {
		o.Limiter = limiterFunc(func(hits []backend.Hit, results []backend.Result) {
			require.Len(t, hits, 4)
			assert.Equal(t, string(hits[0].Key), string(hits[1].Key))
			assert.NotEqual(t, hits[0].Limit.Tag(), hits[1].Limit.Tag())
			assert.Contains(t, string(hits[1].Key), "first")
			assert.Contains(t, string(hits[2].Key), "shadow")
			assert.Contains(t, string(hits[3].Key), "last")
			assert.Equal(t, []bool{false, false, true, true}, []bool{hits[0].Shadow, hits[1].Shadow, hits[2].Shadow, hits[3].Shadow})
			for i := range results {
				assert.Zero(t, results[i], "no result of another call")
				results[i] = backend.Result{Err: backend.ErrUnavailable}
			}
		})
	})
	for range 3 {
		_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: append(repeat(1, desc("a=first")), desc("none=x"), desc("b=shadow"), desc("b=last"))})
		require.Error(t, err)
	}
}

type decision struct {
	path, limit string
	n           int64
	allowed     bool
	source      backend.Source
}

// decisionRecorder is an Observer that keeps all decisions.
type decisionRecorder struct{ decisions []decision }

func (r *decisionRecorder) CallAnswered(_ context.Context, c *Call) {
	for i := range c.DecisionCount() {
		if d := c.Decision(i); d.Result.Err == nil {
			r.decisions = append(r.decisions, decision{d.Rule.Path, d.Limit.Name, d.N, d.Result.Allowed, d.Result.Source})
		}
	}
}

func TestObserverReceivesEachDecision(t *testing.T) {
	limits := `
domain: d
descriptors:
  - key: a
    rate_limits: [{unit: second, requests_per_unit: 5, name: second}, {unit: hour, requests_per_unit: 5, name: hour}]
  - {key: unlimited, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 0, name: none}}
`
	events := new(decisionRecorder)
	f := newFixture(t, limits, func(o *Options) { o.Observers = []Observer{events} })
	f.request(withHits(3, desc("a=x")), desc("unlimited=x"), desc("shadow=x"), withRefund(2, desc("a=x")), desc("none=x"))
	assert.Equal(t, []decision{
		{"d > a", "second", 3, true, backend.SourceLocal},
		{"d > a", "hour", 3, true, backend.SourceLocal},
		{"d > shadow", "none", 1, false, backend.SourceLocal},
		{"d > a", "second", -2, true, backend.SourceLocal},
		{"d > a", "hour", -2, true, backend.SourceLocal},
	}, events.decisions)
}

func TestObserverReceivesDecisionsOfAFailedCall(t *testing.T) {
	events := new(decisionRecorder)
	f := newFixture(t, tenPerMinute, func(o *Options) {
		o.Observers = []Observer{events}
		o.Limiter = limiterFunc(func(_ []backend.Hit, results []backend.Result) {
			results[0].Err = backend.ErrUnavailable
			results[1] = backend.Result{Source: backend.SourceFallback}
		})
	})
	_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(2, desc("k=v"))})
	require.Error(t, err)
	assert.Equal(t, []decision{{"d > k", "ten", 1, false, backend.SourceFallback}}, events.decisions)
}

func TestConcurrentCallsAreIndependent(t *testing.T) {
	f := newFixture(t, tenPerMinute)
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			d := desc(fmt.Sprintf("k=%d", i))
			for n := range uint32(10) {
				resp := f.request(d, desc("none=x"), d)
				assert.Equal(t, max(9, 2*n)-2*n, resp.Statuses[0].LimitRemaining)
			}
		})
	}
	callers.Wait()
}

func BenchmarkShouldRateLimit(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("descriptors=%d", n), func(b *testing.B) {
			svc := newBenchService(b)
			req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(n, desc("service=checkout", "ip=10.0.0.1"))}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, _ = svc.ShouldRateLimit(context.Background(), req)
				}
			})
		})
	}
}

// BenchmarkMatchAndTake measures a call without the response: match the rules, build the keys and charge the counters.
func BenchmarkMatchAndTake(b *testing.B) {
	for _, n := range []int{1, 4} {
		b.Run(fmt.Sprintf("descriptors=%d", n), func(b *testing.B) {
			svc := newBenchService(b)
			req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(n, desc("service=checkout", "ip=10.0.0.1"))}
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				c := calls.Get().(*Call)
				_ = c.match(svc.options.Limits.Load(), req, &svc.options)
				svc.options.Limiter.Take(context.Background(), now, c.hits, c.results)
				c.returnToPool()
			}
		})
	}
}

const benchLimits = `
domain: d
descriptors:
  - key: service
    value: checkout
    descriptors:
      - key: ip
        rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

func newBenchService(b *testing.B) *Service {
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(benchLimits)}}, limitsfile.Options{})
	require.NoError(b, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	return New(Options{Limits: store, Limiter: local.New(local.Options{})})
}

func TestTooLargeRequestsAreRejected(t *testing.T) {
	f := newFixture(t, tenPerMinute, func(o *Options) { o.MaxDescriptors, o.MaxEntries, o.MaxAllEntries = 3, 4, 6 })
	_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
		Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("a=1", "b=2", "c=3", "d=4")},
	})
	require.NoError(t, err, "as many entries as one descriptor may have")
	for message, ds := range map[string][]*ratelimitv3.RateLimitDescriptor{
		"":                                   repeat(3, desc("a=1", "b=2")),
		"descriptors: got 4, want at most 3": repeat(4, desc("a=1")),
		"descriptors[1].entries: got 5, want at most 4":            {desc("a=1"), desc("a=1", "b=2", "c=3", "d=4", "e=5")},
		"entries of all descriptors: got 7, want at most 6 (64 × ": {desc("a=1", "b=2", "c=3"), desc("a=1", "b=2", "c=3", "d=4")},
	} {
		_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: ds})
		if message == "" {
			assert.NoError(t, err)
			continue
		}
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, message)
	}
}

func TestCallsBeyondMaxHitsChargeNothing(t *testing.T) {
	const limits = `
domain: d
descriptors:
  - {key: tokens, max_hits: 10, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: shadow, max_hits: 10, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: quota, max_hits: 10, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: other_quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: quota_without_a_limit, quota_mode: true}
  - {key: other, rate_limits: [{unit: hour, requests_per_unit: 100}, {unit: day, requests_per_unit: 5}]}
`
	const ok, over = rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OVER_LIMIT
	for name, c := range map[string]struct {
		descriptors []*ratelimitv3.RateLimitDescriptor
		code        rlsv3.RateLimitResponse_Code
		codes       []rlsv3.RateLimitResponse_Code
		remaining   []uint32 // the remaining hits in each status
		spent       []uint32 // the hits that the limit of each descriptor has counted after the call
	}{
		"at the bound":                               {[]*ratelimitv3.RateLimitDescriptor{withHits(10, desc("tokens=x"))}, ok, []rlsv3.RateLimitResponse_Code{ok}, []uint32{90}, []uint32{10}},
		"beyond the bound":                           {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("tokens=x"))}, over, []rlsv3.RateLimitResponse_Code{over}, []uint32{100}, []uint32{0}},
		"beyond the limit":                           {[]*ratelimitv3.RateLimitDescriptor{withHits(1<<30, desc("tokens=x"))}, over, []rlsv3.RateLimitResponse_Code{over}, []uint32{100}, []uint32{0}},
		"other rules charge nothing":                 {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("tokens=x")), withHits(2, desc("other=x"))}, over, []rlsv3.RateLimitResponse_Code{over, ok}, []uint32{100, 5}, []uint32{0, 0}},
		"other rules deny as well":                   {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("tokens=x")), withHits(6, desc("other=x"))}, over, []rlsv3.RateLimitResponse_Code{over, over}, []uint32{100, 5}, []uint32{0, 0}},
		"refunds refund nothing":                     {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("tokens=x")), withRefund(6, desc("other=x"))}, over, []rlsv3.RateLimitResponse_Code{over, ok}, []uint32{100, 5}, []uint32{0, 0}},
		"shadow mode denies no call":                 {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("shadow=x")), withHits(2, desc("other=x"))}, ok, []rlsv3.RateLimitResponse_Code{ok, ok}, []uint32{100, 3}, []uint32{0, 2}},
		"one quota alone denies no call":             {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("quota=x")), withHits(11, desc("other_quota=x"))}, ok, []rlsv3.RateLimitResponse_Code{over, ok}, []uint32{100, 89}, []uint32{0, 11}},
		"all quotas deny the call":                   {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("quota=x")), withHits(2, desc("other=x"))}, over, []rlsv3.RateLimitResponse_Code{over, ok}, []uint32{100, 5}, []uint32{0, 0}},
		"a quota without a limit lets the call pass": {[]*ratelimitv3.RateLimitDescriptor{withHits(11, desc("quota=x")), withHits(2, desc("quota_without_a_limit=x"))}, ok, []rlsv3.RateLimitResponse_Code{over, ok}, []uint32{100, 0}, []uint32{0, 0}},
		"a refund has no bound":                      {[]*ratelimitv3.RateLimitDescriptor{withRefund(11, desc("tokens=x"))}, ok, []rlsv3.RateLimitResponse_Code{ok}, []uint32{100}, []uint32{0}},
		"each descriptor has its bound":              {[]*ratelimitv3.RateLimitDescriptor{withHits(6, desc("tokens=x")), withHits(6, desc("tokens=x"))}, ok, []rlsv3.RateLimitResponse_Code{ok, ok}, []uint32{94, 88}, []uint32{12, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, limits)
			resp := f.request(c.descriptors...)
			assert.Equal(t, c.code, resp.OverallCode)
			peeks := make([]*ratelimitv3.RateLimitDescriptor, len(c.descriptors))
			for i, st := range resp.Statuses {
				assert.Equal(t, c.codes[i], st.Code, i)
				assert.Equal(t, c.remaining[i], st.LimitRemaining, i)
				peeks[i] = withHits(0, &ratelimitv3.RateLimitDescriptor{Entries: c.descriptors[i].Entries})
			}
			for i, st := range f.request(peeks...).Statuses {
				assert.Equal(t, c.spent[i], map[string]uint32{"tokens": 100, "shadow": 100, "quota": 100, "other_quota": 100, "other": 5}[peeks[i].Entries[0].Key]-st.LimitRemaining, i)
			}
		})
	}
}

func TestCallWithAConditionThatIsNotTestedIsDenied(t *testing.T) {
	f := newFixture(t, `domain: d
descriptors:
- {key: agent, regex: '.*bot.{100}', rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: ip, rate_limit: {unit: hour, requests_per_unit: 100}}
`, func(o *Options) {
		o.Limiter = local.New(local.Options{MaxKeys: 1000})
		o.AllOrNone = true
	})
	shortAgent, longAgent := desc("agent=a bot"+strings.Repeat("x", 100)), desc("agent="+strings.Repeat("a", 60_000))
	resp := f.request(shortAgent, longAgent, desc("ip=10.0.0.1"))
	assert.Equal(t, codeOverLimit, resp.OverallCode)
	assert.Equal(t, []rlsv3.RateLimitResponse_Code{codeOK, codeOverLimit, codeOK}, statusCodes(resp))
	resp = f.request(shortAgent, desc("ip=10.0.0.1"))
	assert.Equal(t, codeOK, resp.OverallCode)
	assert.EqualValues(t, 99, resp.Statuses[1].LimitRemaining, "the denied call charged nothing")

	mediumAgent := desc("agent=" + strings.Repeat("a", 2000))
	assert.Equal(t, codeOK, f.request(mediumAgent).OverallCode)
	assert.Equal(t, codeOverLimit, f.request(repeat(5, mediumAgent)...).OverallCode, "the descriptors share the budget of the call")
	assert.Equal(t, codeOK, f.request(mediumAgent).OverallCode, "a pooled call has a full budget")
}

func TestRefundsCanBeRejected(t *testing.T) {
	limits := `
domain: d
descriptors:
  - {key: login, refunds: false, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: upload, refunds: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: disabled, refunds: false, rate_limit: {unit: hour, requests_per_unit: 5, enabled: false}}
  - {key: unlimited, refunds: false, rate_limit: {unlimited: true}}
  - {key: without a limit, refunds: false}
  - {key: replaced, refunds: false, rate_limit: {unit: hour, requests_per_unit: 5, name: base}}
  - {key: replaces, rate_limit: {unit: hour, requests_per_unit: 5, replaces: [{name: base}]}}
`
	for _, noRefunds := range []bool{false, true} {
		f := newFixture(t, limits, func(o *Options) { o.NoRefunds = noRefunds })
		f.request(withHits(4, desc("login=x")), withHits(4, desc("upload=x")))
		_, err := f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{
			withRefund(2, desc("upload=x")), withRefund(3, desc("login=x")),
		}})
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
		if !noRefunds {
			assert.ErrorContains(t, err, "descriptors[1]: rule d > login has refunds: false")
		}
		resp := f.request(withHits(0, desc("login=x")), withHits(0, desc("upload=x")))
		assert.EqualValues(t, []uint32{1, 1}, []uint32{resp.Statuses[0].LimitRemaining, resp.Statuses[1].LimitRemaining}, "a rejected request refunds nothing")

		_, err = f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{withRefund(2, desc("upload=x"))}})
		assert.Equal(t, noRefunds, err != nil)

		for _, key := range []string{"disabled", "unlimited", "without a limit", "unknown"} {
			assert.Equal(t, codeOK, f.request(withRefund(2, desc(key+"=x"))).OverallCode, "%s: nothing is counted", key)
		}
		assert.Equal(t, codeOK, f.request(withRefund(2, desc("replaced=x")), desc("replaces=x")).OverallCode, "the replaced limit is not counted")
		_, err = f.svc.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{withRefund(2, desc("replaced=x"))}})
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
	}
}

// callObserver is an Observer that reads each Call.
type callObserver func(*Call)

func (f callObserver) CallAnswered(_ context.Context, c *Call) { f(c) }

func TestRejectedCallMakesNoDecision(t *testing.T) {
	limits := `
domain: d
descriptors:
  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: login, refunds: false, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: job, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 10s}}
`
	for name, c := range map[string]struct {
		d    *ratelimitv3.RateLimitDescriptor
		hold []string
	}{
		"refused refund": {withRefund(1, desc("login=x")), nil},
		"two hold ids":   {desc("job=x"), []string{"a", "b"}},
		"bad hold id":    {desc("job=x"), []string{"a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			decisions := -1
			f := newFixture(t, limits, func(o *Options) {
				o.Observers = []Observer{callObserver(func(c *Call) {
					decisions = c.DecisionCount()
					_, ok := c.DescriptorDecision(0)
					assert.False(t, ok)
				})}
			})
			req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{desc("tenant=x"), c.d}}
			ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{limit.HoldKey: c.hold})
			_, err := f.svc.ShouldRateLimit(ctx, req)
			require.Error(t, err)
			assert.Zero(t, decisions)
			f.svc.AnswerAll(t.Context(), []Item{{ctx, req, func(answered *Call) {
				require.Error(t, answered.Err)
				assert.Zero(t, answered.DecisionCount())
			}}})
		})
	}
}
