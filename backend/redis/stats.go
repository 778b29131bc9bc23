package redis

import "time"

// Role is the use of a Redis.
type Role uint8

// The roles.
const (
	RoleMain      Role = iota
	RolePerSecond      // counts the limits of one second
)

// Roles lists all roles.
var Roles = [...]Role{RoleMain, RolePerSecond}

// String returns the name used in metrics and logs.
func (r Role) String() string { return [...]string{"main", "per_second"}[r] }

// ShardName returns the Redis of a shard, and the number of the shard there, from 0.
func (l *Limiter) ShardName(shard int) (role Role, partition int) {
	instance := l.queues[shard].instance
	return instance.role, shard - instance.firstShard
}

// PoolStats describes the connections to a Redis.
type PoolStats struct {
	Role        Role
	Connections int // open connections
	Idle        int // connections without a command

	Opened   int64         // connections that were ever opened
	Waits    int64         // commands that had to wait for a connection
	WaitTime time.Duration // total time of these waits
	Timeouts int64         // commands that got no connection in time

	RoundTrip time.Duration // see Limiter.RoundTrip, for this Redis
	Budget    time.Duration // see Limiter.Timeout
}

// PoolStats returns the statistics of each Redis.
func (l *Limiter) PoolStats() []PoolStats {
	var poolStats []PoolStats
	for _, instance := range l.instances {
		s := instance.client.PoolStats()
		poolStats = append(poolStats, PoolStats{
			Role: instance.role, Connections: int(s.TotalConns), Idle: int(s.IdleConns),
			Opened: instance.openedConnections.Load(), Waits: int64(s.WaitCount), WaitTime: time.Duration(s.WaitDurationNs), Timeouts: int64(s.Timeouts),
			RoundTrip: instance.client.roundTrip(), Budget: l.Timeout(),
		})
	}
	return poolStats
}

// QueuedHits returns the number of hits that wait for a batch of the shard.
func (l *Limiter) QueuedHits(shard int) int {
	q := l.queues[shard]
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hits
}
