package quota

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
)

const sharedLimits = `
domain: shop
descriptors:
- key: tenant
  quota: true
  rate_limit: {unit: second, requests_per_unit: 100, burst: 100, algorithm: token_bucket}
`

func putInForce(t *testing.T, store *descriptors.Store, yaml string) {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(yaml)}}, limitsfile.Options{})
	require.NoError(t, err)
	store.Set(descriptors.Compile(set))
}

func newOptions(t *testing.T, store backend.QuotaStore, yaml string) Options {
	t.Helper()
	limits := &descriptors.Store{}
	if yaml != "" {
		putInForce(t, limits, yaml)
	}
	return Options{
		Limits: limits, Store: store, FallbackRatio: 0.5, MaxBuckets: 1000, MaxEntries: 10,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// startReplica runs a replica until the test ends, or until stop is called.
func startReplica(t *testing.T, o Options) (s *Service, stop func()) {
	t.Helper()
	s = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return s, stop
}

// connect opens a stream of e to s.
func connect(t *testing.T, e *fakeEnvoy, s *Service) {
	t.Helper()
	p, closeStream, _ := openStream(t, s)
	e.connect(&pipeLink{p, closeStream})
}

// closeAll ends the streams before the replicas end.
func closeAll(envoys ...*fakeEnvoy) {
	for _, e := range envoys {
		e.link.close()
	}
}

func TestAsManyEnvoysAsTheBurstGetAGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), strings.Replace(sharedLimits, "burst: 100", "burst: 2", 1)))
		m := newMeter(100, 2)
		for range 3 {
			e := newFakeEnvoy(m, 50)
			connect(t, e, s)
			go e.run(t.Context())
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(60 * time.Second)
		requireBound(t, m, 1)
		reasons := map[string]int{}
		for _, share := range s.Shares("acme", 1)[0].Shares {
			reasons[share.Reason]++
		}
		assert.Equal(t, map[string]int{
			"the Envoys ask for more than the limit":                                             2,
			"it denies all, because the burst of the limit is smaller than the number of Envoys": 1,
		}, reasons)
	})
}

func TestEnvoysShareOneLimitByDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := local.NewQuotas()
		replicaA, _ := startReplica(t, newOptions(t, store, sharedLimits))
		replicaB, _ := startReplica(t, newOptions(t, store, sharedLimits))
		m := newMeter(100, 100)
		envoys := []*fakeEnvoy{newFakeEnvoy(m, 150), newFakeEnvoy(m, 20), newFakeEnvoy(m, 5)}
		for i, s := range []*Service{replicaA, replicaB, replicaA} {
			connect(t, envoys[i], s)
			go envoys[i].run(t.Context())
			time.Sleep(700 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95)

		assert.Empty(t, replicaA.Shares("other", 10))
		counters := replicaA.Shares("acme", 10)
		require.Len(t, counters, 1)
		assert.Equal(t, "shop|tenant=acme", counters[0].Counter)
		assert.Equal(t, &counters[0], replicaA.SharesOf("shop|tenant=acme"))
		assert.Nil(t, replicaA.SharesOf("tenant=acme"), "a part of the counter's name")
		assert.Equal(t, "shop > tenant", counters[0].Rule)
		assert.InDelta(t, 100, counters[0].Limit, 0)
		assert.Equal(t, 1, counters[0].OtherEnvoys)
		require.Len(t, counters[0].Shares, 2)
		granted := counters[0].OtherRate
		for _, share := range counters[0].Shares {
			granted += share.GrantedRate
			if share.DemandedRate > share.GrantedRate {
				assert.Equal(t, "the Envoys ask for more than the limit", share.Reason)
			} else {
				assert.Equal(t, "its demand fits into the limit", share.Reason)
			}
		}
		assert.InDelta(t, 99, granted, 1.5)

		envoys[0].setDemand(5)
		envoys[2].setDemand(150)
		time.Sleep(20 * time.Second)
		assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95, "after a swap of the demand")

		envoys[2].link.close() // the Envoy is gone
		envoys[2].setDemand(0)
		envoys[0].setDemand(150)
		time.Sleep(45 * time.Second) // its share is free after 16 s, and two reports later the others have it
		assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95, "without the third Envoy")

		connect(t, envoys[0], replicaB) // its replica is gone
		connect(t, envoys[1], replicaA)
		time.Sleep(30 * time.Second)
		assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95, "on other replicas")
		requireBound(t, m, 0)
		closeAll(envoys...)
	})
}

