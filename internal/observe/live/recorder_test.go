package live

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

func TestCallsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 15 {
			fixture.call("tenant=acme", "unknown=1")
		}
		fixture.call()
		counts, _, uses := fixture.options.Recorder.collect(1)
		assert.EqualValues(t, 16, counts.calls)
		assert.EqualValues(t, 5, counts.deniedCalls)
		assert.EqualValues(t, 1, counts.failedCalls)
		assert.EqualValues(t, 15, counts.decisions)
		assert.Equal(t, map[string]float64{"shop > tenant": 1.5}, uses)
		counts, _, uses = fixture.options.Recorder.collect(1)
		assert.Zero(t, counts.calls)
		assert.Empty(t, uses)
	})
}

func TestDescriptorWithSeveralLimitsIsOneKeyWithItsTightestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 7 {
			fixture.call("tenant=acme,path=/a")
		}
		fixture.tick(1)
		keys := fixture.Snapshot().Keys
		require.Len(t, keys.Hottest, 1)
		key := keys.Hottest[0]
		assert.Equal(t, "shop|tenant=acme|path=/a", key.Key)
		assert.Equal(t, "shop > tenant > path", key.Rule)
		assert.Equal(t, "5 per hour, token_bucket", key.Limit)
		assert.EqualValues(t, 5, *key.Spent)
		assert.EqualValues(t, 5, *key.Capacity)
		assert.EqualValues(t, 1, key.Share)
		require.Len(t, keys.Denied, 1)
		assert.InDelta(t, float64(key.Rate)*2/7, float64(key.DeniedRate), 1e-9)
	})
}

func TestFallbackCountsItsShareOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		fixture.redis.Up = false
		halfLimit, err := limit.New(limit.Spec{Requests: 5, Unit: limit.Minute})
		require.NoError(t, err)
		fixture.result = &backend.Result{Result: limit.Result{Allowed: true, Remaining: 1}, Source: backend.SourceFallback, Mode: limit.FailLocal, Share: halfLimit}
		fixture.call("tenant=acme")
		fixture.tick(1)
		k := fixture.Snapshot().Keys.Hottest[0]
		assert.EqualValues(t, 4, *k.Spent)
		assert.EqualValues(t, 5, *k.Capacity)
		assert.True(t, k.IsShare)

		fixture.result.Mode, fixture.result.Share = limit.FailAllow, nil
		fixture.call("tenant=other")
		fixture.tick(1)
		for _, k := range fixture.Snapshot().Keys.Hottest {
			assert.Equal(t, k.Key == "shop|tenant=other", k.Spent == nil, "nobody counts in mode allow")
		}
		assert.EqualValues(t, 1, float64(fixture.Snapshot().Figures.WithoutRedis.Now))

		fixture.redis.Up = true
		fixture.tick(1)
		for _, k := range fixture.Snapshot().Keys.Hottest {
			assert.True(t, k.Spent == nil && k.Capacity == nil && !k.IsShare, "after the outage, the share means nothing")
		}

		fixture.result = nil
		fixture.call("tenant=acme")
		fixture.tick(1)
		for _, k := range fixture.Snapshot().Keys.Hottest {
			assert.False(t, k.IsShare, "the whole limit")
		}
	})
}

func TestDenialsInShadowModeAreMarked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for range 20 {
			fixture.call("trial=x")
			fixture.call("tenant=acme")
		}
		fixture.tick(1)
		keys := fixture.Snapshot().Keys
		require.Len(t, keys.Denied, 2)
		for _, k := range keys.Denied {
			isTrial := k.Key == "shop|trial=x"
			assert.Equal(t, isTrial, k.Shadow, k.Key)
			assert.Equal(t, isTrial, k.LimitedSince == nil, "shadow mode limits no key")
		}
		assert.EqualValues(t, 20, keys.Denied[0].DeniedRate)
		assert.Equal(t, 0.25, float64(fixture.Snapshot().Figures.DeniedShare.Now), "only tenant=acme is denied")
	})
}

func TestPeeksAndRefundsAreNotHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		req := request("tenant=acme")
		req.Descriptors[0].IsNegativeHits = true
		_, err := fixture.service.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		fixture.tick(1)
		assert.Empty(t, fixture.Snapshot().Keys.Hottest)
		assert.EqualValues(t, 1, float64(fixture.Snapshot().Figures.Calls.Now))
	})
}

func TestKeysAreForgottenIfOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, func(o *Options) { o.Keys, o.Recorder = KeysOff, NewRecorder(allHits, false) })
		fixture.call("tenant=secret")
		assert.Empty(t, fixture.options.Recorder.hottestKeys.heap)
		assert.Empty(t, fixture.options.Recorder.deniedKeys.heap)
		fixture.tick(5)
		assert.Equal(t, TopKeys{Mode: KeysOff, Hottest: []Key{}, Denied: []Key{}, Unmatched: []Key{}, Callers: []Key{}, SampledShare: 1}, fixture.Snapshot().Keys)
		_, keys, _ := fixture.Rule("shop > tenant")
		assert.Empty(t, keys.Hottest)
		rules, _ := fixture.Rules("tenant")
		assert.InDelta(t, 0.1, float64(rules[0].Use), 1e-9, "the use of a rule is no key")
	})
}

// TestBusiestKeysOfSampledCallsAreFound makes ten times maxEventsPerSecond decisions, so that the sketches get a tenth
// of the calls.
func TestBusiestKeysOfSampledCallsAreFound(t *testing.T) {
	t.Parallel()
	const keys, seconds, perSecond = 1_000_000, 15, 10 * maxEventsPerSecond
	recorder, keyNumbers := NewRecorder(allHits, true), newZipf(keys, 1.1, 7)
	l, err := limit.New(limit.Spec{Requests: 1, Unit: limit.Minute})
	require.NoError(t, err)
	rule, rateLimit := &descriptors.Rule{Path: "shop > key"}, &descriptors.RateLimit{Limit: l}
	for range seconds {
		var calls sync.WaitGroup
		for range 2 {
			numbers := make([]int, perSecond/2)
			for i := range numbers {
				numbers[i] = keyNumbers.draw()
			}
			calls.Go(func() {
				for _, number := range numbers {
					random := rand.Uint64()
					s := recorder.lockStripe(int(random))
					s.calls, s.decisions = s.calls+1, s.decisions+1
					s.mu.Unlock()
					if interval := recorder.sampleInterval.Load(); uint32(random>>32)%interval == 0 {
						recorder.mu.Lock()
						recorder.addEvent(&event{rule: rule, limit: rateLimit, hits: float64(interval)}, strconv.AppendInt(nil, int64(number), 10))
						recorder.mu.Unlock()
					}
				}
			})
		}
		calls.Wait()
		counts, _, _ := recorder.collect(1)
		require.EqualValues(t, perSecond, counts.decisions)
	}
	assert.InDelta(t, 0.1, 1/float64(recorder.sampleInterval.Load()), 0.01)
	foundCount := 0
	top := recorder.hottestKeys.topEntries(20, nil)
	for i := range top {
		if number, _ := strconv.Atoi(string(top[i].key)); number < 20 {
			foundCount++
		}
	}
	assert.GreaterOrEqual(t, foundCount, 17, "a sample can swap keys near the end of the list")
	assert.InEpsilon(t, perSecond*keyNumbers.share(0), top[0].rate, 0.1)
}

// share returns the probability of number k.
func (z *zipf) share(k int) float64 {
	if k == 0 {
		return z.cumulative[0] / z.cumulative[len(z.cumulative)-1]
	}
	return (z.cumulative[k] - z.cumulative[k-1]) / z.cumulative[len(z.cumulative)-1]
}

func TestRecorderMemoryIsBoundedUnderFloodOfKeys(t *testing.T) {
	bytesBefore := heapBytes()
	recorder := NewRecorder(allHits, true)
	recorder.stripes = make([]stripe, maxStripes)
	rule, rateLimit := &descriptors.Rule{}, &descriptors.RateLimit{}
	key := make([]byte, 10*maxKeyBytes)
	for i := range 1_000_000 {
		binary.LittleEndian.PutUint64(key, uint64(i))
		recorder.addEvent(&event{rule: rule, limit: rateLimit, hits: 1, deniedHits: 1}, key)
	}
	recorder.collect(1)
	usedBytes := heapBytes() - bytesBefore
	assert.Less(t, usedBytes, 4<<20)
	t.Logf("a Recorder uses %.2f MiB after 1M random keys of %d bytes", float64(usedBytes)/(1<<20), len(key))
	assert.Len(t, recorder.hottestKeys.entries, maxSketchKeys)
	assert.Len(t, recorder.deniedKeys.entries, maxSketchKeys)
	runtime.KeepAlive(recorder)
}

