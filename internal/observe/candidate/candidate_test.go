package candidate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limitsOf returns limits that admit n hits of each tenant in a year.
func limitsOf(t *testing.T, n string) *limitsfile.Set {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(
		"domain: shop\ndescriptors: [{key: tenant, rate_limit: {unit: year, requests_per_unit: " + n + "}}]",
	)}}, limitsfile.Options{})
	require.NoError(t, err)
	return set
}

// countsOf returns the number of calls with each result, and the number of new denials of each rule.
func countsOf(c *Candidate) (calls map[Result]int, rules map[string]int) {
	calls, rules = map[Result]int{}, map[string]int{}
	status := c.Status()
	for r, n := range status.Calls {
		if n > 0 {
			calls[Result(r)] = int(n)
		}
	}
	for _, r := range status.Rules {
		rules[r.Path] = int(r.NewlyDenied)
	}
	return calls, rules
}

// failingLimiter is a Limiter that fails each hit.
type failingLimiter struct{}

func (failingLimiter) Take(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
	for i := range results {
		results[i].Err = errors.New("no answer")
	}
}

// newService returns a service with limits in force that admit maxHits hits of each tenant.
func newService(t *testing.T, maxHits string, c *Candidate) *service.Service {
	t.Helper()
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(limitsOf(t, maxHits)))
	return service.New(service.Options{Limits: store, Limiter: local.New(local.Options{}), Observers: []service.Observer{c}})
}

func send(t *testing.T, s *service.Service, tenant string) rlsv3.RateLimitResponse_Code {
	t.Helper()
	answer, err := s.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{
		{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: tenant}}},
	}})
	require.NoError(t, err)
	return answer.OverallCode
}

func TestCandidateIsComparedWithTheLimitsInForce(t *testing.T) {
	for name, test := range map[string]struct {
		hitsInForce, candidateHits string
		limiter                    backend.Limiter
		want                       map[Result]int
		rules                      map[string]int
	}{
		"tighter candidate":           {"4", "1", local.New(local.Options{}), map[Result]int{Same: 2, NewlyDenied: 3}, map[string]int{"shop > tenant": 3}},
		"looser candidate":            {"1", "4", local.New(local.Options{}), map[Result]int{Same: 2, NewlyAdmitted: 3}, map[string]int{}},
		"equal limits":                {"2", "2", local.New(local.Options{}), map[Result]int{Same: 5}, map[string]int{}},
		"candidate without decisions": {"2", "2", failingLimiter{}, map[Result]int{Failed: 5}, map[string]int{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				candidate := New(Options{Limiter: test.limiter})
				candidate.Limits.Set(descriptors.Compile(limitsOf(t, test.candidateHits)))
				candidate.stats.reset(time.Now())
				go candidate.Run(ctx)
				rateLimiter := newService(t, test.hitsInForce, candidate)
				for range 5 {
					send(t, rateLimiter, "acme")
					synctest.Wait()
				}
				calls, rules := countsOf(candidate)
				assert.Equal(t, test.want, calls)
				assert.Equal(t, test.rules, rules)
				candidate.stats.reset(time.Now())
				calls, rules = countsOf(candidate)
				assert.Empty(t, calls, "a new candidate has no calls yet")
				assert.Empty(t, rules)
				for result, n := range test.want {
					assert.EqualValues(t, n, candidate.Status().TotalCalls[result], result)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestFullQueueDropsCallsAndDelaysNone(t *testing.T) {
	candidate := New(Options{Limiter: failingLimiter{}})
	candidate.Limits.Set(descriptors.Compile(limitsOf(t, "1")))
	rateLimiter := newService(t, "4294967295", candidate)
	for range queueSize + 3 { // the test does not call Run
		assert.Equal(t, rlsv3.RateLimitResponse_OK, send(t, rateLimiter, "acme"))
	}
	calls, _ := countsOf(candidate)
	assert.Equal(t, map[Result]int{Dropped: 3}, calls)
}

func TestNothingIsEvaluatedWithoutACandidate(t *testing.T) {
	candidate := New(Options{Limiter: failingLimiter{}})
	send(t, newService(t, "1", candidate), "acme")
	assert.Empty(t, candidate.queue)
	assert.Zero(t, candidate.Status().Since)
}

// updates is a source.Source that applies its updates and returns.
type updates []source.Update

func (u updates) Run(_ context.Context, apply func(source.Update) error) error {
	for _, update := range u {
		_ = apply(update)
	}
	return nil
}

func TestRejectedCandidateKeepsTheLastGoodCandidate(t *testing.T) {
	candidate := New(Options{Limiter: failingLimiter{}})
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	rejectedUpdate := source.Update{Problem: errors.New("limits.yaml:3: mistake")}
	candidate.Follow(t.Context(), updates{rejectedUpdate}, log)
	assert.Contains(t, out.String(), "candidate limits rejected; no candidate is evaluated")
	assert.NotContains(t, out.String(), "last good")
	candidate.Follow(t.Context(), updates{{Limits: limitsOf(t, "7")}, rejectedUpdate}, log)
	assert.Contains(t, out.String(), "candidate limits rejected; the last good candidate is still evaluated")
	assert.EqualError(t, candidate.Status().Problem, "limits.yaml:3: mistake")
	assert.Equal(t, 1, candidate.Limits.Load().RuleCount())
	candidate.Follow(t.Context(), updates{{}}, log)
	assert.NoError(t, candidate.Status().Problem)
	candidate.Follow(t.Context(), updates{{Limits: limitsOf(t, "8")}}, log)
	assert.NoError(t, candidate.Status().Problem)
}

func TestRulesOfAStatusAreBounded(t *testing.T) {
	var s stats
	s.reset(time.Now())
	for i := range maxRules + 50 {
		s.addRule(string(rune('a'+i%26)) + time.Duration(i).String())
	}
	assert.Len(t, s.rules, maxRules+1)
	assert.EqualValues(t, 50, s.rules[OtherRules])
}
