package redis

import (
	"context"
	"hash/crc32"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// redisInstance is a single Redis, the master of Sentinel, or a Cluster.
type redisInstance struct {
	name              string // addresses without secrets, for errors
	address           address
	role              Role
	openedConnections atomic.Int64 // connections that were ever opened
	client            client
	firstShard        int
	partitions        int

	inflightBatches int // of each partition; MaxInflightBatches at most

	incrForbidden atomic.Bool // the user may not run INCR

	lateBatches    atomic.Int64 // batches that may wait for a late answer
	maxLateBatches int64        // so that a connection is left for each worker
}

// addInstance adds a redisInstance, and a queue for each of its partitions.
func (l *Limiter) addInstance(ctx context.Context, s Server) error {
	a, err := parse(s)
	if err != nil {
		return err
	}
	tags := []string{""}
	if a.kind == Cluster {
		tags = hashTags(l.options.Partitions)
	}
	instance := &redisInstance{name: a.name(), address: a, role: Roles[len(l.instances)], firstShard: len(l.queues), partitions: len(tags)}
	o := a.limiterOptions(l.options)
	o.OnConnect = func(context.Context, *goredis.Conn) error {
		instance.openedConnections.Add(1)
		return nil
	}
	_, instance.inflightBatches = a.connectionsAndBatches(l.options)
	instance.maxLateBatches = int64(o.PoolSize - instance.inflightBatches*len(tags))
	instance.client = newServers(a.open(o))
	l.instances = append(l.instances, instance)
	for _, tag := range tags {
		l.queues = append(l.queues, l.startQueue(ctx, instance, keyspace(l.options.KeyPrefix+tag)))
	}
	return nil
}

// Shards returns the number of shards. A shard is a set of counters that fail together:
// a partition of the main Redis, or of the Redis for limits per second.
func (l *Limiter) Shards() int { return len(l.queues) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ShardOf returns the shard of h, from 0. All counters of a key in one Redis lie in one
// shard, so that one step charges several limits of one descriptor.
func (l *Limiter) ShardOf(h *backend.Hit) int {
	instance := l.instances[0]
	if len(l.instances) > 1 && h.Limit.Unit == limit.Second && h.Limit.Multiplier == 1 {
		instance = l.instances[1]
	}
	if instance.partitions == 1 {
		return instance.firstShard
	}
	return instance.firstShard + int(crc32.Checksum(h.Key, castagnoli)%uint32(instance.partitions))
}

// Counter returns the addresses of the Redis that has the counter of h, without secrets, and
// the key of the counter at this time.
func (l *Limiter) Counter(h *backend.Hit) (server, key string) {
	q := l.queues[l.ShardOf(h)]
	return q.instance.name, string(q.keyspace.appendCounter(nil, h, time.Now()))
}
