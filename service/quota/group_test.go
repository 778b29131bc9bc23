package quota

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/limit"
	division "github.com/seed-81f232ab/rls/limit/quota"
)

var testLimit = division.Limit{Rate: 1000, Interval: 10 * second, Burst: 200, Headroom: 0.1, TTL: 15 * second, Delay: second}

// acmeKey is the key of the buckets of the tenant acme.
var acmeKey, _ = newBucketKey("shop", map[string]string{"tenant": "acme"})

// newTestStream returns a Service that does not run, and a stream of it.
func newTestStream(t *testing.T, change func(*Options)) (*Service, *stream) {
	o := newOptions(t, local.NewQuotas(), sharedLimits)
	if change != nil {
		change(&o)
	}
	s := New(o)
	s.evaluateAgainIfLimitsChanged()
	return s, &stream{client: s.clientOf("10.0.0.1"), domain: "shop", buckets: map[bucketKey]*bucket{}, wake: make(chan struct{}, 1), waitingActions: map[bucketKey]*rlqsv3.RateLimitQuotaResponse_BucketAction{}}
}

// newTestGroup returns a group of buckets with the holders 1, 2 and so on. now is the time of its last update.
func newTestGroup(now time.Time, buckets ...*bucket) *group {
	g := &group{key: "shop|tenant=acme", limit: testLimit, buckets: map[division.HolderID]*bucket{}, updatedAt: now, storeTime: 1000 * second}
	for i, b := range buckets {
		b.group, b.holder = g, division.HolderID(i+1)
		g.buckets[b.holder] = b
	}
	return g
}

// waitingStrategy returns the strategy of the only waiting action of st.
func waitingStrategy(t *testing.T, st *stream) *typev3.RateLimitStrategy {
	require.Len(t, st.waitingActions, 1)
	for _, action := range st.waitingActions {
		return action.GetQuotaAssignmentAction().GetRateLimitStrategy()
	}
	return nil
}

func TestLimitHasWholeTokensInItsInterval(t *testing.T) {
	rule := &descriptors.Rule{RuleFields: limitsfile.RuleFields{Quota: &limitsfile.Quota{}}}
	for name, c := range map[string]struct {
		requests           uint32
		unit               limit.Unit
		wantRate, interval int64 // tokens, and seconds
	}{
		"usual rate":                   {6000, limit.Minute, 6000, 60},
		"least of a minute":            {1000, limit.Minute, 1000, 60},
		"less than 1000 in a minute":   {17, limit.Minute, 1003, 59 * 60},
		"slow rate":                    {100, limit.Hour, 1000, 36_000},
		"most of a minute":             {1<<32 - 1, limit.Minute, 1<<32 - 1, 60},
		"more than 2^32 in a minute":   {1<<32 - 1, limit.Second, 1<<32 - 1, 1},
		"more than 2^32, of 2 seconds": {200_000_000, limit.Second, 200_000_000, 1},
	} {
		l := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: c.requests, Unit: c.unit})
		got := limitOf(l, rule)
		assert.Equal(t, []int64{c.wantRate, c.interval * second}, []int64{got.Rate, got.Interval}, name)
	}
}

func TestStateIsKeptUntilGrantsHaveExpiredAndTheBurstIsThereAgain(t *testing.T) {
	assert.Equal(t, (15+1+60+2)*time.Second, stateTTL(&testLimit))
	limitWithoutRate := testLimit
	limitWithoutRate.Rate, limitWithoutRate.Burst = 0, 3
	assert.Equal(t, (15+1+60+30)*time.Second, stateTTL(&limitWithoutRate))
}

func TestBucketIDHasABoundOfEntriesAndBytes(t *testing.T) {
	for name, c := range map[string]struct {
		maxEntries int
		id         map[string]string
		want       string
	}{
		"as many entries as the bound": {11, tooManyEntries(), ""},
		"one entry more":               {10, tooManyEntries(), "bucket_id: got 11 entries, want at most 10 (MAX_ENTRIES)"},
		"no bound":                     {0, tooManyEntries(), ""},
		"as many bytes as the bound":   {0, map[string]string{"key": strings.Repeat("x", maxIDBytes-len("shop")-len("key"))}, ""},
		"one byte more":                {0, map[string]string{"key": strings.Repeat("x", maxIDBytes-len("shop")-len("key")+1)}, "bucket_id: got more than 4096 bytes"},
		"long key":                     {0, map[string]string{strings.Repeat("x", maxIDBytes): ""}, "bucket_id: got more than 4096 bytes"},
	} {
		s, st := newTestStream(t, func(o *Options) { o.MaxEntries = c.maxEntries })
		b, reason := s.bucketOf(st, &rlqsv3.BucketId{Bucket: c.id}, time.Now())
		assert.Equal(t, c.want, reason, name)
		assert.Equal(t, c.want == "", b != nil, name)
	}
}

