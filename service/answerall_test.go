package service

import (
	"context"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
)

// takeCounter counts the Takes of a Limiter.
type takeCounter struct {
	backend.Limiter
	takes int
}

func (c *takeCounter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	c.takes++
	c.Limiter.Take(ctx, now, hits, results)
}

const severalLimits = `
domain: d
descriptors:
  - key: a
    rate_limits: [{unit: second, requests_per_unit: 3}, {unit: hour, requests_per_unit: 5, algorithm: sliding_log}]
  - key: b
    max_hits: 2
    refunds: false
    rate_limit: {unit: minute, requests_per_unit: 4}
  - key: free
    rate_limit: {unlimited: true}
`

// answerAll returns the responses and errors of AnswerAll.
func (f *fixture) answerAll(requests []*rlsv3.RateLimitRequest) (responses []*rlsv3.RateLimitResponse, errs []error) {
	items := make([]Item, len(requests))
	for i, req := range requests {
		items[i] = Item{context.Background(), req, func(c *Call) {
			require.Len(f.t, responses, i, "the answers are in order")
			responses, errs = append(responses, c.Response), append(errs, c.Err)
		}}
	}
	f.svc.AnswerAll(context.Background(), items)
	require.Len(f.t, responses, len(requests))
	return responses, errs
}

func TestRefusedCallsChargeAndMatchNothing(t *testing.T) {
	isRefused := true
	f := newFixture(t, tenPerMinute, func(o *Options) {
		o.AdmitCaller = func(_ context.Context, now time.Time) error {
			assert.Equal(t, start, now)
			if isRefused {
				return status.Error(codes.ResourceExhausted, "too many calls")
			}
			return nil
		}
		o.Observers = []Observer{observerFunc(func(c *Call) {
			assert.Equal(t, isRefused, c.IsRefused())
			assert.Equal(t, isRefused, len(c.Rules) == 0)
		})}
	})
	req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(1, desc("k=v"))}
	_, err := f.svc.ShouldRateLimit(t.Context(), req)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, errs := f.answerAll([]*rlsv3.RateLimitRequest{req, req})
	for _, err := range errs {
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	}
	isRefused = false
	assert.EqualValues(t, 9, f.send(req).Statuses[0].LimitRemaining)
}

// observerFunc is an Observer.
type observerFunc func(*Call)

func (f observerFunc) CallAnswered(_ context.Context, c *Call) { f(c) }

// Requests that are answered together get the answers that they would get one after the other.
func TestAnswerAllAnswersAsSingleCallsDo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		allOrNone := rapid.Bool().Draw(rt, "all or none")
		useLocalCounters := func(o *Options) {
			o.Limiter, o.AllOrNone = local.New(local.Options{MaxKeys: 1000}), allOrNone
		}
		togetherFixture, singleFixture := newFixture(t, severalLimits, useLocalCounters), newFixture(t, severalLimits, useLocalCounters)
		descriptor := rapid.Custom(func(rt *rapid.T) *rlsv3.RateLimitRequest {
			d := desc(rapid.SampledFrom([]string{"a=x", "a=y", "b=x", "free=x", "none=x"}).Draw(rt, "descriptor"))
			if n := rapid.Int64Range(-2, 2).Draw(rt, "hits"); n < 0 {
				d = withRefund(uint64(-n), d)
			} else {
				d = withHits(uint64(n), d)
			}
			return &rlsv3.RateLimitRequest{Domain: rapid.SampledFrom([]string{"d", "d", "d", "other", ""}).Draw(rt, "domain"), Descriptors: repeat(1, d)}
		})
		for range 3 {
			requests := rapid.SliceOfN(descriptor, 0, 10).Draw(rt, "requests")
			responses, errs := togetherFixture.answerAll(requests)
			for i, req := range requests {
				want, err := singleFixture.svc.ShouldRateLimit(context.Background(), req)
				assert.Equal(rt, err, errs[i])
				if !proto.Equal(want, responses[i]) {
					rt.Fatalf("request %d: got %v, want %v", i, responses[i], want)
				}
			}
		}
	})
}

func TestAnswerAllTakesOnce(t *testing.T) {
	for name, c := range map[string]struct {
		requests  []*rlsv3.RateLimitRequest
		allOrNone bool
		want      int
	}{
		"three requests":           {requests: []*rlsv3.RateLimitRequest{newRequestFor("a=x"), newRequestFor("a=y"), newRequestFor("b=x")}, want: 1},
		"no request with a limit":  {requests: []*rlsv3.RateLimitRequest{newRequestFor("none=x"), {}}},
		"all-or-none":              {requests: []*rlsv3.RateLimitRequest{newRequestFor("a=x"), newRequestFor("a=y"), newRequestFor("none=x")}, allOrNone: true, want: 2},
		"a request above max_hits": {requests: []*rlsv3.RateLimitRequest{newRequestFor("a=x"), {Domain: "d", HitsAddend: 3, Descriptors: repeat(1, desc("b=x"))}}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			counter := &takeCounter{Limiter: local.New(local.Options{MaxKeys: 1000})}
			f := newFixture(t, severalLimits, func(o *Options) { o.Limiter, o.AllOrNone = counter, c.allOrNone })
			f.answerAll(c.requests)
			assert.Equal(t, c.want, counter.takes)
		})
	}
}

// newRequestFor returns a request with one descriptor of domain "d".
func newRequestFor(entry string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(1, desc(entry))}
}

func TestErrorOfOneRequestFailsNoOtherRequest(t *testing.T) {
	f := newFixture(t, severalLimits, func(o *Options) {
		o.Limiter = limiterFunc(func(hits []backend.Hit, results []backend.Result) {
			for i := range hits {
				results[i].Allowed = true
			}
			results[0].Err = backend.ErrUnavailable
		})
	})
	responses, errs := f.answerAll([]*rlsv3.RateLimitRequest{newRequestFor("a=x"), newRequestFor("a=y"), newRequestFor("none=x")})
	require.ErrorContains(t, errs[0], "backend unavailable")
	require.NoError(t, errs[1])
	require.NoError(t, errs[2])
	assert.Equal(t, codeOK, responses[1].OverallCode)
}

func TestDescriptorDecisionHasTheLimitOfTheStatus(t *testing.T) {
	f := newFixture(t, severalLimits)
	for range 3 {
		f.request(desc("a=x"))
	}
	f.svc.AnswerAll(t.Context(), []Item{
		{t.Context(), newRequestFor("a=x"), func(c *Call) {
			d, ok := c.DescriptorDecision(0)
			require.True(t, ok)
			assert.Equal(t, "3 per second", d.Limit.String())
			assert.Same(t, c.Response.Statuses[0].CurrentLimit, d.Limit.Response)
		}},
		{t.Context(), newRequestFor("free=x"), func(c *Call) {
			_, ok := c.DescriptorDecision(0)
			assert.False(t, ok)
		}},
	})
}
