package decisionlog

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

func subscribe(t *testing.T, h *Hub, f Filter, buffer int) *Subscription {
	t.Helper()
	s, err := h.Subscribe(f, buffer)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// takeRecords takes all records from the buffer of s and returns the records.
func takeRecords(s *Subscription) []Record {
	var records []Record
	for len(s.Records) > 0 {
		records = append(records, <-s.Records)
	}
	return records
}

func TestRecordDescribesItsDecision(t *testing.T) {
	now := newClock()
	hub := NewHub(now, nil)
	subscription := subscribe(t, hub, Filter{}, 10)
	rateLimiter := newService(t, now, nil, hub)
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0xab}}))
	_, err := rateLimiter.ShouldRateLimit(ctx, request("tenant=acme"))
	require.NoError(t, err)
	assert.Equal(t, []Record{{
		Time: testStart, Domain: "shop", Descriptor: []Entry{{"tenant", "acme"}},
		Rule: "shop > tenant", Limit: "2 per minute", LimitName: "two", RequestsPerUnit: 2,
		Code: OK, OverallCode: OK, Hits: 1, Remaining: 1, Source: "local", DurationMicros: 1000,
		TraceID: "ab000000000000000000000000000000",
	}}, takeRecords(subscription))
}

func TestRecordOfDescriptorWithoutRuleHasIndexAndHits(t *testing.T) {
	now := newClock()
	hub := NewHub(now, nil)
	subscription := subscribe(t, hub, Filter{}, 10)
	req := request("tenant=acme", "other=x")
	req.HitsAddend = 3
	_, err := newService(t, now, nil, hub).ShouldRateLimit(t.Context(), req)
	require.NoError(t, err)
	records := takeRecords(subscription)
	require.Len(t, records, 2)
	assert.Equal(t, 1, records[1].DescriptorIndex)
	assert.Equal(t, int64(3), records[1].Hits)
}

func TestRecordHasTheHoldAndWhetherTheCallerWaits(t *testing.T) {
	for _, hash := range []*Hash{nil, NewHash("secret")} {
		hub := NewHub(time.Now, hash)
		subscription := subscribe(t, hub, Filter{}, 10)
		rateLimiter := newService(t, nil, nil, hub)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(limit.HoldKey, "holder", limit.AcquireKey, "true"))
		_, err := rateLimiter.ShouldRateLimit(ctx, request("slot=x", "tenant=x"))
		require.NoError(t, err)
		_, err = rateLimiter.ShouldRateLimit(t.Context(), request("slot=y"))
		require.NoError(t, err)
		records := takeRecords(subscription)
		require.Len(t, records, 3)
		id := "holder"
		if hash != nil {
			id = hash.Value("holder")
		}
		assert.Equal(t, []string{id, "", ""}, []string{records[0].Hold, records[1].Hold, records[2].Hold})
		assert.Equal(t, []bool{true, true, false}, []bool{records[0].Acquire, records[1].Acquire, records[2].Acquire})
	}
}

