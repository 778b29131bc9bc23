package redis

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

func TestClockErrorIsAtMostHalfTheShortestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c serverClock
		offset := rapid.Int64Range(-1e15, 1e15).Draw(t, "offset")
		shortest := int64(1e9)
		for moment := int64(1); len(c.measurements) < maxMeasurements; moment += measureInterval {
			requestTime, replyTime := rapid.Int64Range(1, 50_000).Draw(t, "there"), rapid.Int64Range(1, 50_000).Draw(t, "back")
			c.add(moment, moment+requestTime+replyTime, moment+requestTime+offset)
			shortest = min(shortest, requestTime+replyTime)
			if e := c.offset.Load() - offset; max(e, -e) > shortest/2+1 {
				t.Fatalf("error %d µs, shortest round trip %d µs", e, shortest)
			}
		}
	})
}

func TestTimeReplyHasSecondsAndMicroseconds(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply []any
		want  int64 // microseconds, or 0 for an error
	}{
		{"Redis", []any{"1795477677", "929597"}, 1795477677_929597},
		{"Envoy's redis_proxy", []any{"1795477677", "1795477677929597"}, 1795477677_929597},
		{"no microseconds", []any{"1795477677"}, 0},
		{"no numbers", []any{"1795477677", "x"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := goredis.NewCmd(t.Context(), "TIME")
			cmd.SetVal(c.reply)
			got, err := microsOf(cmd)
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.want == 0, err != nil, "%v", err)
		})
	}
}

func TestClockFollowsServerWhoseClockIsSet(t *testing.T) {
	var c serverClock
	for i := range int64(5) {
		c.add(i*1000, i*1000+10, i*1000+5)
	}
	assert.Equal(t, int64(0), c.offset.Load())
	for _, offset := range []int64{3_600_000_000, -3_600_000_000} {
		c.add(10_000, 14_000, 12_000+offset)
		assert.Equal(t, offset, c.offset.Load(), "a slow measurement counts if it contradicts the older ones")
	}
}

func TestClockIsMeasuredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serverClock
		assert.False(t, c.isUsable())
		now := microsSinceProcessStart()
		c.add(now, now, now)
		assert.True(t, c.isUsable())
		assert.False(t, c.needsMeasurement())
		time.Sleep(measureInterval * time.Microsecond)
		assert.True(t, c.isUsable())
		assert.True(t, c.needsMeasurement())
		time.Sleep(maxClockAge * time.Microsecond)
		assert.False(t, c.isUsable())
		c.add(now, now, now)
		c.expire()
		assert.False(t, c.isUsable())
	})
}

// openWithSkew returns a Limiter over Redis. Its estimate of the clock of Redis is wrong by skew.
func openWithSkew(t *testing.T, db redistest.DB, skew *time.Duration) *Limiter {
	l, err := New(Options{Main: Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	s := l.instances[0].client.(*servers).singleServer
	s.pipeliner = skewedServer{s.node, skew}
	return l
}

// skewedServer is a server. Its clock seems to be wrong by skew.
type skewedServer struct {
	pipeliner
	skew *time.Duration
}

func (s skewedServer) Pipeline() goredis.Pipeliner {
	return skewedPipeline{s.pipeliner.Pipeline(), s.skew}
}

type skewedPipeline struct {
	goredis.Pipeliner
	skew *time.Duration
}

func (p skewedPipeline) Exec(ctx context.Context) ([]goredis.Cmder, error) {
	commands, err := p.Pipeliner.Exec(ctx)
	for _, cmd := range commands {
		if clock, ok := cmd.(*goredis.Cmd); ok && clock.Name() == "time" {
			micros, err := microsOf(clock)
			if err == nil {
				micros += p.skew.Microseconds()
				clock.SetVal([]any{strconv.FormatInt(micros/microsPerSecond, 10), strconv.FormatInt(micros%microsPerSecond, 10)})
			}
		}
	}
	return commands, err
}

// Replicas with wrong clocks put hits into the previous or the next window. Still, the count of each window is exact.
func TestWindowsAreExactIfClocksDiffer(t *testing.T) {
	db := redistest.Open(t)
	lim, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Hour, Multiplier: 24 * 30, ChargeDenied: true})
	require.NoError(t, err)
	period := time.Duration(lim.Period()) * time.Microsecond
	skews := []*time.Duration{new(time.Duration), new(time.Duration), new(time.Duration)}
	*skews[1], *skews[2] = period, -period
	var replicas []*Limiter
	for _, skew := range skews {
		replicas = append(replicas, openWithSkew(t, db, skew))
	}
	admitHits := func(l *Limiter) (n int) {
		for range 12 {
			results := make([]backend.Result, 1)
			l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte("key"), Limit: lim, N: 1}}, results)
			require.NoError(t, results[0].Err)
			if results[0].Allowed {
				n++
			}
			assert.Positive(t, results[0].ResetAfter)
			assert.LessOrEqual(t, results[0].ResetAfter, lim.Period())
		}
		return n
	}
	for _, l := range replicas {
		assert.Equal(t, 10, admitHits(l), "each replica sees another window")
	}
	assert.Len(t, db.Keys(t), 3)
	for i, l := range replicas {
		*skews[i] = 0
		l.instances[0].client.(*servers).singleServer.clock.expire()
		assert.Zero(t, admitHits(l), "all replicas see the same window")
	}
	client := db.Client(t)
	for _, key := range db.Keys(t) {
		ttl := client.PTTL(t.Context(), key).Val()
		assert.Positive(t, ttl)
		assert.LessOrEqual(t, ttl, period+2*10*time.Second)
	}
}

