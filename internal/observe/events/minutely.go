package events

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

// batchObserver reports batches to the metrics and to the Recorder. The log gets stalled batches, and batches that
// replicas of Redis have not confirmed.
type batchObserver struct {
	redis.Observer // reports to the metrics
	*Events
	recorder *live.Recorder
	replicas int

	// The index is the redis.Role.
	unconfirmedLogs [len(redis.Roles)]boundedLog
	stallLogs       [len(redis.Roles)]boundedLog
	lossLogs        [len(redis.Roles)]boundedLog
	slowestStalls   [len(redis.Roles)]atomic.Int64 // nanoseconds of the slowest stalled batch since the last line
}

// Batches returns the observer of batches to Redis. replicas is the number of replicas of Redis that confirm each batch.
func (e *Events) Batches(recorder *live.Recorder, replicas int, roles ...redis.Role) redis.Observer {
	return &batchObserver{Observer: e.Metrics.Redis(roles...), Events: e, recorder: recorder, replicas: replicas}
}

func (o *batchObserver) BatchDone(batch redis.Batch) {
	o.Observer.BatchDone(batch)
	o.recorder.RedisAnswered(batch.Duration)
	if batch.Stalled {
		o.reportStall(batch)
	}
	if !batch.ReplicasMissing {
		return
	}
	if batches, isDue := o.unconfirmedLogs[batch.Role].add(time.Minute); isDue {
		o.Log.Warn("charges not confirmed by replicas of Redis",
			"server", batch.Role.String(), "batches", batches, "replicas_wanted", o.replicas,
			"advice", "check the replicas (INFO replication) and the right +wait; while replicas do not confirm, a failover can lose charges")
	}
}

func (o *batchObserver) reportStall(batch redis.Batch) {
	o.recorder.RedisStalled()
	slowestStall := &o.slowestStalls[batch.Role]
	for oldValue := slowestStall.Load(); int64(batch.Duration) > oldValue && !slowestStall.CompareAndSwap(oldValue, int64(batch.Duration)); oldValue = slowestStall.Load() {
	}
	if batches, isDue := o.stallLogs[batch.Role].add(time.Minute); isDue {
		o.Log.Warn("Redis stands still, the network doesn't", "server", batch.Role.String(), "batches", batches,
			"slowest", time.Duration(slowestStall.Swap(0)).Round(100*time.Microsecond), "round_trip", batch.RoundTrip.Round(10*time.Microsecond),
			"advice", redis.AdviceForStalls)
	}
}

// lossLogPause is shorter than the pause between two probes of a shard, so that each loss has a line. The probes of
// several shards find a loss one after the other.
const lossLogPause = 5 * time.Second

// CountersLost implements redis.Observer.
func (o *batchObserver) CountersLost(role redis.Role, lostAll bool) {
	o.Observer.CountersLost(role, lostAll)
	o.recorder.RedisLostCounters()
	text, advice := "Redis lost its counters; limits start at 0", "look for FLUSHALL, evictions, a restart without saved data, or a failover to an empty server"
	if !lostAll {
		text, advice = "Redis lost charges; limits admit the lost hits again", "look for a failover, or for a restart with older data"
	}
	o.Add(timeline.Event{Kind: timeline.Breaker, Repeats: true, Failed: true, Text: text, Attrs: details("server", role, "advice", advice)})
	if shards, isDue := o.lossLogs[role].add(lossLogPause); isDue {
		o.Log.Error(text, "server", role.String(), "shards", shards, "advice", advice)
	}
}

// conditionObserver is a descriptors.Observer that reports conditions to the metrics and to the log. The log gets at
// most one line a minute about failed expressions, and one line about conditions that were not tested.
type conditionObserver struct {
	log                         *slog.Logger
	countFailure, countUntested func(domain string)
	failureLog, untestedLog     boundedLog
}

// Conditions returns the observer of conditions.
func (e *Events) Conditions() descriptors.Observer {
	countFailure, countUntested := e.Metrics.Conditions()
	return &conditionObserver{log: e.Log, countFailure: countFailure, countUntested: countUntested}
}

func (o *conditionObserver) ExpressionFailed(domain string, d *limitsfile.Descriptor, err error) {
	o.countFailure(domain)
	if failures, isDue := o.failureLog.add(time.Minute); isDue {
		o.log.Warn("expression not evaluated", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line),
			"error", err, "failures", failures, "advice", "the descriptor did not match; rls explain shows the failure of a request")
	}
}

func (o *conditionObserver) ConditionNotTested(domain string, d *limitsfile.Descriptor) {
	o.countUntested(domain)
	if count, isDue := o.untestedLog.add(time.Minute); isDue {
		o.log.Warn("condition not tested", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line), "count", count,
			"advice", "the values are too long for the conditions, so requests are denied; let Envoy send shorter values, or make the conditions simpler")
	}
}

// RefusedCalls returns a function that reports a call of a caller that sent too many calls. The log and the timeline get
// at most one line a minute. The timeline does not name the caller, because some viewers of the timeline may not see callers.
func (e *Events) RefusedCalls() func(caller string) {
	var refusalLog boundedLog
	return func(caller string) {
		calls, isDue := refusalLog.add(time.Minute)
		if !isDue {
			return
		}
		const text = "calls refused; a caller sent too many calls"
		e.Log.Warn(text, "setting", "MAX_CALLER_CALLS_PER_SECOND", "calls", calls, "last_caller", caller)
		e.Add(timeline.Event{Kind: timeline.Refusal, Repeats: true, Text: text, Attrs: details("calls", calls, "advice", "the list of callers shows who sends most")})
	}
}

// boundedLog bounds the log lines about a frequent event: after a line, there is no line until a pause ends. It is safe for
// concurrent use.
type boundedLog struct {
	events   atomic.Int64 // the number of events since the last line
	loggedAt atomic.Int64 // the time of the last line as Unix time in nanoseconds; 0 before the first line
}

// add counts an event. isDue reports whether the caller must log a line now. If isDue is true, events is the number of
// events since the last line.
func (l *boundedLog) add(pause time.Duration) (events int64, isDue bool) {
	now := time.Now().UnixNano()
	l.events.Add(1)
	loggedAt := l.loggedAt.Load()
	if loggedAt != 0 && now-loggedAt < int64(pause) || !l.loggedAt.CompareAndSwap(loggedAt, now) {
		return 0, false
	}
	return l.events.Swap(0), true
}