func TestEachDecisionAndEachDescriptorWithoutDecisionHasARecord(t *testing.T) {
	type row struct {
		Rule, LimitName string
		Code, Overall   Code
		Shadow          bool
	}
	for name, test := range map[string]struct {
		req    *rlsv3.RateLimitRequest
		change func(*service.Options)
		want   []row
	}{
		"two limits of one descriptor": {request("both=x"), nil, []row{
			{"shop > both", "", OK, OverLimit, false}, {"shop > both", "none", OverLimit, OverLimit, false},
		}},
		"no rule before a limit": {request("other=x", "tenant=x"), nil, []row{
			{"", "", OK, OK, false}, {"shop > tenant", "two", OK, OK, false},
		}},
		"unlimited after a limit": {request("tenant=x", "free=x"), nil, []row{
			{"shop > tenant", "two", OK, OK, false}, {"shop > free", "", OK, OK, false},
		}},
		"rule in shadow mode": {request("trial=x"), nil, []row{{"shop > trial", "", OverLimit, OK, true}}},
		"service in shadow mode": {request("both=x"), func(o *service.Options) { o.ShadowMode = true }, []row{
			{"shop > both", "", OK, OK, true}, {"shop > both", "none", OverLimit, OK, true},
		}},
		"unknown domain": {&rlsv3.RateLimitRequest{Domain: "x", Descriptors: request("tenant=x").Descriptors}, nil, []row{{"", "", OK, OK, false}}},
		"no domain":      {&rlsv3.RateLimitRequest{Descriptors: request("tenant=x").Descriptors}, nil, []row{{"", "", Failed, Failed, false}}},
		"no descriptors": {&rlsv3.RateLimitRequest{Domain: "shop"}, nil, []row{{"", "", Failed, Failed, false}}},
		"failed backend": {request("tenant=x", "free=x"), func(o *service.Options) { o.Limiter = failingLimiter{} }, []row{
			{"shop > tenant", "two", Failed, Failed, false}, {"shop > free", "", Failed, Failed, false},
		}},
		"refund rejected by the rule": {refundOf("tenant=x"), func(o *service.Options) { o.NoRefunds = true }, []row{{"shop > tenant", "", Failed, Failed, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			hub := NewHub(time.Now, nil)
			subscription := subscribe(t, hub, Filter{}, 10)
			_, err := newService(t, nil, test.change, hub).ShouldRateLimit(t.Context(), test.req)
			var rows []row
			for _, r := range takeRecords(subscription) {
				rows = append(rows, row{r.Rule, r.LimitName, r.Code, r.OverallCode, r.Shadow})
				assert.Equal(t, err != nil, r.Error != "")
			}
			assert.Equal(t, test.want, rows)
		})
	}
}

// failingLimiter is a Limiter that fails each hit.
type failingLimiter struct{}

func (failingLimiter) Take(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
	for i := range results {
		results[i].Err = errors.New("broken")
	}
}

// fallbackLimiter is a Limiter that denies each hit as the fallback does during an outage.
type fallbackLimiter struct{}

func (fallbackLimiter) Take(_ context.Context, _ time.Time, _ []backend.Hit, results []backend.Result) {
	for i := range results {
		results[i] = backend.Result{Result: limit.Result{Remaining: -3}, Source: backend.SourceFallback, Reason: backend.ReasonBreakerOpen, Mode: limit.FailDeny}
	}
}

func TestRecordOfAFallbackHasItsReason(t *testing.T) {
	hub := NewHub(time.Now, nil)
	subscription := subscribe(t, hub, Filter{}, 10)
	rateLimiter := newService(t, nil, func(o *service.Options) { o.Limiter = fallbackLimiter{} }, hub)
	_, err := rateLimiter.ShouldRateLimit(t.Context(), request("tenant=x"))
	require.NoError(t, err)
	r := takeRecords(subscription)[0]
	assert.True(t, r.Degraded)
	assert.Equal(t, []string{"fallback", "breaker_open", limit.FailDeny.String()}, []string{r.Source, r.Reason, r.Mode})
	assert.Zero(t, r.Remaining)
}

func TestFilterSelectsRecords(t *testing.T) {
	for query, want := range map[string][]string{
		"":                               {"tenant", "tenant", "both", "both", ""},
		"rule=tenant":                    {"tenant", "tenant"},
		"rule=shop+%3E+tenant":           {"tenant", "tenant"},
		"code=over_limit":                {"both"},
		"code=error":                     nil,
		"domain=shop&code=OK":            {"tenant", "tenant", "both", ""},
		"domain=other":                   nil,
		"source=local":                   {"tenant", "tenant", "both", "both"},
		"source=fallback":                nil,
		"entry=tenant":                   {"tenant", "tenant"},
		"entry=tenant%3Db":               {"tenant"},
		"entry=none%3D1&entry=user":      {""},
		"entry=tenant%3Db&entry=user":    nil,
		"entry=none%3D1&code=ok&rule=":   {""},
		"rule=both&code=OK&source=LOCAL": {"both"},
	} {
		t.Run(query, func(t *testing.T) {
			values, err := url.ParseQuery(query)
			require.NoError(t, err)
			f, err := ParseFilter(values)
			require.NoError(t, err)
			hub := NewHub(time.Now, nil)
			subscription := subscribe(t, hub, f, 10)
			rateLimiter := newService(t, nil, nil, hub)
			_, err = rateLimiter.ShouldRateLimit(t.Context(), request("tenant=a", "tenant=b", "both=x", "none=1,user=u"))
			require.NoError(t, err)
			var keys []string
			for _, r := range takeRecords(subscription) {
				key := ""
				if r.Rule != "" {
					key = r.Descriptor[0].Key
				}
				keys = append(keys, key)
			}
			assert.Equal(t, want, keys)
		})
	}
}

func TestParseFilterNamesTheWrongParameter(t *testing.T) {
	for query, want := range map[string]string{
		"code=LATE":       `filter code: got "LATE", want one of [OK OVER_LIMIT ERROR]`,
		"source=memcache": `filter source: got "memcache", want one of [local redis deny_cache lease fallback]`,
		"entry=%3Dx":      `filter entry: got "=x", want KEY or KEY=VALUE`,
		"rules=x":         `filter: got "rules", want domain, rule, code, source or entry`,
		"rule=a&rule=b":   "filter rule: got 2 values, want one",
	} {
		values, err := url.ParseQuery(query)
		require.NoError(t, err)
		_, err = ParseFilter(values)
		assert.EqualError(t, err, want)
	}
}

func TestFullBufferDropsRecords(t *testing.T) {
	hub := NewHub(time.Now, nil)
	slowSubscriber, fastSubscriber := subscribe(t, hub, Filter{}, 2), subscribe(t, hub, Filter{}, 10)
	rateLimiter := newService(t, nil, nil, hub)
	for range 5 {
		_, err := rateLimiter.ShouldRateLimit(t.Context(), request("tenant=x"))
		require.NoError(t, err)
	}
	assert.Len(t, takeRecords(slowSubscriber), 2)
	assert.EqualValues(t, 3, slowSubscriber.dropCount.Load())
	assert.Len(t, takeRecords(fastSubscriber), 5)
	assert.Zero(t, fastSubscriber.dropCount.Load())
}

func TestHubBoundsItsSubscribers(t *testing.T) {
	hub := NewHub(time.Now, nil)
	var lastSubscription *Subscription
	for range MaxSubscribers {
		lastSubscription = subscribe(t, hub, Filter{}, 1)
	}
	_, err := hub.Subscribe(Filter{}, 1)
	require.EqualError(t, err, fmt.Sprintf("live decisions: got %d subscribers, want at most %d; close another one", MaxSubscribers+1, MaxSubscribers))
	lastSubscription.Close()
	lastSubscription.Close() // changes nothing
	subscribe(t, hub, Filter{}, 1)
}

func TestCallAnsweredWithoutSubscribersDoesNotAlloc(t *testing.T) {
	hub := NewHub(time.Now, nil)
	assert.Zero(t, testing.AllocsPerRun(100, func() { hub.CallAnswered(t.Context(), nil) }))
}