// withAnsweredCall calls f with a call that the service has answered.
func (r *liveFixture) withAnsweredCall(f func(*service.Call), texts ...string) {
	rateLimiter := service.New(service.Options{
		Limits: r.store, Limiter: local.New(local.Options{MaxKeys: 10}), Observers: []service.Observer{observerFunc(f)},
	})
	_, err := rateLimiter.ShouldRateLimit(context.Background(), request(texts...))
	require.NoError(r.t, err)
}

// observerFunc is a service.Observer that is a function.
type observerFunc func(*service.Call)

func (f observerFunc) CallAnswered(_ context.Context, c *service.Call) { f(c) }

func TestCallAnsweredAllocatesNothing(t *testing.T) {
	fixture := newFixture(t, nil)
	fixture.withAnsweredCall(func(c *service.Call) {
		ctx := callerContext("10.0.0.1", &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "shop", Path: "/envoy"}}})
		assert.Zero(t, testing.AllocsPerRun(10_000, func() { fixture.options.Recorder.CallAnswered(ctx, c) }))
	}, "tenant=acme", "tenant=acme,path=/a")
}

// callerContext returns the context of a call over gRPC. cert can be nil.
func callerContext(address string, cert *x509.Certificate) context.Context {
	p := &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 4711}}
	if cert != nil {
		p.AuthInfo = credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}}
	}
	return peer.NewContext(context.Background(), p)
}

func TestCallersHaveTheirAddressAndTheNameInTheirCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		for name, test := range map[string]struct {
			calls int
			ctx   context.Context
		}{
			"URI":            {14, callerContext("10.0.0.1", &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "shop", Path: "/envoy"}}, DNSNames: []string{"no"}})},
			"DNS name":       {9, callerContext("10.0.0.2", &x509.Certificate{DNSNames: []string{"envoy.shop"}})},
			"common name":    {8, callerContext("fd00::1", &x509.Certificate{Subject: pkix.Name{CommonName: "envoy"}})},
			"no certificate": {7, callerContext("::ffff:10.0.0.3", nil)},
			"Unix socket":    {6, peer.NewContext(t.Context(), &peer.Peer{Addr: &net.UnixAddr{Name: "@"}})},
			"HTTP":           {20, t.Context()},
		} {
			for range test.calls {
				_, err := fixture.service.ShouldRateLimit(test.ctx, request("tenant="+name))
				require.NoError(t, err)
			}
		}
		fixture.tick(2)
		var texts []string
		for _, k := range fixture.Snapshot().Keys.Callers {
			texts = append(texts, fmt.Sprintf("%s: %v calls, %v denied", k.Key, k.Rate*2, k.DeniedRate*2))
		}
		assert.Equal(t, []string{
			"10.0.0.1 spiffe://shop/envoy: 14 calls, 4 denied", "10.0.0.2 envoy.shop: 9 calls, 0 denied", "fd00::1 envoy: 8 calls, 0 denied",
			"10.0.0.3: 7 calls, 0 denied", "Unix socket: 6 calls, 0 denied",
		}, texts)
		assert.Regexp(t, "^#[0-9a-f]{16}$", fixture.hashedKeys(fixture.Snapshot().Keys).Callers[0].Key)
	})
}

func BenchmarkAnswered(b *testing.B) {
	for _, interval := range []uint32{1, 10} {
		b.Run(fmt.Sprintf("one of %d calls sampled", interval), func(b *testing.B) {
			fixture := newFixture(b, nil)
			fixture.options.Recorder.sampleInterval.Store(interval)
			fixture.withAnsweredCall(func(c *service.Call) {
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						fixture.options.Recorder.CallAnswered(context.Background(), c)
					}
				})
			}, "tenant=acme")
		})
	}
}

func TestErrorOfAQuantileIsAtMostOneBucket(t *testing.T) {
	t.Parallel()
	var h histogram
	assert.False(t, h.quantile(0.5, new(histogram), 0).IsKnown())
	for i := 1; i <= 1000; i++ {
		h[bucketOf(time.Duration(i)*time.Millisecond)]++
	}
	for q, want := range map[float64]float64{0.01: 0.01, 0.5: 0.5, 0.99: 0.99, 1: 1} {
		assert.InEpsilon(t, want, float64(h.quantile(q, new(histogram), 0)), 0.13, "%v", q)
	}
	for _, d := range []time.Duration{-1, 0, 1, 1023, 1024, 1025, time.Second, 20 * time.Second, time.Hour} {
		bucket := bucketOf(d)
		assert.GreaterOrEqual(t, max(d, 0), bucketStart(bucket), d)
		if bucket+1 < histogramBuckets {
			assert.Less(t, d, bucketStart(bucket+1), d)
		}
	}
}

