package main

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// unconfirmedLog logs batches that too few replicas of Redis have. It writes at most one line a
// minute for each Redis.
type unconfirmedLog struct {
	replicas int // REDIS_WAIT_REPLICAS
	log      *slog.Logger
	servers  [len(redis.Roles)]struct {
		batches atomic.Int64 // since the last line
		logged  atomic.Int64 // time of the last line in nanoseconds since 1970, or 0
	}
}

// add counts a batch.
func (u *unconfirmedLog) add(role redis.Role) {
	s, now := &u.servers[role], time.Now().UnixNano()
	s.batches.Add(1)
	logged := s.logged.Load()
	if logged != 0 && now-logged < int64(time.Minute) || !s.logged.CompareAndSwap(logged, now) {
		return
	}
	u.log.Warn("charges not confirmed by replicas of Redis",
		"server", role.String(), "batches", s.batches.Swap(0), "replicas_wanted", u.replicas,
		"advice", "check the replicas (INFO replication) and the right +wait; until then a failover can lose charges")
}
