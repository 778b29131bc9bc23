package redis

import (
	"context"
	"crypto/rand"
	"hash/crc32"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// redisInstance is a single Redis, the master of Sentinel, or a Cluster.
type redisInstance struct {
	name              string // the addresses without secrets, for errors
	address           address
	role              Role
	openedConnections atomic.Int64 // connections that were ever opened
	client            client
	masterInUse       atomic.Pointer[string] // the address of the master of the last connection; only with Sentinel
	firstShard        int                    // the number of the shard of its first partition; the shards of its other partitions follow
	partitions        int

	maxInflightBatches int // the most batches of a partition in flight

	isIncrForbidden atomic.Bool // the user has no right to run INCR
	isSetForbidden  atomic.Bool // the user has no right to run SET or GET, so rls sends INCRBY and EXPIRE instead

	watchedBatches    atomic.Int64 // the batches in flight that wait for late answers after their deadline
	maxWatchedBatches int64        // the bound of watchedBatches; each worker needs another connection
}

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
	_, instance.maxInflightBatches = a.connectionsAndBatches(l.options)
	instance.maxWatchedBatches = int64(o.PoolSize - instance.maxInflightBatches*len(tags))
	c := a.open(o)
	if a.kind == Sentinel {
		c.AddHook(masterHook{instance}) // not a Dialer, which would see connections to Sentinels too
	}
	instance.client = newServers(c)
	l.instances = append(l.instances, instance)
	for _, tag := range tags {
		l.queues = append(l.queues, l.startQueue(ctx, instance, keyspace(l.options.KeyPrefix+tag)))
	}
	return nil
}

// masterHook is a hook of go-redis that remembers the address of each new connection to the master.
type masterHook struct{ *redisInstance }

func (h masterHook) DialHook(dial goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			h.masterInUse.Store(new(conn.RemoteAddr().String()))
		}
		return conn, err
	}
}