func TestShareOfLostEnvoyIsFreeBeforeTheNextReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		m := newMeter(100, 100)
		lostEnvoy, otherEnvoy := newFakeEnvoy(m, 150), newFakeEnvoy(m, 150)
		for _, e := range []*fakeEnvoy{otherEnvoy, lostEnvoy} { // otherEnvoy reports at 10 s, 20 s and so on, and lostEnvoy at 15 s, 25 s and so on
			e.reportInterval = 10 * time.Second
			connect(t, e, s)
			go e.run(t.Context())
			time.Sleep(5 * time.Second)
		}
		granted := func() float64 {
			for _, share := range s.Shares("acme", 10)[0].Shares {
				return share.GrantedRate // otherEnvoy is the only Envoy that is left
			}
			return 0
		}
		time.Sleep(56 * time.Second) // lostEnvoy has reported a second ago
		lostEnvoy.link.close()
		time.Sleep(15 * time.Second)
		assert.Less(t, granted(), 60.0, "the share of the lost Envoy has not expired")
		time.Sleep(3 * time.Second) // otherEnvoy has reported 4 s ago
		assert.Greater(t, granted(), 95.0)
		requireBound(t, m, 0)
		closeAll(otherEnvoy)
	})
}

var fleet = flag.Int("fleet", 200, "Envoys that reconnect at once; docs/lab/quota.md has the figures of 1,000")

// All Envoys of a replica move to another replica at the same moment, and report at the same moments from then on.
func TestHundredsOfEnvoysMayReconnectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := 10 * *fleet
		limits := strings.NewReplacer("requests_per_unit: 100,", fmt.Sprintf("requests_per_unit: %d,", rate), "burst: 100,", fmt.Sprintf("burst: %d,", rate)).Replace(sharedLimits)
		o := newOptions(t, local.NewQuotas(), limits)
		o.MaxBuckets = 10_000 // bounds the memory of all streams
		replicaA, _ := startReplica(t, o)
		replicaB, _ := startReplica(t, o)
		m := newMeter(float64(rate), float64(rate))
		envoys := make([]*fakeEnvoy, *fleet)
		for i := range envoys {
			envoys[i] = newFakeEnvoy(m, 12)
			connect(t, envoys[i], replicaA)
			go envoys[i].run(t.Context())
		}
		time.Sleep(40 * time.Second)
		assert.GreaterOrEqual(t, m.measureUse(10*time.Second), 0.95)

		updatesBefore := replicaB.Stats().Updates
		for _, e := range envoys {
			connect(t, e, replicaB)
		}
		logUse := func(duration time.Duration) float64 {
			use := m.measureUse(duration)
			t.Logf("%.0f %% of the limit used in %v", 100*use, duration)
			return use
		}
		assert.GreaterOrEqual(t, logUse(2*envoys[0].reportInterval), 0.95, "the old shares are in force")
		assert.LessOrEqual(t, replicaB.Stats().Updates-updatesBefore, uint64(5), "an update has the reports of all Envoys")
		firstUse, nextUse := logUse(10*time.Second), logUse(20*time.Second)
		assert.GreaterOrEqual(t, firstUse, 0.2, "the old shares expire, and an Envoy has no share for at most 5 s")
		assert.GreaterOrEqual(t, nextUse, 0.7, "each Envoy has a share, and a small burst")
		assert.GreaterOrEqual(t, (firstUse+2*nextUse)/3, 0.65)
		assert.GreaterOrEqual(t, logUse(30*time.Second), 0.85, "the bursts come back")
		assert.GreaterOrEqual(t, logUse(10*time.Second), 0.95)
		requireBound(t, m, 0)
		closeAll(envoys...)
	})
}

// brokenStore fails, hangs, or forgets its states.
type brokenStore struct {
	inner    atomic.Pointer[local.Quotas]
	isBroken atomic.Bool
	hangs    atomic.Bool
}

func (b *brokenStore) Update(ctx context.Context, changes []*backend.QuotaChange) {
	if b.hangs.Load() {
		<-ctx.Done()
	}
	if b.isBroken.Load() || b.hangs.Load() {
		for _, c := range changes {
			c.Err = errors.New("broken")
		}
		return
	}
	b.inner.Load().Update(ctx, changes)
}

