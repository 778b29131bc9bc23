package memcached_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/memcached"
	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/memcachedtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/limit"
)

func take(l backend.Limiter, now time.Time, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	l.Take(context.Background(), now, hits, results)
	return results
}

func TestFixedWindowIsANumberWithTheStartOfTheWindow(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}, KeyPrefix: "p:"})
	now := time.UnixMicro(1_900_000_034_500_000)
	minute := backendtest.NewLimit(t, limit.Spec{Requests: 10, Unit: limit.Minute, ChargeDenied: true})
	quarterSecond := backendtest.NewLimit(t, limit.Spec{Requests: 10, Unit: limit.Millisecond, Multiplier: 250, ChargeDenied: true})
	key := []byte("shop|tenant=acme")
	r := take(l, now, backend.Hit{Key: key, Limit: minute, N: 3}, backend.Hit{Key: key, Limit: quarterSecond, N: 4})
	assert.Equal(t, []int64{7, 6}, []int64{r[0].Remaining, r[1].Remaining})
	assert.Equal(t, "memcached", r[0].Source.String())
	assert.Equal(t, map[string]string{"p:v2:fw60:shop|tenant=acme@1900000020": "3", "p:v2:fw250ms:shop|tenant=acme@1900000034500": "4"}, readValues(t, s))

	take(l, now, backend.Hit{Key: []byte("other"), Limit: minute, N: 0})
	assert.Len(t, readValues(t, s), 2, "a peek creates no key")

	take(l, now, backend.Hit{Key: key, Limit: minute, N: 20})
	assert.Equal(t, "23", s.Get(t, "p:v2:fw60:shop|tenant=acme@1900000020"), "a denied hit is charged")
	r = take(l, now.Add(time.Minute), backend.Hit{Key: key, Limit: minute, N: 1, WindowStart: r[0].WindowStart})
	assert.Equal(t, "24", s.Get(t, "p:v2:fw60:shop|tenant=acme@1900000020"), "the hit names its window")
	assert.False(t, r[0].Allowed)
}

// readValues returns the values of all keys.
func readValues(t *testing.T, s *memcachedtest.Server) map[string]string {
	valueByKey := map[string]string{}
	for key := range s.Keys(t) {
		valueByKey[key] = s.Get(t, key)
	}
	return valueByKey
}

func TestKeysExpireAfterTheirWindow(t *testing.T) {
	t.Parallel()
	const day = 86_400
	for name, c := range map[string]struct {
		spec     limit.Spec
		jitter   time.Duration
		min, max int64 // the bounds of the remaining lifetime of the keys, in seconds
	}{
		"window of a second":     {limit.Spec{Unit: limit.Second}, 0, 1, 2},
		"window of an hour":      {limit.Spec{Unit: limit.Hour}, 0, 1, 3601},
		"state of a day":         {limit.Spec{Unit: limit.Day, Algorithm: limit.FirstHitWindow}, 0, day - 5, day + 1},
		"more than 30 days":      {limit.Spec{Unit: limit.Year, Algorithm: limit.SlidingLog}, 0, 365*day - 5, 365*day + 1},
		"ten years":              {limit.Spec{Unit: limit.Year, Multiplier: 10, Algorithm: limit.FirstHitWindow}, 0, 3650*day - 5, 3650*day + 1},
		"jitter":                 {limit.Spec{Unit: limit.Day, Algorithm: limit.FirstHitWindow}, 300 * time.Second, day - 5, day + 301},
		"jitter exceeds 30 days": {limit.Spec{Unit: limit.Month, Algorithm: limit.SlidingLog}, 300 * time.Second, 30*day - 5, 30*day + 301},
	} {
		t.Run(name, func(t *testing.T) {
			s := memcachedtest.Start(t)
			l := open(t, memcached.Options{Servers: []string{s.Addr}, Jitter: c.jitter})
			c.spec.Requests = 10
			lim := backendtest.NewLimit(t, c.spec)
			lifetimes := map[int64]bool{}
			for i := range 10 {
				require.NoError(t, take(l, time.Now(), backend.Hit{Key: []byte(strconv.Itoa(i)), Limit: lim, N: 1})[0].Err)
			}
			for key, life := range s.Keys(t) {
				assert.GreaterOrEqual(t, life, c.min, key)
				assert.LessOrEqual(t, life, c.max, key)
				lifetimes[life] = true
			}
			if c.jitter > 0 {
				assert.Greater(t, len(lifetimes), 3, "the keys expire at different times")
			}
		})
	}
}

