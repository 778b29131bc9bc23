package limit

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestLongLogDeniesAtMostATickEarlier sends hits at changing rates to a log, and compares the log with the exact history.
// The log has at least the exact hits of a window, and at most the exact hits of a window and a tick.
func TestLongLogDeniesAtMostATickEarlier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := mustNew(t, Spec{Algorithm: SlidingLog, Requests: rapid.Uint32Range(2000, 20_000).Draw(t, "requests"), Unit: Minute})
		tick := ceilDiv(l.period, logTicks)
		var s State
		var admittedCharges []charge
		now, maxEntries := int64(epoch), 0
		hitsSince := func(since int64) (n int64) {
			for i := len(admittedCharges) - 1; i >= 0 && admittedCharges[i].time > since; i-- {
				n += admittedCharges[i].n
			}
			return n
		}
		for range rapid.IntRange(2, 6).Draw(t, "phases") {
			pause := rapid.SampledFrom([]int64{1, 100, 3000, tick / 2, tick, 2 * tick, l.period / 100}).Draw(t, "pause")
			for range rapid.IntRange(1, 3000).Draw(t, "hits") {
				now += pause
				if l.Take(&s, now, 1).Allowed {
					admittedCharges = append(admittedCharges, charge{now, 1})
				}
				maxEntries = max(maxEntries, s.EntryCount())
			}
			spent := l.Spent(l.Take(&s, now, 0))
			require.GreaterOrEqual(t, spent, hitsSince(now-l.period))
			require.LessOrEqual(t, spent, hitsSince(now-l.period-tick))
			if maxEntries < exactLogEntries {
				require.Equal(t, hitsSince(now-l.period), spent, "a short log is exact")
			}
		}
		require.LessOrEqual(t, maxEntries, MaxLogEntries)
		for i, j, span := 0, 0, int64(0); j < len(admittedCharges); j++ { // span has the hits of a span as long as a window
			for span += admittedCharges[j].n; admittedCharges[i].time <= admittedCharges[j].time-l.period; i++ {
				span -= admittedCharges[i].n
			}
			require.LessOrEqual(t, span, l.max)
		}
	})
}

func TestLogOfAHugeLimitHasBoundedSize(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: SlidingLog, Requests: math.MaxUint32, Unit: Minute})
	var s State
	now := int64(epoch)
	for range 1_000_000 {
		now += 150 // two and a half windows
		l.Take(&s, now, 1)
	}
	assert.LessOrEqual(t, s.EntryCount(), MaxLogEntries)
	assert.LessOrEqual(t, cap(s.log.entries), 4*MaxLogEntries)
	tick := ceilDiv(l.period, logTicks)
	assert.InDelta(t, l.period/150, l.Spent(l.Take(&s, now, 0)), float64(tick/150+1))
}

func TestClockSetBackMovesTheLogToNow(t *testing.T) {
	l := mustNew(t, Spec{Algorithm: SlidingLog, Requests: 10, Unit: Minute})
	var s State
	for i := range int64(5) {
		l.Take(&s, epoch+i*second, 1)
	}
	now := epoch - 2*l.period
	assert.Equal(t, Result{Allowed: true, Remaining: 5, ResetAfter: l.period}, l.Take(&s, now, 0))
	assert.Equal(t, 1, s.EntryCount())
	assert.EqualValues(t, 10, l.Take(&s, now+l.period, 0).Remaining)
}