func TestBucketSumsItsReports(t *testing.T) {
	for elapsed, wantReturning := range map[time.Duration]bool{0: false, newStreamTime: false, newStreamTime + 1: true} {
		b, now := &bucket{}, time.Now()
		for range 2 {
			b.count(&rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{NumRequestsAllowed: 5, NumRequestsDenied: 2, TimeElapsed: durationpb.New(elapsed)}, now)
		}
		assert.Equal(t, []int64{14, 4}, []int64{b.requests, b.denied})
		assert.Equal(t, wantReturning, b.isReturning, elapsed)
	}
}

func TestUnknownDomainAndShadowModeAllowAll(t *testing.T) {
	for name, c := range map[string]struct {
		domain     string
		shadowMode bool
		want       fixedAnswer
	}{
		"known domain":   {"shop", false, noAnswer},
		"unknown domain": {"other", false, allowAll},
		"shadow mode":    {"shop", true, allowAll},
	} {
		s, _ := newTestStream(t, func(o *Options) { o.ShadowMode = c.shadowMode })
		key, _ := newBucketKey(c.domain, map[string]string{"tenant": "acme"})
		found, _, answer := s.match(&bucket{key: key})
		assert.Equal(t, c.want, answer, name)
		assert.Equal(t, c.want == noAnswer, found != nil, name)
	}
}

func TestGrantWithoutRateOrBurstDeniesAll(t *testing.T) {
	for grant, wantBucket := range map[division.Grant]bool{{Rate: 5, Burst: 1}: true, {Rate: 5}: false, {Burst: 1}: false, {}: false} {
		_, st := newTestStream(t, nil)
		(&bucket{stream: st, key: acmeKey}).sendGrant(grant, &testLimit)
		assert.Equal(t, wantBucket, waitingStrategy(t, st).GetTokenBucket() != nil, "%+v", grant)
	}
}

func TestOnlyAFirstReportCanBeOfAReturningEnvoy(t *testing.T) {
	for _, c := range []struct {
		isReturning bool
		reportedAt  time.Time
		want        bool
	}{{true, time.Time{}, true}, {true, time.Now(), false}, {false, time.Time{}, false}, {false, time.Now(), false}} {
		s, st := newTestStream(t, nil)
		b := &bucket{stream: st, isReturning: c.isReturning, reportedAt: c.reportedAt}
		s.joinGroup(b, "k")
		assert.Equal(t, c.want, b.isReturning, "%+v", c)
	}
}

func TestLateReportOfAHolderWaitsForTheNext(t *testing.T) {
	now := time.Now()
	newReportedBucket := func(age time.Duration, hasShare bool) *bucket {
		return &bucket{key: acmeKey, hasReport: true, reportedAt: now.Add(-age), hasShare: hasShare, requests: 7, denied: 2}
	}
	buckets := []*bucket{newReportedBucket(maxReportAge, true), newReportedBucket(maxReportAge+1, true), newReportedBucket(time.Hour, false), newReportedBucket(time.Millisecond, true)}
	u := newTestGroup(now, buckets...).collect(now)
	holders := []division.HolderID{}
	for _, r := range u.reports {
		holders = append(holders, r.Holder)
		assert.Equal(t, []int64{7, 2}, []int64{r.Requests, r.Denied})
	}
	assert.ElementsMatch(t, []division.HolderID{1, 3, 4}, holders)
	assert.Equal(t, int64(7), buckets[1].requests, "the next report has its requests")
	assert.Equal(t, now.Add(-maxReportAge), u.firstReport)
	assert.Equal(t, now, newTestGroup(now, newReportedBucket(time.Hour, false)).collect(now).firstReport, "an old report is not late")
}