func TestUnknownDomainWithManyCallsIsAWarning(t *testing.T) {
	keys := []Key{{Rule: "bank > a", Limit: "no rule", Rate: 9}, {Rule: "shopp > a", Limit: "unknown domain", Rate: 2}}
	state := State{Limits: Limits{Loaded: true, Domains: []string{"shop"}}}
	describe := func() (text string) {
		state.describeUnknownDomain(keys, func(_ Level, part string) { text += part })
		return text
	}
	assert.Equal(t, "calls name the domain shopp, which has no limits; the limits name shop", describe())
	keys[1].Rate = 0.5
	assert.Empty(t, describe())
	keys[1].Rate, state.Limits.Domains = 2, []string{"shop", "shopp"}
	assert.Empty(t, describe(), "the domain came with a reload")
}

func TestDescriptorsWithoutARuleAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		requestWithUnknownDomain := request("tenant=acme")
		requestWithUnknownDomain.Domain = "shp\u202e"
		for range 5 {
			for range 3 {
				fixture.call("tennant=<b>,path=/x", "tenant=acme")
			}
			_, err := fixture.service.ShouldRateLimit(t.Context(), requestWithUnknownDomain)
			require.NoError(t, err)
			fixture.call("free=1") // its rule is unlimited
			fixture.tick(1)
		}
		snapshot := fixture.Snapshot()
		assert.Equal(t, Warning, snapshot.State.Level)
		assert.Contains(t, snapshot.State.Headline, "Calls name the domain shp%E2%80%AE, which has no limits")
		assert.EqualValues(t, 4, snapshot.Figures.Unmatched.Now)
		assert.Equal(t, []Value{4}, snapshot.Figures.Unmatched.Points)
		require.Len(t, snapshot.Keys.Unmatched, 2)
		firstKey, secondKey := snapshot.Keys.Unmatched[0], snapshot.Keys.Unmatched[1]
		assert.InDelta(t, 0.75, float64(firstKey.Share), 1e-9)
		firstKey.Share, secondKey.Share = 0, 0
		assert.Equal(t, Key{Key: "shop|tennant=<b>|path=/x", Rule: "shop > tennant > path", Limit: "no rule", Rate: 3}, firstKey)
		assert.Equal(t, Key{Key: "shp%E2%80%AE|tenant=acme", Rule: "shp%E2%80%AE > tenant", Limit: "unknown domain", Rate: 1}, secondKey)

		public := fixture.hashedKeys(fixture.Snapshot().Keys).Unmatched[0]
		assert.Regexp(t, "^#[0-9a-f]{16}$", public.Key)
		assert.Equal(t, "shop > tennant > path", public.Rule)

		fixture.tick(1000)
		snapshot = fixture.Snapshot()
		assert.False(t, snapshot.Figures.Unmatched.HadTraffic())
		assert.Empty(t, snapshot.Keys.Unmatched)
	})
}

func TestExamplesAreHiddenIfKeysAreOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, func(o *Options) { o.Keys, o.Recorder = KeysOff, NewRecorder(allHits, false) })
		fixture.call("tennant=secret")
		assert.Empty(t, fixture.options.Recorder.examples.heap)
		fixture.tick(1)
		snapshot := fixture.Snapshot()
		assert.EqualValues(t, 1, snapshot.Figures.Unmatched.Now)
		assert.Empty(t, snapshot.Keys.Unmatched)
	})
}

