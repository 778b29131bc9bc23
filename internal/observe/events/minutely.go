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
)

// batchObserver reports batches to the metrics, to the Recorder, and, if replicas of Redis miss one, to the log.
type batchObserver struct {
	redis.Observer // the metrics
	recorder       *live.Recorder
	log            *slog.Logger
	replicas       int
	missing        [len(redis.Roles)]minuteLog // by redis.Role
}

// Batches returns the observer of batches to Redis. Each batch waits for that number of replicas of Redis.
func (e *Events) Batches(recorder *live.Recorder, replicas int, roles ...redis.Role) redis.Observer {
	return &batchObserver{Observer: e.Metrics.Redis(roles...), recorder: recorder, log: e.Log, replicas: replicas}
}

func (o *batchObserver) BatchDone(b redis.Batch) {
	o.Observer.BatchDone(b)
	o.recorder.RedisAnswered(b.Duration)
	if !b.ReplicasMissing {
		return
	}
	if batches, isDue := o.missing[b.Role].add(); isDue {
		o.log.Warn("charges not confirmed by replicas of Redis",
			"server", b.Role.String(), "batches", batches, "replicas_wanted", o.replicas,
			"advice", "check the replicas (INFO replication) and the right +wait; until then a failover can lose charges")
	}
}

// conditionObserver is a descriptors.Observer that reports conditions to the metrics, and to the log in at most one
// line of each kind a minute.
type conditionObserver struct {
	log                         *slog.Logger
	countFailed, countNotTested func(domain string)
	failedLines, notTestedLines minuteLog
}

// Conditions returns the observer of conditions.
func (e *Events) Conditions() descriptors.Observer {
	failed, notTested := e.Metrics.Conditions()
	return &conditionObserver{log: e.Log, countFailed: failed, countNotTested: notTested}
}

func (o *conditionObserver) ExpressionFailed(domain string, d *limitsfile.Descriptor, err error) {
	o.countFailed(domain)
	if failures, isDue := o.failedLines.add(); isDue {
		o.log.Warn("expression not evaluated", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line),
			"error", err, "failures", failures, "advice", "the descriptor did not match; rls explain shows the failure of a request")
	}
}

func (o *conditionObserver) ConditionNotTested(domain string, d *limitsfile.Descriptor) {
	o.countNotTested(domain)
	if count, isDue := o.notTestedLines.add(); isDue {
		o.log.Warn("condition not tested", "domain", domain, "descriptor", d.Label(), "place", fields.FileLine(d.File, d.Line), "count", count,
			"advice", "the values are too long for the conditions, so requests are denied; let Envoy send shorter values, or make the conditions simpler")
	}
}

// minuteLog decides when a frequent event is logged: at most once a minute. It is safe for concurrent use.
type minuteLog struct {
	events atomic.Int64 // since the last line
	logged atomic.Int64 // time of the last line in nanoseconds since 1970, or 0
}

// add counts an event. If a line is due, it returns the number of events since the last line.
func (l *minuteLog) add() (events int64, isDue bool) {
	now := time.Now().UnixNano()
	l.events.Add(1)
	logged := l.logged.Load()
	if logged != 0 && now-logged < int64(time.Minute) || !l.logged.CompareAndSwap(logged, now) {
		return 0, false
	}
	return l.events.Swap(0), true
}
