package redis_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/limit"
)

var start = time.Now()

// testTimeout is a timeout that no test reaches, even on a busy machine.
const testTimeout = 10 * time.Second

func newLimit(tb testing.TB, s limit.Spec) *limit.Limit {
	tb.Helper()
	l, err := limit.New(s)
	require.NoError(tb, err)
	return l
}

// perDay returns a fixed_window limit of n per day that does not charge denied hits.
func perDay(tb testing.TB, n uint32) *limit.Limit {
	return newLimit(tb, limit.Spec{Requests: n, Unit: limit.Day})
}

// windowName returns the name of the current window of a counter of l.
func windowName(counter string, l *limit.Limit) string {
	period := l.Period() / 1e6
	return fmt.Sprintf("%s@%d", counter, time.Now().Unix()/period*period)
}

func hit(key string, l *limit.Limit, n int64) backend.Hit {
	return backend.Hit{Key: []byte(key), Limit: l, N: n}
}

func take(l backend.Limiter, hits ...backend.Hit) []backend.Result {
	results := make([]backend.Result, len(hits))
	l.Take(context.Background(), time.Now(), hits, results)
	return results
}

// load counts the results of callers. Each caller takes one hit after the other, until stop.
type load struct {
	admitted, failed atomic.Int64
	slowest          atomic.Int64 // nanoseconds
	longestStall     atomic.Int64 // how long the longest sleep of 1 ms took, in nanoseconds
	firstError       atomic.Pointer[error]
	stop             func()
}

func startLoad(l *redis.Limiter, lim *limit.Limit, callers, keys int) *load {
	var callerGroup sync.WaitGroup
	stopSignal := make(chan struct{})
	load := &load{}
	for i := range callers {
		callerGroup.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stopSignal:
					return
				default:
				}
				start := time.Now()
				r := take(l, hit(fmt.Sprint("key", n%keys), lim, 1))[0]
				duration := int64(time.Since(start))
				for slowest := load.slowest.Load(); duration > slowest && !load.slowest.CompareAndSwap(slowest, duration); {
					slowest = load.slowest.Load()
				}
				switch {
				case r.Err != nil:
					load.failed.Add(1)
					load.firstError.CompareAndSwap(nil, &r.Err)
				case r.Allowed:
					load.admitted.Add(1)
				}
			}
		})
	}
	callerGroup.Go(func() {
		for {
			start := time.Now()
			select {
			case <-stopSignal:
				return
			case <-time.After(time.Millisecond):
				load.longestStall.Store(max(load.longestStall.Load(), int64(time.Since(start))))
			}
		}
	})
	load.stop = sync.OnceFunc(func() { close(stopSignal); callerGroup.Wait() })
	return load
}

// requireInTime requires that each call ended within the default timeout, plus the delay of a
// busy machine.
func (l *load) requireInTime(tb testing.TB) {
	tb.Helper()
	slowest, longestStall := time.Duration(l.slowest.Load()), time.Duration(l.longestStall.Load())
	require.Less(tb, slowest, 50*time.Millisecond+slack+4*longestStall, "a sleep of a millisecond took up to %v", longestStall)
}

// requireNoErrors requires that every hit was decided.
func (l *load) requireNoErrors(tb testing.TB) {
	tb.Helper()
	if err := l.firstError.Load(); err != nil {
		tb.Fatalf("%d of %d calls failed, the first with: %v", l.failed.Load(), l.failed.Load()+l.admitted.Load(), *err)
	}
}

// totalSpent returns the hits that all keys of a load have spent.
func totalSpent(tb testing.TB, l *redis.Limiter, lim *limit.Limit, keys int) (sum int64) {
	tb.Helper()
	for i := range keys {
		r := take(l, hit(fmt.Sprint("key", i), lim, 0))[0]
		require.NoError(tb, r.Err)
		sum += lim.Max() - r.Remaining
	}
	return sum
}
