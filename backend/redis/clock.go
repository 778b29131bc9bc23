package redis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
)

// serverClock estimates the clock of a Redis server. It adds an offset to the time since the start of this process, so
// changes of this machine's clock have no effect.
//
// A measurement sends a TIME command. The server reads its clock between the start and the end of the command, so the
// offset lies in a range. The estimate is the middle of the shortest range of the last measurements.
type serverClock struct {
	offset      atomic.Int64 // clock of the server - time since processStart, in microseconds
	measureTime atomic.Int64 // time of the last measurement, in microseconds since processStart; 0 before the first

	mu           sync.Mutex    // guards the field below
	measurements []measurement // the newest measurement comes first
}

// measurement is the range of the possible offsets. Both numbers are in microseconds.
type measurement struct{ minOffset, maxOffset int64 }

// The constants of a serverClock. Times are in microseconds.
const (
	maxMeasurements = 8                    // the number of measurements that are kept
	measureInterval = 2 * microsPerSecond  // the least pause between two measurements; without batches, nothing is measured
	maxClockAge     = 60 * microsPerSecond // the age at which a clock must be measured before its next use
	maxDrift        = 2000                 // the largest change of the offset while nobody sets the server's clock
)

var processStart = time.Now()

// microsSinceProcessStart returns the time since processStart in microseconds. It is never 0.
func microsSinceProcessStart() int64 { return time.Since(processStart).Microseconds() + 1 }

// now returns the time of the server in microseconds since 1970.
func (c *serverClock) now() int64 { return microsSinceProcessStart() + c.offset.Load() }

func (c *serverClock) needsMeasurement() bool {
	return microsSinceProcessStart()-c.measureTime.Load() >= measureInterval
}

// isUsable reports whether the last measurement is new enough for now.
func (c *serverClock) isUsable() bool {
	measureTime := c.measureTime.Load()
	return measureTime != 0 && microsSinceProcessStart()-measureTime < maxClockAge
}

// expire makes isUsable false until the next measurement.
func (c *serverClock) expire() { c.measureTime.Store(0) }

// add adds a measurement: the server has read serverMicros between the moments start and end.
func (c *serverClock) add(start, end, serverMicros int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	newestMeasurement := measurement{serverMicros - end, serverMicros - start}
	isBeforeClockChange := func(m measurement) bool { // somebody has set the server's clock after m
		return newestMeasurement.minOffset > m.maxOffset+maxDrift || newestMeasurement.maxOffset < m.minOffset-maxDrift
	}
	if slices.ContainsFunc(c.measurements, isBeforeClockChange) {
		c.measurements = nil
	}
	c.measurements = slices.Insert(c.measurements[:min(len(c.measurements), maxMeasurements-1)], 0, newestMeasurement)
	m := c.shortestMeasurement()
	c.offset.Store(m.minOffset + (m.maxOffset-m.minOffset)/2)
	c.measureTime.Store(end)
}

// addReply adds the measurement of a TIME command that was sent at start. If the user of Redis has no right to run TIME,
// addReply uses the clock of this machine, as envoyproxy/ratelimit does.
func (c *serverClock) addReply(start int64, cmd *goredis.Cmd) error {
	now, err := microsOf(cmd)
	if KindOf(err) == KindNoPerm {
		now, err = time.Now().UnixMicro(), nil
	}
	if err == nil {
		c.add(start, microsSinceProcessStart(), now)
	}
	return err
}

// microsOf returns the reply of a TIME command, in microseconds since 1970. Redis replies with seconds and the
// microseconds of this second. Envoy's redis_proxy (1.40) replies with seconds and all microseconds since 1970.
func microsOf(cmd *goredis.Cmd) (int64, error) {
	reply, err := cmd.StringSlice()
	if err != nil {
		return 0, err
	}
	if len(reply) != 2 {
		return 0, fmt.Errorf("TIME replied %q, want seconds and microseconds", reply)
	}
	seconds, secondsErr := strconv.ParseInt(reply[0], 10, 64)
	micros, microsErr := strconv.ParseInt(reply[1], 10, 64)
	if err := cmp.Or(secondsErr, microsErr); err != nil {
		return 0, fmt.Errorf("TIME replied %q: %w", reply, err)
	}
	return seconds*microsPerSecond + micros%microsPerSecond, nil
}

const (
	defaultTimeout = 50 * time.Millisecond  // the default of Options.Timeout, and the least timeout of AutoTimeout
	maxAutoTimeout = 500 * time.Millisecond // the largest timeout of AutoTimeout
	tripsInTimeout = 3                      // a hit can wait for one trip of the previous batch, one of its own batch, and one of a redirect
)