func TestNewStoreFreezesUntilOldGrantsHaveExpired(t *testing.T) {
	for name, c := range map[string]struct {
		oldState   []byte
		storeAge   int64 // in microseconds
		wantFrozen bool
	}{
		"young store":          {nil, 16*second - 1, true},
		"old store":            {nil, 16 * second, false},
		"store of wrong bytes": {[]byte("x"), 3600 * second, true},
	} {
		now := time.Now()
		u := newTestGroup(now, &bucket{key: acmeKey, hasReport: true, reportedAt: now}).collect(now)
		state, _ := u.Apply(c.oldState, 1000*second, 1000*second+c.storeAge)
		assert.NotEmpty(t, state, name)
		assert.Equal(t, c.wantFrozen, u.grants[0].Rate < 100, "%s: %+v", name, u.grants)
	}
}

func TestGroupWithoutHoldersWaitsForNoExpiry(t *testing.T) {
	s, _ := newTestStream(t, nil)
	now := time.Now()
	g := newTestGroup(now)
	s.finishUpdate(&groupUpdate{group: g, now: 1000 * second}, now)
	assert.Zero(t, g.expiry)
	s.finishUpdate(&groupUpdate{group: g, now: 1000 * second, expiry: 1016 * second}, now)
	assert.Equal(t, now.Add(16*time.Second), g.expiry)
}

func TestFailedUpdateGivesItsReportsBack(t *testing.T) {
	for age, wantFallback := range map[time.Duration]bool{16 * time.Second: false, 16*time.Second + time.Microsecond: true} {
		s, st := newTestStream(t, nil)
		updatedAt := time.Now()
		b := &bucket{stream: st, key: acmeKey, requests: 3, denied: 1}
		g := newTestGroup(updatedAt, b)
		s.failUpdate(&groupUpdate{group: g, reports: []division.Report{{Holder: 1, Requests: 5, Denied: 2}}}, updatedAt.Add(age))
		assert.Equal(t, wantFallback, g.isFallback, age)
		if !wantFallback {
			assert.Equal(t, []int64{8, 3}, []int64{b.requests, b.denied})
			continue
		}
		require.Len(t, g.ownHolders, 1)
		assert.Equal(t, 1000*second+age.Microseconds(), g.ownHolders[0].JoinedAt, "the time of the store goes on")
		bucket := waitingStrategy(t, st).GetTokenBucket()
		assert.Equal(t, uint32(450), bucket.GetTokensPerFill().GetValue(), "nine tenths of half the limit")
		assert.Less(t, bucket.GetMaxTokens(), uint32(100), "less than half of the burst")
	}
}

// slowStore takes a time for each update.
type slowStore struct {
	delay time.Duration
	err   error
}

func (s slowStore) Update(_ context.Context, changes []*backend.QuotaChange) {
	time.Sleep(s.delay)
	for _, c := range changes {
		c.Err = s.err
	}
}

func TestLateAnswerOfTheStoreIsAFailure(t *testing.T) {
	for name, c := range map[string]struct {
		store                     slowStore
		wantUpdates, wantFailures uint64
	}{
		"answer in time":     {slowStore{maxUpdateTime, nil}, 1, 0},
		"late answer":        {slowStore{maxUpdateTime + 1, nil}, 0, 1},
		"error of the store": {slowStore{0, errors.New("broken")}, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, st := newTestStream(t, func(o *Options) { o.Store = c.store })
			g := newTestGroup(time.Now(), &bucket{stream: st, key: acmeKey, hasReport: true})
			s.groups[g.key] = g
			assert.Equal(t, c.wantUpdates == 1, s.update(t.Context(), []*group{g}, false), name)
			assert.Equal(t, []uint64{c.wantUpdates, c.wantFailures}, []uint64{s.Stats().Updates, s.Stats().Failures}, name)
		})
	}
}

func TestSharesNameTheAddressOfTheEnvoy(t *testing.T) {
	for want, address := range map[string]net.Addr{"10.0.0.1:4711": &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4711}, "unknown": nil} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := startReplica(t, newOptions(t, local.NewQuotas(), sharedLimits))
			ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: address}))
			p := &pipe{ctx: ctx, reports: make(chan *rlqsv3.RateLimitQuotaUsageReports), responses: make(chan *rlqsv3.RateLimitQuotaResponse, 1)}
			go func() { _ = s.StreamRateLimitQuotas(p) }()
			p.reports <- newReport(map[string]string{"tenant": "acme"}, 1)
			assert.NotEqual(t, "no answer", awaitAnswer(t, p))
			assert.Equal(t, want, s.Shares("", 1)[0].Shares[0].Envoy)
			cancel()
		})
	}
}

