package redis

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// A Redis that executes no commands for a while, such as during a fork or a slow command, delays single batches. A
// distant Redis delays all batches, so the measured round trip is long too.
const (
	minStall        = 20 * time.Millisecond // the least time of a stalled batch
	tripsInStall    = 10                    // the least time of a stalled batch in round trips
	wakePause       = 20 * time.Millisecond // the pause between two wake-ups of cpuWatch
	maxWakeDelay    = 10 * time.Millisecond // the longest delay of a wake-up in a process with enough CPU time
	stallWatchTime  = 2 * time.Second       // the time in which FindStalls sends pings
	stallWatchPause = 5 * time.Millisecond  // the pause between two pings
)

// AdviceForStalls says what to do about a Redis that stands still.
const AdviceForStalls = "look for slow commands (SLOWLOG GET), for other commands such as CLIENT PAUSE (INFO commandstats, CLIENT LIST), for saving (INFO persistence), and for a machine of Redis without CPU time (docs/operations.md#redis-stands-still)"

const adviceForSilence = "check that Redis runs and can be reached; " + AdviceForStalls

// AdviceFor returns the advice of the function AdviceFor. But if calls time out while the round trip is short, it does not
// advise a longer timeout.
func (l *Limiter) AdviceFor(err error) string {
	if KindOf(err) == KindTimeout && isStall(l.Timeout(), l.RoundTrip()) {
		return adviceForSilence
	}
	return AdviceFor(err)
}

func isStall(duration, roundTrip time.Duration) bool {
	return duration >= minStall && roundTrip > 0 && duration >= tripsInStall*roundTrip
}

// cpuWatch wakes up after each wakePause, to find out whether this process gets CPU time. Times are in microseconds
// since processStart.
type cpuWatch struct {
	lastWake     atomic.Int64 // the time of the last wake-up
	lastLateWake atomic.Int64 // the time of the last wake-up with a longer delay than maxWakeDelay, or 0
}

func (w *cpuWatch) run(ctx context.Context) {
	for isRunning := true; isRunning; isRunning = wait.Sleep(ctx, wakePause) {
		if now := microsSinceProcessStart(); now-w.lastWake.Swap(now) > (wakePause + maxWakeDelay).Microseconds() {
			w.lastLateWake.Store(now)
		}
	}
}

// lackedCPUTime reports whether this process has lacked CPU time in the last span of time.
func (w *cpuWatch) lackedCPUTime(span time.Duration) bool {
	now := microsSinceProcessStart()
	return now-w.lastWake.Load() > (wakePause+maxWakeDelay).Microseconds() || now-w.lastLateWake.Load() < span.Microseconds()
}

// detectStall sets IsStalled and RoundTrip, if Redis stood still during b.
func (b *Batch) detectStall(l *Limiter) {
	if b.Duration < minStall || b.HasTooFewReplicas || b.Err != nil && KindOf(b.Err) != KindTimeout {
		return
	}
	if roundTrip := l.RoundTrip(); isStall(b.Duration, roundTrip) && !l.cpuWatch.lackedCPUTime(b.Duration) {
		b.IsStalled, b.RoundTrip = true, roundTrip
	}
}

// FindStalls sends pings to each server for two seconds, and compares the slowest answer with the usual answer.
func (l *Limiter) FindStalls(ctx context.Context) []Finding {
	var findings []Finding
	for _, instance := range l.instances {
		servers, _ := l.serversOf(ctx, instance) // Check reports the error
		for _, s := range servers {
			if f, ok := findStall(ctx, s.server, &l.cpuWatch, l.Timeout()); ok {
				findings = append(findings, instance.setServer(instance.addressOf(s.server), f)...)
			}
		}
	}
	return findings
}

func findStall(ctx context.Context, s *server, w *cpuWatch, timeout time.Duration) (_ Finding, ok bool) {
	var durations []time.Duration
	hasAnswered := false
	for end := time.Now().Add(stallWatchTime); time.Now().Before(end) && wait.Sleep(ctx, stallWatchPause); {
		start := time.Now()
		commands := []goredis.Cmder{goredis.NewStatusCmd(ctx, "PING")}
		s.execute(ctx, commands)
		duration, err := time.Since(start), commands[0].Err()
		hasAnswered = hasAnswered || err == nil
		if (err == nil || KindOf(err) == KindTimeout) && (duration < minStall || !w.lackedCPUTime(duration)) {
			durations = append(durations, duration)
		}
	}
	if len(durations) == 0 || !hasAnswered { // Check reports a Redis without an answer
		return Finding{}, false
	}
	return describeTrips(durations, timeout), true
}

// describeTrips warns of two stalls or more, and of a single stall that reaches timeout, because it makes calls fail.
func describeTrips(durations []time.Duration, timeout time.Duration) Finding {
	slices.Sort(durations)
	usualTime, slowestDuration := durations[len(durations)/2], durations[len(durations)-1]
	secondSlowest := durations[max(len(durations)-2, 0)]
	f := Finding{
		Check: CheckTimeout, Level: LevelNote,
		Text: fmt.Sprintf("of %d round trips in two seconds, the usual one took %v, the slowest %v", len(durations), usualTime.Round(10*time.Microsecond), slowestDuration.Round(10*time.Microsecond)),
	}
	if isStall(slowestDuration, usualTime) && (slowestDuration >= timeout || isStall(secondSlowest, usualTime)) {
		f.Level, f.Text, f.Advice = LevelWarning, "Redis stands still, the network doesn't: "+f.Text, AdviceForStalls
	}
	return f
}
