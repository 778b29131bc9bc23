package events

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// batchObserver reports batches to the metrics and to the Recorder. It logs batches that too few replicas of Redis
// have, in at most one line a minute for each Redis.
type batchObserver struct {
	redis.Observer // the metrics
	recorder       *live.Recorder
	log            *slog.Logger
	replicas       int
	missing        [len(redis.Roles)]minuteLog
}

// Batches returns the observer of batches to Redis. Each batch waits for that number of replicas of Redis.
func (e *Events) Batches(recorder *live.Recorder, replicas int, roles ...redis.Role) redis.Observer {
	return &batchObserver{Observer: e.Metrics.Redis(roles...), recorder: recorder, log: e.Log, replicas: replicas}
}

// BatchDone implements redis.Observer.
func (o *batchObserver) BatchDone(b redis.Batch) {
	o.Observer.BatchDone(b)
	o.recorder.RedisAnswered(b.Took)
	if !b.ReplicasMissing {
		return
	}
	if batches, isDue := o.missing[b.Role].add(); isDue {
		o.log.Warn("charges not confirmed by replicas of Redis",
			"server", b.Role.String(), "batches", batches, "replicas_wanted", o.replicas,
			"advice", "check the replicas (INFO replication) and the right +wait; until then a failover can lose charges")
	}
}