func TestTextOfSharesNamesOtherEnvoysAndUnconfirmedShares(t *testing.T) {
	c := CounterShares{Counter: "shop|tenant=acme", Limit: 100, OtherEnvoys: 2, OtherRate: 30, Shares: []Share{
		{Envoy: "a", DemandedRate: 80, GrantedRate: 40, EnforcedRate: 60, Reason: "x"}, {Envoy: "b", DemandedRate: 10, GrantedRate: 10, EnforcedRate: 10, Reason: "y"},
	}}
	const text = "shop|tenant=acme: 100 requests a second\n" +
		"  a asks for 80 and may admit 40: x; until it confirms this share, it may admit 60\n" +
		"  b asks for 10 and may admit 10: y\n"
	assert.Equal(t, text+"  2 Envoys that are not connected to this replica may admit 30\n", c.Text())
	c.OtherEnvoys = 0
	assert.Equal(t, text, c.Text())
}

func TestShareHasTheReasonOfItsSize(t *testing.T) {
	g := newTestGroup(time.Now())
	g.ownHolders = make([]division.Holder, 2) // the equal share is 500 of 1000
	for rate, want := range map[int64]string{
		882: "its demand fits into the limit",
		881: "the Envoys ask for more than the limit",
		800: "the Envoys ask for more than the limit",
		450: "the Envoys ask for more than the limit",
		449: "it gets more when other Envoys have confirmed smaller shares",
	} {
		h := division.Holder{Rate: rate, Burst: 1, Demands: [2]int64{900}, Interval: g.limit.Interval}
		assert.Equal(t, want, g.reasonForShare(&h), rate)
	}
	for burst, isTooSmall := range map[int64]bool{1: true, 2: false, 3: false} { // for two Envoys
		g.limit.Burst = burst
		assert.Equal(t, isTooSmall, strings.Contains(g.reasonForShare(&division.Holder{Interval: second, Demands: [2]int64{9}}), "the burst of the limit is smaller"), burst)
	}
	s, _ := newTestStream(t, nil)
	s.groups[g.key] = g
	assert.Equal(t, 2, s.Stats().Rules[0].Buckets)
}

func TestClientMayHaveAsManyHoldersAsPlacesAreFree(t *testing.T) {
	for ownHolders, isAllowed := range map[int]bool{division.MaxHolders / 2: true, division.MaxHolders/2 + 1: false} {
		s, st := newTestStream(t, nil)
		g := newTestGroup(time.Now())
		s.groups[g.key] = g
		g.otherHolders = ownHolders - 1
		st.client.holders[g.hash] = ownHolders - 1
		assert.Equal(t, isAllowed, s.joinGroup(&bucket{stream: st}, g.key), ownHolders)
	}
}

func TestDepartureEndsWhenTheLastGrantHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, st := newTestStream(t, nil)
		g := newTestGroup(time.Now())
		s.groups[g.key] = g
		for range 2 {
			b := &bucket{stream: st}
			require.True(t, s.joinGroup(b, g.key))
			s.leaveGroup(b)
			s.groups[g.key] = g
			time.Sleep(time.Second)
		}
		for wait, want := range []map[uint64]int{{g.hash: 2}, {g.hash: 1}, {}} {
			s.forgetDepartures(time.Now().Add(time.Duration(testLimit.TTL+testLimit.Delay)*time.Microsecond - 3*time.Second + time.Duration(wait)*time.Second))
			assert.Equal(t, want, st.client.holders, wait)
		}
	})
}

func TestFullLimitRefusesOnlyHoldersWithoutARate(t *testing.T) {
	for rate, isRefused := range map[int64]bool{0: true, 5: false} {
		s, st := newTestStream(t, nil)
		g := newTestGroup(time.Now(), &bucket{stream: st, key: acmeKey})
		s.send(g, []division.Grant{{Holder: 1, Rate: rate, Burst: rate}, {Holder: 2}}, make([]division.Holder, division.MaxHolders), &testLimit)
		assert.Equal(t, isRefused, s.counts.IgnoredReports == 1, rate)
		assert.Equal(t, isRefused, waitingStrategy(t, st).GetTokenBucket() == nil, rate)
	}
}