func TestLimitHoldsWhileTheStoreFails(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs=%v", hangs), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &brokenStore{}
				store.inner.Store(local.NewQuotas())
				replicaA, _ := startReplica(t, newOptions(t, store, sharedLimits))
				replicaB, _ := startReplica(t, newOptions(t, store, sharedLimits))
				m := newMeter(100, 100)
				envoys := []*fakeEnvoy{newFakeEnvoy(m, 200), newFakeEnvoy(m, 60)}
				connect(t, envoys[0], replicaA)
				connect(t, envoys[1], replicaB)
				for _, e := range envoys {
					go e.run(t.Context())
				}
				time.Sleep(40 * time.Second)
				assert.GreaterOrEqual(t, m.measureUse(20*time.Second), 0.95)
				requireBound(t, m, 0)

				store.isBroken.Store(true)
				store.hangs.Store(hangs)
				time.Sleep(30 * time.Second)
				assert.InDelta(t, 0.98, m.measureUse(20*time.Second), 0.04, "each of two replicas divides half of the limit")

				store.inner.Store(local.NewQuotas()) // the store has lost its states
				store.isBroken.Store(false)
				store.hangs.Store(false)
				time.Sleep(40 * time.Second)
				assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95, "the store works again")
				requireBound(t, m, 100) // the fallback may admit one more burst
				closeAll(envoys...)
			})
		})
	}
}

func TestLostStatesKeepTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &brokenStore{}
		store.inner.Store(local.NewQuotas())
		replicaA, _ := startReplica(t, newOptions(t, store, sharedLimits))
		replicaB, _ := startReplica(t, newOptions(t, store, sharedLimits))
		m := newMeter(100, 100)
		envoys := []*fakeEnvoy{newFakeEnvoy(m, 200), newFakeEnvoy(m, 60), newFakeEnvoy(m, 10)}
		for i, s := range []*Service{replicaA, replicaB, replicaB} {
			connect(t, envoys[i], s)
			go envoys[i].run(t.Context())
		}
		for i := range 6 {
			time.Sleep(time.Duration(7+i) * time.Second)
			store.inner.Store(local.NewQuotas())
			envoys[i%3].setDemand(float64(50 * i))
		}
		time.Sleep(30 * time.Second)
		requireBound(t, m, 0)
		assert.GreaterOrEqual(t, m.measureUse(30*time.Second), 0.95)
		closeAll(envoys...)
	})
}

// awaitAnswer waits for the next response of p and returns the only assignment, as text.
func awaitAnswer(t *testing.T, p *pipe) string {
	t.Helper()
	select {
	case m := <-p.responses:
		require.Len(t, m.GetBucketAction(), 1)
		if m.GetBucketAction()[0].GetAbandonAction() != nil {
			return "abandon"
		}
		assignment := m.GetBucketAction()[0].GetQuotaAssignmentAction()
		assert.Equal(t, 15*time.Second, assignment.GetAssignmentTimeToLive().AsDuration())
		if b := assignment.GetRateLimitStrategy().GetTokenBucket(); b != nil {
			return fmt.Sprintf("%d of %d in %s", b.TokensPerFill.GetValue(), b.MaxTokens, b.FillInterval.AsDuration())
		}
		return assignment.GetRateLimitStrategy().GetBlanketRule().String()
	case <-time.After(10 * time.Second):
		return "no answer"
	}
}

func newReport(id map[string]string, requests uint64) *rlqsv3.RateLimitQuotaUsageReports {
	return &rlqsv3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &rlqsv3.BucketId{Bucket: id}, NumRequestsAllowed: requests, TimeElapsed: durationpb.New(0),
	}}}
}

func TestBucketsGetTheAnswerOfTheirRule(t *testing.T) {
	const rules = `
domain: shop
quota_order: [tenant, path]
descriptors:
- {key: shared, quota: true, rate_limit: {unit: minute, requests_per_unit: 6000, algorithm: token_bucket}}
- {key: slow, quota: true, rate_limit: {unit: hour, requests_per_unit: 100, burst: 10, algorithm: token_bucket}}
- {key: zero, quota: true, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: token_bucket}}
- {key: free, quota: true, rate_limit: {unlimited: true}}
- {key: shadow, quota: true, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket}}
- {key: "off", quota: true, rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, enabled: false}}
- {key: asked, rate_limit: {unit: minute, requests_per_unit: 5}}
- key: tenant
  descriptors:
  - key: path
    descriptors:
    - {key: a, quota: true, rate_limit: {unit: second, requests_per_unit: 50, algorithm: token_bucket}}
`
	for name, test := range map[string]struct {
		id   map[string]string
		want string
	}{
		"a shared limit":       {map[string]string{"shared": "x"}, "8 of 8 in 1m0s"}, // the reserve, because the store is new
		"a slow limit":         {map[string]string{"slow": "x"}, "in 10h0m0s"},
		"a limit of 0":         {map[string]string{"zero": "x"}, "DENY_ALL"},
		"no limit":             {map[string]string{"free": "x"}, "ALLOW_ALL"},
		"shadow mode":          {map[string]string{"shadow": "x"}, "ALLOW_ALL"},
		"a disabled limit":     {map[string]string{"off": "x"}, "ALLOW_ALL"},
		"a rule without quota": {map[string]string{"asked": "x"}, "ALLOW_ALL"},
		"an unknown bucket":    {map[string]string{"unknown": "x"}, "ALLOW_ALL"},
		"the order of keys":    {map[string]string{"a": "1", "path": "p", "tenant": "t"}, "in 1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := startReplica(t, newOptions(t, local.NewQuotas(), rules))
				p, closeStream, _ := openStream(t, s)
				p.reports <- newReport(test.id, 1)
				got := awaitAnswer(t, p)
				assert.Contains(t, got, test.want)
				closeStream()
			})
		})
	}
}