// neededTimeout returns the least timeout for this round trip, in steps of 10 ms.
func neededTimeout(roundTrip time.Duration) time.Duration {
	const step = 10 * time.Millisecond
	return max((tripsInTimeout*roundTrip + step - 1).Truncate(step), step)
}

// isTooShort reports whether timeout is shorter than two round trips: the trip of the previous batch, for which a hit can
// wait, and the trip of its own batch.
func isTooShort(timeout, roundTrip time.Duration) bool { return timeout < 2*roundTrip }

// Timeout returns the time that a Take may use.
func (l *Limiter) Timeout() time.Duration {
	if !l.options.AutoTimeout {
		return l.options.Timeout
	}
	return time.Duration(l.autoTimeout.Load())
}

// adaptTimeout sets the timeout of AutoTimeout after a measurement of c. It returns true if the timeout is still too short
// for this measurement, because older measurements were shorter. While the timeout is too short, each batch measures c,
// until maxMeasurements new measurements have replaced the older measurements.
func (l *Limiter) adaptTimeout(c *serverClock) (isStillTooShort bool) {
	if !l.options.AutoTimeout {
		return false
	}
	l.autoTimeout.Store(int64(min(max(neededTimeout(l.RoundTrip()), defaultTimeout), maxAutoTimeout)))
	_, newestTrip := c.roundTrips()
	isStillTooShort = isTooShort(l.Timeout(), newestTrip)
	if isStillTooShort {
		c.measureTime.Add(-measureInterval) // needsMeasurement returns true until the next measurement
	}
	return isStillTooShort
}

// raiseTimeout makes the timeout of AutoTimeout long enough for the server of q, if a probe of q took longer than the
// timeout. It measures the round trip until the timeout is long enough, or until all old measurements are replaced.
func (l *Limiter) raiseTimeout(ctx context.Context, q *partitionQueue, probeTime time.Duration) {
	if !l.options.AutoTimeout || probeTime <= l.Timeout() {
		return
	}
	s, err := q.instance.client.masterOf(ctx, string(q.keyspace))
	for range maxMeasurements {
		if err != nil || s.measureClock(ctx) != nil || !l.adaptTimeout(&s.clock) {
			return
		}
	}
}

// RoundTrip returns the time of a round trip to the slowest of all servers, or 0 if none has been measured. It uses
// the shortest of the last eight round trips to each server.
func (l *Limiter) RoundTrip() time.Duration {
	slowestTrip := time.Duration(0)
	for _, instance := range l.instances {
		slowestTrip = max(slowestTrip, instance.client.roundTrip())
	}
	return slowestTrip
}

func (s *servers) roundTrip() time.Duration {
	if s.singleServer != nil {
		return s.singleServer.clock.roundTrip()
	}
	slowestTrip := time.Duration(0)
	for _, master := range s.masters.Range {
		slowestTrip = max(slowestTrip, master.(*server).clock.roundTrip())
	}
	return slowestTrip
}

// shortestMeasurement needs at least one measurement. The caller holds c.mu.
func (c *serverClock) shortestMeasurement() measurement {
	return slices.MinFunc(c.measurements, func(a, b measurement) int { return cmp.Compare(a.length(), b.length()) })
}

func (c *serverClock) roundTrip() time.Duration {
	shortestTrip, _ := c.roundTrips()
	return shortestTrip
}

// roundTrips returns the lengths of the shortest and of the newest measurement, or 0 before the first measurement.
func (c *serverClock) roundTrips() (shortestTrip, newestTrip time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.measurements) == 0 {
		return 0, 0
	}
	return c.shortestMeasurement().length(), c.measurements[0].length()
}

// length returns the duration of the TIME command: one round trip.
func (m measurement) length() time.Duration {
	return time.Duration(m.maxOffset-m.minOffset) * time.Microsecond
}

// MeasureRoundTrip measures the round trip to each server that answers before ctx ends, and returns RoundTrip.
func (l *Limiter) MeasureRoundTrip(ctx context.Context) time.Duration {
	for _, instance := range l.instances {
		servers, _ := l.serversOf(ctx, instance)
		for _, s := range servers {
			for range 2 { // the first measurement may include the opening of a connection
				_ = s.measureClock(ctx)
			}
			l.adaptTimeout(&s.clock)
		}
	}
	return l.RoundTrip()
}

// ServerTime returns the time of the Redis that has the counter of h. If Redis has not told its time lately, ok is false.
func (l *Limiter) ServerTime(ctx context.Context, h *backend.Hit, callersNow time.Time) (now time.Time, ok bool) {
	if l.options.CallersClock {
		return callersNow, true
	}
	q := l.queues[l.ShardOf(h)]
	s, err := q.instance.client.masterOf(ctx, string(q.keyspace))
	if err != nil || !s.clock.isUsable() {
		return now, false
	}
	return time.UnixMicro(s.clock.now()), true
}