func TestCounterIsKeptUntilItsWindowEnds(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}})
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.FirstHitWindow} {
		lim, key := backendtest.NewLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Second, Multiplier: 2}), backendtest.Key()
		start := time.Now().Truncate(time.Microsecond) // the Limiter counts whole microseconds
		end := start.Add(time.Duration(take(l, start, backend.Hit{Key: key, Limit: lim, N: 1})[0].ResetAfter) * time.Microsecond)
		for now := time.Now(); now.Before(end); now = time.Now() {
			r := take(l, now, backend.Hit{Key: key, Limit: lim, N: 1})[0]
			if time.Now().Before(end) { // memcached uses its own clock, so a hit that was delayed may reach the next window
				require.False(t, r.Allowed, a)
			}
		}
	}
}

func TestKeysThatMemcachedForbidsAreHashed(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	prefix := strings.Repeat("p", 64)
	l := open(t, memcached.Options{Servers: []string{s.Addr}, KeyPrefix: prefix})
	for _, key := range []string{"a b", "a\nb", "\x7f", strings.Repeat("x", 250), ""} {
		for _, a := range []limit.Algorithm{limit.FixedWindow, limit.TokenBucket} {
			lim := backendtest.NewLimit(t, limit.Spec{Algorithm: a, Requests: 5, Unit: limit.Day})
			r := take(l, time.Now(), backend.Hit{Key: []byte(key), Limit: lim, N: 2})[0]
			require.NoError(t, r.Err)
			assert.Equal(t, int64(3), r.Remaining)
		}
	}
	bucket := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 5, Unit: limit.Day})
	longestKey := strings.Repeat("y", 250-len(prefix+"v1:"+bucket.Tag()+":"))
	take(l, time.Now(), backend.Hit{Key: []byte(longestKey), Limit: bucket, N: 2}, backend.Hit{Key: []byte(longestKey + "y"), Limit: bucket, N: 2})
	hashedKeys := 0
	for key := range s.Keys(t) {
		require.True(t, strings.HasPrefix(key, prefix+"v"))
		if strings.Contains(key, "#") {
			hashedKeys++
		}
	}
	assert.Equal(t, 9, hashedKeys, "all but the empty key and the longest key")
}

func TestForeignValueIsAnError(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}})
	now := time.UnixMicro(1_900_000_034_500_000)
	for _, spec := range []limit.Spec{
		{Unit: limit.Minute},
		{Unit: limit.Minute, ChargeDenied: true},
		{Unit: limit.Minute, Algorithm: limit.TokenBucket},
	} {
		spec.Requests = 10
		lim := backendtest.NewLimit(t, spec)
		name := "v1:" + lim.Tag() + ":k"
		if spec.Algorithm.CountsByWindow() {
			name = "v2:" + lim.Tag() + ":k@1900000020"
		}
		s.Set(t, name, "hello")
		r := take(l, now, backend.Hit{Key: []byte("k"), Limit: lim, N: 1})[0]
		assert.ErrorIs(t, r.Err, backend.ErrUnavailable, "the fallback decides")
		assert.Equal(t, "hello", s.Get(t, name))
	}
}

func TestHoldsAreAnErrorThatOpensNoBreaker(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}})
	slotLimit := backendtest.NewLimit(t, limit.Spec{Algorithm: limit.Concurrency, Requests: 5})
	otherLimit := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	for _, allOrNone := range []bool{false, true} {
		r := take(l, time.Now(), backend.Hit{Key: backendtest.Key(), Limit: slotLimit, N: 1, AllOrNone: allOrNone}, backend.Hit{Key: backendtest.Key(), Limit: otherLimit, N: 1, AllOrNone: allOrNone})
		assert.ErrorContains(t, r[0].Err, "algorithm concurrency needs Redis")
		assert.True(t, backend.IsNotSent(r[0].Err))
		assert.Equal(t, int64(4), r[1].Remaining, "the other hit is charged")
	}
}

// TestReplicasTogetherAdmitExactlyTheLimit lets several replicas change one counter at the same time.
func TestReplicasTogetherAdmitExactlyTheLimit(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	for _, a := range limit.Algorithms() {
		if a.HasHolds() {
			continue
		}
		lim, key, now := backendtest.NewLimit(t, limit.Spec{Algorithm: a, Requests: 100, Unit: limit.Day}), backendtest.Key(), backendtest.Start()
		var admittedHits, failedHits atomic.Int64
		done := make(chan struct{})
		const replicas, calls = 3, 100
		for range replicas {
			l := open(t, memcached.Options{Servers: []string{s.Addr}})
			go func() {
				for range calls {
					r := take(l, now, backend.Hit{Key: key, Limit: lim, N: 1})[0]
					switch {
					case r.Err != nil:
						assert.Equal(t, backend.ReasonOverload, backend.ReasonOf(r.Err))
						failedHits.Add(1)
					case r.Allowed:
						admittedHits.Add(1)
					}
				}
				done <- struct{}{}
			}()
		}
		for range replicas {
			<-done
		}
		assert.LessOrEqual(t, admittedHits.Load(), int64(100), a)
		if failedHits.Load() == 0 {
			assert.Equal(t, int64(100), admittedHits.Load(), a)
		}
	}
}