func TestReportIsNotAnsweredBeforeLimitsAreLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), "")
		s, _ := startReplica(t, o)
		p, closeStream, _ := openStream(t, s)
		p.reports <- newReport(map[string]string{"tenant": "a"}, 1)
		assert.Equal(t, "no answer", awaitAnswer(t, p))
		putInForce(t, o.Limits, sharedLimits)
		assert.Contains(t, awaitAnswer(t, p), "in 1m0s")
		closeStream()
	})
}

func TestChangedLimitsAreSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		s, _ := startReplica(t, o)
		p, closeStream, _ := openStream(t, s)
		id := map[string]string{"tenant": "a"}
		p.reports <- newReport(id, 1)
		oldAnswer := awaitAnswer(t, p)
		for range 10 {
			time.Sleep(5 * time.Second)
			p.reports <- newReport(id, 1000)
			oldAnswer = awaitAnswer(t, p)
		}
		for _, step := range []struct{ limits, want string }{
			{strings.ReplaceAll(sharedLimits, "100", "10"), "in 2m0s"},
			{"domain: shop", "ALLOW_ALL"},
			{sharedLimits + "  shadow_mode: false", ""},
			{sharedLimits + "  shadow_mode: true", "ALLOW_ALL"},
			{strings.ReplaceAll(sharedLimits, "requests_per_unit: 100, burst: 100", "requests_per_unit: 0"), "DENY_ALL"},
		} {
			changeTime := time.Now()
			putInForce(t, o.Limits, step.limits)
			got := awaitAnswer(t, p)
			assert.Contains(t, got, step.want, "%s: old answer %s", step.limits, oldAnswer)
			assert.Less(t, time.Since(changeTime), time.Second)
			assert.Equal(t, strings.HasSuffix(step.want, "_ALL"), len(s.Shares("", 10)) == 0, "%s: %s", step.limits, got)
		}
		closeStream()
	})
}

func TestMalformedAndTooManyBucketsAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		var log strings.Builder
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
		o.MaxBuckets = 100
		s, _ := startReplica(t, o)
		p, closeStream, _ := openStream(t, s)
		go func() {
			for range p.responses { // the client reads
			}
		}()
		for _, id := range []map[string]string{nil, {}, {"k": strings.Repeat("x", maxIDBytes)}, tooManyEntries()} {
			p.reports <- newReport(id, 1)
		}
		largeReport := &rlqsv3.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{nil}}
		for i := range 10_000 {
			largeReport.BucketQuotaUsages = append(largeReport.BucketQuotaUsages, newReport(map[string]string{"tenant": fmt.Sprint(i)}, 1<<63).BucketQuotaUsages...)
		}
		p.reports <- largeReport
		p.reports <- newReport(map[string]string{"tenant": "0"}, 1)
		time.Sleep(time.Second)
		stats := s.Stats()
		assert.Equal(t, 100, stats.Buckets)
		assert.Equal(t, uint64(4+1+9_900), stats.IgnoredReports)
		assert.Equal(t, 1, strings.Count(log.String(), "quota report ignored"), "the log has a line a minute")
		assert.Contains(t, log.String(), "bucket_id: got no entry")

		otherStream, closeOtherStream, _ := openStream(t, s)
		otherStream.reports <- newReport(map[string]string{"tenant": "z"}, 1)
		assert.NotEqual(t, "no answer", awaitAnswer(t, otherStream), "other streams are not hurt")
		closeOtherStream()
		closeStream()
		time.Sleep(time.Second)
		assert.Zero(t, s.Stats().Buckets)
		assert.Zero(t, s.Stats().Streams)
		close(p.responses)
	})
}