func TestFloodOfDescriptorsWithoutARuleIsBounded(t *testing.T) {
	fixture := newFixture(t, nil)
	recorder := fixture.options.Recorder
	bytesBefore := heapBytes()
	for i := range 20_000 {
		fixture.call(fmt.Sprintf("x%d=%s", i, strings.Repeat("ü", 10*maxKeyBytes)), "common=1")
	}
	recorder.collect(1)
	assert.Less(t, heapBytes()-bytesBefore, 1<<20)
	assert.EqualValues(t, 10, recorder.sampleInterval.Load(), "the sketches get one of ten calls from now on")
	assert.Len(t, recorder.examples.entries, maxExampleKeys)
	examples := fixture.topKeys(nil).Unmatched
	require.Len(t, examples, maxExamples)
	assert.Equal(t, "shop|common=1", examples[0].Key)
	for _, e := range recorder.examples.heap {
		assert.LessOrEqual(t, len(e.key), maxKeyBytes)
	}
	fixture.withAnsweredCall(func(c *service.Call) {
		assert.Zero(t, testing.AllocsPerRun(1000, func() { recorder.CallAnswered(t.Context(), c) }))
	}, "nothing="+strings.Repeat("x", 1000))
}

func TestKeyHasTheSameNumbersInEachList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		allowedResult, deniedResult := &backend.Result{Result: limit.Result{Allowed: true, Remaining: 1}}, &backend.Result{}
		for range 10 {
			for i := range 12 {
				fixture.result = allowedResult
				if i >= 4 {
					fixture.result = deniedResult
				}
				fixture.call("tenant=acme")
			}
			fixture.tick(1)
		}
		keys := fixture.Snapshot().Keys
		require.Len(t, keys.Hottest, 1)
		assert.EqualValues(t, 12, keys.Hottest[0].Rate)
		assert.EqualValues(t, 8, keys.Hottest[0].DeniedRate)
		assert.Equal(t, keys.Hottest, keys.Denied)
	})
}

func TestLimitedKeysSaySinceWhenAndForHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		deniedKey := func() Key {
			keys := fixture.Snapshot().Keys
			require.Len(t, keys.Denied, 1)
			return keys.Denied[0]
		}
		utc := func(t time.Time) *time.Time { return new(t.UTC()) }
		windowEnd := time.Now().Truncate(time.Minute).Add(time.Minute)
		fixture.tick(2)
		for range 11 {
			fixture.call("tenant=acme")
		}
		start := time.Now()
		fixture.tick(3)
		fixture.call("tenant=acme")
		fixture.tick(1)
		assert.Equal(t, utc(start), deniedKey().LimitedSince, "the first denial of several")
		assert.Equal(t, utc(windowEnd), deniedKey().PassesAt)

		time.Sleep(time.Until(windowEnd))
		fixture.call("tenant=acme")
		fixture.tick(1)
		assert.Nil(t, deniedKey().LimitedSince, "the last denial is long ago, and a hit has passed")

		for range 10 {
			fixture.call("tenant=acme")
		}
		newStart := time.Now()
		fixture.tick(1)
		assert.Equal(t, utc(newStart), deniedKey().LimitedSince, "a new denial")
	})
}

func TestKeyIsNotLimitedAfterLimitsChangeOrCountersAreReset(t *testing.T) {
	for name, end := range map[string]func(f *liveFixture, limitsSince *time.Time){
		"limits change":   func(_ *liveFixture, limitsSince *time.Time) { *limitsSince = time.Now() },
		"counters reset":  func(f *liveFixture, _ *time.Time) { f.options.Recorder.CountersReset() },
		"Redis loses all": func(f *liveFixture, _ *time.Time) { f.options.Recorder.RedisLostCounters() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var limitsSince time.Time
				fixture := newFixture(t, func(o *Options) { o.Limits = func() Limits { return Limits{Source: "file", Since: &limitsSince} } })
				isLimited := func() bool {
					fixture.tick(1)
					return fixture.Snapshot().Keys.Denied[0].LimitedSince != nil
				}
				for range 11 {
					fixture.call("tenant=acme")
				}
				require.True(t, isLimited())
				end(fixture, &limitsSince)
				assert.False(t, isLimited())
				fixture.call("tenant=acme")
				assert.True(t, isLimited(), "a new denial")
			})
		})
	}
}

func TestHitsBeyondTheLimitNeverPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newFixture(t, nil)
		req := request("tenant=acme")
		req.HitsAddend = 11
		_, err := fixture.service.ShouldRateLimit(t.Context(), req)
		require.NoError(t, err)
		fixture.tick(1)
		deniedResult := fixture.Snapshot().Keys.Denied
		require.Len(t, deniedResult, 1)
		assert.NotNil(t, deniedResult[0].LimitedSince)
		assert.Nil(t, deniedResult[0].PassesAt)
		fixture.tick(10)
		assert.Nil(t, fixture.Snapshot().Keys.Denied[0].LimitedSince, "nobody waits")
	})
}