// The window of a charge can end before its refund arrives.
func TestRefundOfADeniedCallGoesToTheWindowOfItsCharge(t *testing.T) {
	db := redistest.Open(t)
	l, err := New(Options{Main: Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: 10 * time.Second, CallersClock: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	lim, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Hour})
	require.NoError(t, err)
	hits, results := []backend.Hit{{Key: []byte("key"), Limit: lim, N: 3, AllOrNone: true}}, make([]backend.Result, 1)
	spentAfterTake := func(now time.Time, n int64) int64 {
		l.Take(t.Context(), now, []backend.Hit{{Key: []byte("key"), Limit: lim, N: n}}, results)
		require.NoError(t, results[0].Err)
		return lim.Spent(results[0].Result)
	}
	firstHour := time.Now()
	secondHour := firstHour.Add(time.Hour)
	chargedRequest := l.newRequest(firstHour, time.Now(), l.options.Timeout)
	chargedRequest.add(l.queues[0], 0, &hits[0], hits[0].N)
	chargedRequest.send()
	require.NoError(t, chargedRequest.wait(t.Context()))
	require.Equal(t, int64(3), spentAfterTake(firstHour, 0))
	require.Equal(t, int64(2), spentAfterTake(secondHour, 2))

	l.refund(t.Context(), secondHour, chargedRequest, hits, results)
	assert.Zero(t, spentAfterTake(firstHour, 0))
	assert.Equal(t, int64(2), spentAfterTake(secondHour, 0))
}

// If the clocks of two replicas differ by less than the margin, both find the key near the end of its window.
func TestKeyOutlivesItsWindowByTheMargin(t *testing.T) {
	db := redistest.Open(t)
	lim, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Second, ChargeDenied: true})
	require.NoError(t, err)
	skew := new(time.Duration)
	l := openWithSkew(t, db, skew)
	results := make([]backend.Result, 1)
	l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte("key"), Limit: lim, N: 1}}, results)
	require.NoError(t, results[0].Err)
	ttl := db.Client(t).PTTL(t.Context(), db.Keys(t)[0]).Val()
	assert.Greater(t, ttl, l.options.windowMargin()-time.Second)
}

func TestTimeToLiveIsTheRestOfTheWindowWithMarginAndJitter(t *testing.T) {
	second, quarter := newLimit(t, limit.Spec{Unit: limit.Second}), newLimit(t, limit.Spec{Unit: limit.Millisecond, Multiplier: 250})
	o := &Options{}
	for micros, want := range map[int64]int64{1: 10_001, 1_000: 10_001, 1_001: 10_002, 999_999: 11_000} {
		assert.Equal(t, want, o.windowTTL(second, micros), "milliseconds for a window that ends in %d µs", micros)
	}
	assert.Equal(t, int64(60_001), (&Options{Timeout: 30 * time.Second}).windowTTL(second, 1), "two timeouts if they are longer")
	for millis, want := range map[int64]int64{1_000: 1, 1_001: 2, 2_000: 2} {
		assert.Equal(t, want, ttlSeconds(millis), "EXPIRE keeps a key as long as PEXPIRE, or longer")
	}
	o.Jitter = 24 * time.Hour
	assert.Greater(t, o.windowTTL(second, 1), int64(10_001))
	assert.Equal(t, int64(10_001), o.windowTTL(quarter, 1), "a window shorter than a second has no jitter")
}

func TestTTLTableRemembersKeysUntilItIsFull(t *testing.T) {
	table := newTTLTable(64)
	name := func(i int) []byte { return []byte{byte(i), byte(i >> 8)} }
	assert.False(t, table.contains(table.hash(name(1))))
	for i := range 32 {
		table.add(table.hash(name(i)))
		assert.True(t, table.contains(table.hash(name(i))), "the newest key is known")
	}
	keysFound := 0
	for i := range 32 {
		if table.contains(table.hash(name(i))) {
			keysFound++
		}
	}
	assert.Greater(t, keysFound, 24, "a half-full table forgets few keys")
	for i := range 10_000 {
		table.add(table.hash(name(i)))
	}
	keysFound = 0
	for i := range 10_000 {
		if table.contains(table.hash(name(i))) {
			keysFound++
		}
	}
	assert.LessOrEqual(t, keysFound, 64)
}

func TestKeysWithoutTTLAreSentUntilRedisConfirms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store ttlCommandStore
		assert.Empty(t, store.takeCommands())
		store.addUnanswered(new(redisInstance).newTTLCommand("a", 1000))
		commands := store.takeCommands()
		assert.Len(t, commands, 1)
		store.addForResend(commands)
		assert.Empty(t, store.takeCommands(), "no command is sent again at once")
		time.Sleep(resendPause)
		commands = store.takeCommands()
		assert.Len(t, commands, 1, "Redis may still execute the charge")
		time.Sleep(lateChargeTime)
		commands[0].SetErr(context.DeadlineExceeded)
		store.addForResend(commands)
		commands = store.takeCommands()
		assert.Len(t, commands, 1, "the command has failed")
		store.addForResend(commands)
		time.Sleep(resendPause)
		assert.Empty(t, store.takeCommands(), "Redis has confirmed it")
		for range maxKeysWithoutTTL + 10 {
			store.addUnanswered(new(redisInstance).newTTLCommand("a", 1000))
		}
		assert.Len(t, store.takeCommands(), maxKeysWithoutTTL)
	})
}