func TestDeniedGroupChargesNothingIfOtherCallersChargeMeanwhile(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}})
	// Both limits charge denied hits, so another caller can charge a counter between the trial and the charge.
	largeLimit := backendtest.NewLimit(t, limit.Spec{Requests: 1000, Unit: limit.Day, ChargeDenied: true})
	smallLimit := backendtest.NewLimit(t, limit.Spec{Requests: 50, Unit: limit.Day, ChargeDenied: true})
	now := backendtest.Start()
	hits := []backend.Hit{{Key: backendtest.Key(), Limit: largeLimit, N: 1, AllOrNone: true}, {Key: backendtest.Key(), Limit: smallLimit, N: 1, AllOrNone: true}}
	var admittedCalls atomic.Int64
	done := make(chan struct{})
	const callers = 16
	for range callers {
		go func() {
			for range 10 {
				r := take(l, now, hits...)
				if r[0].Allowed && r[1].Allowed {
					admittedCalls.Add(1)
				}
				assert.Equal(t, !r[1].Allowed, r[1].DenialMayEndEarly, "other groups may be refunded")
			}
			done <- struct{}{}
		}()
	}
	for range callers {
		<-done
	}
	assert.Equal(t, int64(50), admittedCalls.Load())
	hits[0].N, hits[1].N = 0, 0
	peeks := take(l, now, hits...)
	assert.Equal(t, []int64{950, 0}, []int64{peeks[0].Remaining, peeks[1].Remaining})
}

func TestTakeEndsWithinItsBudgetWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{s.Addr}, Timeout: 100 * time.Millisecond})
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Day, ChargeDenied: true})
	hit := backend.Hit{Key: backendtest.Key(), Limit: lim, N: 1}
	require.NoError(t, take(l, time.Now(), hit)[0].Err)
	s.Pause()
	start := time.Now()
	r := take(l, time.Now(), hit)[0]
	assert.Less(t, time.Since(start), time.Second)
	require.ErrorIs(t, r.Err, backend.ErrUnavailable)
	assert.ErrorIs(t, l.Probe(t.Context(), 0), backend.ErrUnavailable)
	s.Resume()
	polltest.Until(t, 10*time.Second, func() bool { return l.Probe(t.Context(), 0) == nil })
	polltest.Until(t, 10*time.Second, func() bool {
		r := take(l, time.Now(), backend.Hit{Key: hit.Key, Limit: lim})[0]
		return r.Err == nil && r.Remaining <= 4
	})
}

func TestServerIsUsedAgainAfterItsRestart(t *testing.T) {
	t.Parallel()
	a, b := memcachedtest.Start(t), memcachedtest.Start(t)
	l := open(t, memcached.Options{Servers: []string{a.Addr, b.Addr}})
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	newHitOfShard := func(shard int) backend.Hit {
		for {
			if h := (backend.Hit{Key: backendtest.Key(), Limit: lim, N: 1}); l.ShardOf(&h) == shard {
				return h
			}
		}
	}
	hitOnA, hitOnB := newHitOfShard(0), newHitOfShard(1)
	require.Equal(t, 2, l.Shards())
	b.Kill()
	now := time.Now()
	r := take(l, now, hitOnA)
	assert.NoError(t, r[0].Err)
	assert.ErrorIs(t, take(l, now, hitOnB)[0].Err, backend.ErrUnavailable)
	assert.NoError(t, l.Probe(t.Context(), 0))
	assert.ErrorIs(t, l.Probe(t.Context(), 1), backend.ErrUnavailable)
	assert.ErrorContains(t, l.Ping(t.Context()), b.Addr)
	b.Restart(t)
	polltest.Until(t, 10*time.Second, func() bool { return l.Probe(t.Context(), 1) == nil })
	assert.NoError(t, l.Ping(t.Context()))
	assert.NoError(t, take(l, now, hitOnB)[0].Err)
}

func TestServersOfSRVRecordsAreRefreshed(t *testing.T) {
	t.Parallel()
	firstServer, secondServer := memcachedtest.Start(t), memcachedtest.Start(t)
	var currentServer atomic.Pointer[memcachedtest.Server]
	currentServer.Store(firstServer)
	o := memcached.Options{
		SRV: "_memcache._tcp.test", SRVRefresh: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		LookupSRV: func(_ context.Context, _, _, name string) (string, []*net.SRV, error) {
			host, port, _ := net.SplitHostPort(currentServer.Load().Addr)
			number, _ := strconv.Atoi(port)
			assert.Equal(t, "_memcache._tcp.test", name)
			return "", []*net.SRV{{Target: host, Port: uint16(number)}}, nil
		},
	}
	l := open(t, o)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	charge := func() { take(l, time.Now(), backend.Hit{Key: []byte("k"), Limit: lim, N: 1}) }
	charge()
	assert.NotEmpty(t, firstServer.Keys(t))
	currentServer.Store(secondServer)
	polltest.Until(t, 10*time.Second, func() bool {
		charge()
		return len(secondServer.Keys(t)) > 0
	})
}

