package main

import (
	"log/slog"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// unconfirmedLog logs batches that too few replicas of Redis have. It writes at most one line a
// minute for each Redis.
type unconfirmedLog struct {
	replicas int // REDIS_WAIT_REPLICAS
	log      *slog.Logger
	servers  [len(redis.Roles)]minuteLog
}

// add counts a batch.
func (u *unconfirmedLog) add(role redis.Role) {
	if batches, isDue := u.servers[role].add(); isDue {
		u.log.Warn("charges not confirmed by replicas of Redis",
			"server", role.String(), "batches", batches, "replicas_wanted", u.replicas,
			"advice", "check the replicas (INFO replication) and the right +wait; until then a failover can lose charges")
	}
}