func tooManyEntries() map[string]string {
	id := map[string]string{}
	for i := range 11 {
		id[fmt.Sprint(i)] = "x"
	}
	return id
}

func TestStreamWithoutDomainIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOptions(t, local.NewQuotas(), sharedLimits)
		o.CheckDomain = func(_ context.Context, domain string) error {
			if domain != "shop" {
				return status.Error(codes.PermissionDenied, "not yours")
			}
			return nil
		}
		s, _ := startReplica(t, o)
		for domain, want := range map[string]codes.Code{"": codes.InvalidArgument, "other": codes.PermissionDenied} {
			p, _, ended := openStream(t, s)
			m := newReport(map[string]string{"tenant": "a"}, 1)
			m.Domain = domain
			p.reports <- m
			assert.Equal(t, want, status.Code(<-ended), domain)
		}
		p, closeStream, _ := openStream(t, s)
		p.reports <- newReport(map[string]string{"tenant": "a"}, 1)
		assert.NotEqual(t, "no answer", awaitAnswer(t, p))
		m := newReport(map[string]string{"tenant": "a"}, 1)
		m.Domain = ""
		p.reports <- m
		assert.NotEqual(t, "no answer", awaitAnswer(t, p), "the domain of the first report holds for later reports")
		closeStream()
	})
}

func TestStreamThatNeverReadsIsClosedAndHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		blockedStream, _, ended := openStream(t, s)
		start := time.Now()
		var err error
		for err == nil {
			select {
			case blockedStream.reports <- newReport(map[string]string{"tenant": "a"}, 1):
			case err = <-ended:
			}
			otherStream, closeOtherStream, _ := openStream(t, s)
			otherStream.reports <- newReport(map[string]string{"tenant": "b"}, 1)
			assert.NotEqual(t, "no answer", awaitAnswer(t, otherStream))
			closeOtherStream()
			time.Sleep(time.Second)
		}
		assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
		assert.Less(t, time.Since(start), 40*time.Second)
		assert.Greater(t, time.Since(start), maxSendTime)
		assert.Equal(t, uint64(1), s.Stats().BlockedStreams)
	})
}

func TestUnusedBucketsAreAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
		p, closeStream, _ := openStream(t, s)
		id := map[string]string{"tenant": "a"}
		p.reports <- newReport(id, 1)
		assert.NotEqual(t, "abandon", awaitAnswer(t, p))
		startTime := time.Now()
		for len(p.responses) == 0 { // an Envoy that has got the abandon action sends no more reports of the bucket
			p.reports <- newReport(id, 0)
			assert.NotEqual(t, "abandon", awaitAnswer(t, p), "the answer to a report")
			require.Less(t, time.Since(startTime), 2*idleTime)
			time.Sleep(5*time.Second + tickInterval/2) // the next report comes between two ticks
		}
		assert.Equal(t, "abandon", awaitAnswer(t, p))
		assert.InDelta(t, idleTime.Seconds(), time.Since(startTime).Seconds(), 20)
		assert.Zero(t, s.Stats().Buckets)
		closeStream()
	})
}

func TestFailureModesAnswerAllWhileTheStoreFails(t *testing.T) {
	for mode, want := range map[limit.FailureMode]typev3.RateLimitStrategy_BlanketRule{
		limit.FailAllow: typev3.RateLimitStrategy_ALLOW_ALL, limit.FailDeny: typev3.RateLimitStrategy_DENY_ALL,
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &brokenStore{}
			store.inner.Store(local.NewQuotas())
			store.isBroken.Store(true)
			o := newOptions(t, store, sharedLimits)
			o.FailureMode = mode
			s, _ := startReplica(t, o)
			p, closeStream, _ := openStream(t, s)
			id := map[string]string{"tenant": "a"}
			p.reports <- newReport(id, 1)
			assert.Equal(t, "no answer", awaitAnswer(t, p), "old assignments may still be in force")
			time.Sleep(10 * time.Second)
			assert.Equal(t, want.String(), awaitAnswer(t, p))
			assert.Equal(t, 1, s.Stats().Fallbacks)
			p.reports <- newReport(id, 1)
			assert.Equal(t, want.String(), awaitAnswer(t, p))
			store.isBroken.Store(false)
			time.Sleep(20 * time.Second)
			p.reports <- newReport(id, 1)
			assert.Equal(t, want.String(), awaitAnswer(t, p))
			assert.Contains(t, awaitAnswer(t, p), "in 1m0s", "the store works again")
			closeStream()
		})
	}
}
