package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
)

func TestStalledBatchIsMuchSlowerThanRoundTrip(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		roundTrip time.Duration
		batch     Batch
		want      bool
	}{
		"quick batch":                          {ms / 2, Batch{Duration: 2 * ms}, false},
		"pause of 60 ms":                       {ms / 2, Batch{Duration: 60 * ms}, true},
		"pause longer than the timeout":        {ms / 2, Batch{Duration: 200 * ms, Err: context.DeadlineExceeded}, true},
		"distant Redis":                        {60 * ms, Batch{Duration: 61 * ms}, false},
		"round trip not measured":              {0, Batch{Duration: 60 * ms}, false},
		"lost connection":                      {ms / 2, Batch{Duration: 60 * ms, Err: errors.New("reset")}, false},
		"wait for replicas that do not answer": {ms / 2, Batch{Duration: 60 * ms, HasTooFewReplicas: true}, false},
	} {
		server := &server{}
		l := &Limiter{instances: []*redisInstance{{client: &servers{singleServer: server}}}}
		if c.roundTrip > 0 {
			server.clock.add(0, c.roundTrip.Microseconds(), 0)
		}
		now := microsSinceProcessStart()
		l.cpuWatch.lastWake.Store(now)
		l.cpuWatch.lastLateWake.Store(now - time.Hour.Microseconds())
		c.batch.detectStall(l)
		assert.Equal(t, c.want, c.batch.IsStalled, name)
	}
}

func TestTimeoutsOfANearRedisAdviseNoLongerTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		roundTrip time.Duration
		err       error
		want      string
	}{
		"near Redis":                {time.Millisecond, context.DeadlineExceeded, "SLOWLOG"},
		"distant Redis":             {30 * time.Millisecond, context.DeadlineExceeded, "raise REDIS_TIMEOUT"},
		"round trip not measured":   {0, context.DeadlineExceeded, "raise REDIS_TIMEOUT"},
		"near Redis, another error": {time.Millisecond, syscall.ECONNREFUSED, "check that Redis runs, and that REDIS_URL has its address"},
	} {
		server := &server{}
		l := &Limiter{options: Options{Timeout: 50 * time.Millisecond}, instances: []*redisInstance{{client: &servers{singleServer: server}}}}
		if c.roundTrip > 0 {
			server.clock.add(0, c.roundTrip.Microseconds(), 0)
		}
		advice := l.AdviceFor(c.err)
		assert.Contains(t, advice, c.want, name)
		assert.False(t, strings.Contains(advice, "SLOWLOG") && strings.Contains(advice, "REDIS_TIMEOUT"), name)
	}
}

func TestBatchOfAStarvedProcessIsNotStalled(t *testing.T) {
	watch, now := &cpuWatch{}, microsSinceProcessStart()
	watch.lastLateWake.Store(now - time.Hour.Microseconds())
	watch.lastWake.Store(now)
	assert.False(t, watch.lackedCPUTime(time.Second))
	watch.lastLateWake.Store(now - 60_000)
	assert.True(t, watch.lackedCPUTime(70*time.Millisecond), "a late wake-up while Redis had the batch")
	assert.False(t, watch.lackedCPUTime(50*time.Millisecond), "a late wake-up before the batch")
	watch.lastWake.Store(now - 40_000)
	assert.True(t, watch.lackedCPUTime(50*time.Millisecond), "the wake-up is due")
}

func TestOnlyALateWakeUpShowsALackOfCPUTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		watch, start := &cpuWatch{}, microsSinceProcessStart()
		watch.lastWake.Store(start)
		watch.lastLateWake.Store(start - time.Hour.Microseconds())
		ctx, stop := context.WithCancel(t.Context())
		go watch.run(ctx)
		time.Sleep(time.Second)
		assert.False(t, watch.lackedCPUTime(time.Second), "each wake-up was in time")
		watch.lastWake.Store(microsSinceProcessStart() - 40_000)
		time.Sleep(wakePause)
		synctest.Wait()
		assert.True(t, watch.lackedCPUTime(wakePause+time.Millisecond), "a wake-up was late")
		stop()
	})
}

func TestOnlyStallsOfAServerThatAnswersAreFound(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		slowTrip time.Duration // of each 100th ping; the other pings take 1 ms
		err      error         // of the slow pings
		allErr   error         // of all pings
		isBusy   bool          // this process gets no CPU time
		want     Level         // empty for no finding
	}{
		"a near Redis":                     {slowTrip: ms, want: LevelNote},
		"a Redis that stands still":        {slowTrip: 100 * ms, want: LevelWarning},
		"pings without an answer":          {slowTrip: 100 * ms, err: context.DeadlineExceeded, want: LevelWarning},
		"lost connections":                 {slowTrip: 100 * ms, err: syscall.ECONNRESET, want: LevelNote},
		"a dead Redis":                     {slowTrip: ms, allErr: syscall.ECONNREFUSED},
		"a Redis that hangs":               {slowTrip: ms, allErr: context.DeadlineExceeded},
		"a process that gets no CPU time":  {slowTrip: 100 * ms, isBusy: true, want: LevelNote},
		"pings that take as long as stall": {slowTrip: minStall, want: LevelWarning},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				watch, start := &cpuWatch{}, microsSinceProcessStart()
				watch.lastWake.Store(start)
				watch.lastLateWake.Store(start - time.Hour.Microseconds())
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go watch.run(ctx)
				pings := 0
				s := &server{pipeliner: fakeServer{func(context.Context, goredis.Cmder) error {
					pings++
					if pings%100 != 0 {
						time.Sleep(ms)
						return c.allErr
					}
					time.Sleep(c.slowTrip)
					if c.isBusy {
						watch.lastLateWake.Store(microsSinceProcessStart())
					}
					return cmp.Or(c.allErr, c.err)
				}}}
				startTime := time.Now()
				f, ok := findStall(ctx, s, watch, 500*ms)
				assert.Equal(t, c.want != "", ok)
				assert.Equal(t, c.want, f.Level, f.Text)
				assert.InDelta(t, stallWatchTime.Seconds(), time.Since(startTime).Seconds(), 0.2)
			})
		})
	}
}

func TestDoctorWarnsOfTwoStallsOrOneThatReachesTheTimeout(t *testing.T) {
	const usualTrip, timeout = time.Millisecond, 50 * time.Millisecond
	for name, c := range map[string]struct {
		slowTrips []time.Duration
		want      Level
	}{
		"no stall":                       {[]time.Duration{minStall - 1, minStall - 1}, LevelNote},
		"a short stall":                  {[]time.Duration{timeout - 1}, LevelNote},
		"two short stalls":               {[]time.Duration{minStall, timeout - 1}, LevelWarning},
		"a stall as long as the timeout": {[]time.Duration{timeout}, LevelWarning},
	} {
		t.Run(name, func(t *testing.T) {
			durations := slices.Concat(c.slowTrips, slices.Repeat([]time.Duration{usualTrip}, 10))
			assert.Equal(t, c.want, describeTrips(durations, timeout).Level)
		})
	}
	assert.Equal(t, LevelNote, describeTrips([]time.Duration{timeout}, timeout).Level, "there is no other trip to compare with")
}