func (masterHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (masterHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// Shards returns the number of shards. A shard is a set of counters that fail together: a partition of the main Redis,
// or a partition of the Redis for limits per second.
func (l *Limiter) Shards() int { return len(l.queues) }

var castagnoliTable = crc32.MakeTable(crc32.Castagnoli)

// ShardOf returns the shard of h, from 0. In one Redis, all counters of a key are in the same shard.
func (l *Limiter) ShardOf(h *backend.Hit) int {
	instance := l.instances[0]
	if len(l.instances) > 1 && h.Limit.Unit == limit.Second && h.Limit.Multiplier == 1 {
		instance = l.instances[1]
	}
	if instance.partitions == 1 {
		return instance.firstShard
	}
	return instance.firstShard + partitionOf(h.Key, instance.partitions)
}

func partitionOf(key []byte, partitions int) int {
	return int(crc32.Checksum(key, castagnoliTable) % uint32(partitions))
}

// Counter returns the name of the Redis that has the counter of h, and the current key of the counter in this Redis.
func (l *Limiter) Counter(h *backend.Hit) (server, key string) {
	q := l.queues[l.ShardOf(h)]
	return q.instance.name, string(q.keyspace.appendCounter(nil, h, time.Now()))
}

// Role is the use of a Redis.
type Role uint8

// The roles of a Redis.
const (
	RoleMain      Role = iota
	RolePerSecond      // counts the limits of one second
	RoleGlobal         // divides limits among regions
)

// Roles lists the roles of the Redis servers that count.
var Roles = [...]Role{RoleMain, RolePerSecond}

// String returns the name used in metrics and logs.
func (r Role) String() string { return [...]string{"main", "per_second", "global"}[r] }

// RoleAndPartition returns the Redis of a shard, and the number of the shard in this Redis, from 0.
func (l *Limiter) RoleAndPartition(shard int) (role Role, partition int) {
	instance := l.queues[shard].instance
	return instance.role, shard - instance.firstShard
}

// PoolStats describes the connections to a Redis.
type PoolStats struct {
	Role            Role
	Connections     int // open connections
	IdleConnections int // open connections that no command uses

	OpenedConnections  int64         // connections that were ever opened
	ConnectionWaits    int64         // commands that had to wait for a connection
	ConnectionWaitTime time.Duration // the total time of the ConnectionWaits
	ConnectionTimeouts int64         // commands that got no connection in time

	RoundTrip time.Duration // the time of a round trip to the slowest server of this Redis
	Budget    time.Duration // the budget of a Take
}

// PoolStats returns the statistics of each Redis.
func (l *Limiter) PoolStats() []PoolStats {
	var poolStats []PoolStats
	for _, instance := range l.instances {
		s := instance.client.PoolStats()
		poolStats = append(poolStats, PoolStats{
			Role: instance.role, Connections: int(s.TotalConns), IdleConnections: int(s.IdleConns),
			OpenedConnections: instance.openedConnections.Load(), ConnectionWaits: int64(s.WaitCount),
			ConnectionWaitTime: time.Duration(s.WaitDurationNs), ConnectionTimeouts: int64(s.Timeouts),
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
	return q.hitCount
}

// probes has the hit that each probe of this process charges. Each shard has a counter of this hit. The count becomes
// smaller only if Redis loses the counter, or when the day ends.
type probes struct {
	hit    backend.Hit
	shards []probedShard
}

type probedShard struct {
	mu              sync.Mutex
	lastProbe       probeCount // the count after the last successful probe; zero before the first probe
	hasKeptCounters bool       // the result of HasKeptCounters
}

type probeCount struct {
	count  int64
	dayEnd time.Time // the end of the window of count
}

func (s *probedShard) lastCount() probeCount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastProbe
}

// recordProbe records newCount, the count after a probe. oldCount is lastCount before the probe. recordProbe reports whether
// the shard has lost its counters. If several probes find the same loss, only one of them reports the loss.
func (s *probedShard) recordProbe(oldCount, newCount probeCount) (hasLostCounters bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isNewDay := newCount.dayEnd.Sub(oldCount.dayEnd).Abs() > 12*time.Hour
	s.hasKeptCounters = oldCount.count > 0 && newCount.count > oldCount.count
	hasLostCounters = oldCount.count > 0 && !s.hasKeptCounters && !isNewDay && s.lastProbe == oldCount
	if s.lastProbe == oldCount || newCount.count > s.lastProbe.count {
		s.lastProbe = newCount
	}
	return hasLostCounters
}

func newProbes(shards int) *probes {
	l, err := limit.New(limit.Spec{Requests: math.MaxUint32, Unit: limit.Day, ChargeDenied: true})
	if err != nil {
		panic(err) // the Spec is constant and valid
	}
	return &probes{
		hit:    backend.Hit{Key: []byte("rls:probe:" + rand.Text()), Limit: l, N: 1, Shadow: true},
		shards: make([]probedShard, shards),
	}
}

// maxProbeTime bounds the time of a probe. Otherwise a Redis that does not answer would keep many hits in the queue.
const maxProbeTime = time.Second

// Probe charges the counter of the probes in a shard. It returns nil if Redis answers within the timeout and within
// maxProbeTime. With AutoTimeout, it waits for at most maxAutoTimeout, and then adapts the timeout to the round trip.
func (l *Limiter) Probe(ctx context.Context, shard int) error {
	now, s := time.Now(), &l.probes.shards[shard]
	oldCount := s.lastCount()
	r := l.newRequest(now, now, min(l.options.Timeout, maxProbeTime))
	r.add(l.queues[shard], 0, &l.probes.hit, l.probes.hit.N)
	r.send()
	if err := r.wait(ctx); err != nil {
		r.abandon(l)
		return err
	}
	result := r.parts[0].hits[0].answer.Result
	l.recycle(r)
	if result.Err == nil {
		newCount := probeCount{l.probes.hit.Limit.Spent(result.Result), now.Add(time.Duration(result.ResetAfter) * time.Microsecond)}
		if s.recordProbe(oldCount, newCount) {
			l.options.Observer.CountersLost(l.queues[shard].instance.role, newCount.count == 1)
		}
		l.raiseTimeout(ctx, l.queues[shard], time.Since(now))
	}
	return result.Err
}

// HasKeptCounters returns true if the shard has certainly kept its counters between the last two successful probes. It
// returns false after the first probe of a day, and after the first probe of the process.
func (l *Limiter) HasKeptCounters(shard int) bool {
	s := &l.probes.shards[shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasKeptCounters
}