func TestShardWithoutAServerNeedsNoProbe(t *testing.T) {
	t.Parallel()
	var lookups atomic.Int64
	l := open(t, memcached.Options{
		SRV: "_memcache._tcp.test", SRVRefresh: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		LookupSRV: func(context.Context, string, string, string) (string, []*net.SRV, error) {
			records := []*net.SRV{{Target: "127.0.0.1", Port: 1}, {Target: "127.0.0.1", Port: 2}}
			if lookups.Add(1) > 1 {
				records = records[:1]
			}
			return "", records, nil
		},
	})
	require.Equal(t, 2, l.Shards())
	polltest.Until(t, 10*time.Second, func() bool { return l.Probe(t.Context(), 1) == nil })
	assert.Error(t, l.Probe(t.Context(), 0))
}

func TestFailedLookupIsAnErrorAtTheStartAndLoggedLater(t *testing.T) {
	o := memcached.Options{SRV: "_memcache._tcp.test", SRVRefresh: time.Minute, Log: slog.New(slog.DiscardHandler), Timeout: time.Second, Connections: 1}
	o.LookupSRV = func(context.Context, string, string, string) (string, []*net.SRV, error) {
		return "", nil, errors.New("no DNS")
	}
	_, err := memcached.New(o)
	assert.EqualError(t, err, "memcached: got no SRV records of _memcache._tcp.test: no DNS")
	o.LookupSRV = func(context.Context, string, string, string) (string, []*net.SRV, error) { return "", nil, nil }
	_, err = memcached.New(o)
	assert.ErrorContains(t, err, "got no SRV records")

	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		calls := 0
		o.SRVRefresh, o.Log = time.Minute, slog.New(slog.NewTextHandler(&log, nil))
		o.LookupSRV = func(context.Context, string, string, string) (string, []*net.SRV, error) {
			if calls++; calls > 1 {
				return "", nil, errors.New("no DNS")
			}
			return "", []*net.SRV{{Target: "127.0.0.1", Port: 1}}, nil
		}
		l, err := memcached.New(o)
		require.NoError(t, err)
		time.Sleep(90 * time.Second)
		require.NoError(t, l.Close())
		synctest.Wait()
		assert.Contains(t, log.String(), "memcached servers not refreshed")
		assert.Equal(t, 1, l.Shards(), "the last servers stay")
	})
}

func TestServersOverTLSAreVerified(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t)
	pair := authority.Issue("localhost")
	files := clienttls.Files{CA: authority.File, ServerName: "localhost"}
	conf, err := files.Config()
	require.NoError(t, err)
	s := memcachedtest.StartTLS(t, pair.CertFile, pair.KeyFile, conf)
	lim := backendtest.NewLimit(t, limit.Spec{Requests: 5, Unit: limit.Day})
	hit := backend.Hit{Key: backendtest.Key(), Limit: lim, N: 1}
	assert.NoError(t, take(open(t, memcached.Options{Servers: []string{s.Addr}, TLS: conf}), time.Now(), hit)[0].Err)
	otherConf, err := clienttls.Files{CA: certtest.New(t).File, ServerName: "localhost"}.Config()
	require.NoError(t, err)
	assert.ErrorContains(t, take(open(t, memcached.Options{Servers: []string{s.Addr}, TLS: otherConf}), time.Now(), hit)[0].Err, "certificate")
}

func TestWrongOptionsAreErrors(t *testing.T) {
	for want, o := range map[string]memcached.Options{
		"want either servers or an SRV name": {},
		"want either servers":                {Servers: []string{"a:1"}, SRV: "_a._tcp.b"},
		"key prefix: got \"a b\"":            {Servers: []string{"a:1"}, KeyPrefix: "a b"},
		"at most 64 bytes":                   {Servers: []string{"a:1"}, KeyPrefix: strings.Repeat("x", 65)},
	} {
		_, err := memcached.New(o)
		assert.ErrorContains(t, err, want)
	}
}

func TestResetOfAPrefixIsAnError(t *testing.T) {
	l := open(t, memcached.Options{Servers: []string{"127.0.0.1:1"}})
	_, err := l.ResetPrefix(t.Context(), backend.KeyPrefix{}, 1, true)
	assert.ErrorContains(t, err, "can't list its keys")
}
