package metrics

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// redisServers is a redis.Observer that measures the batches to each Redis. The index is the redis.Role.
type redisServers [len(redis.Roles)]*redisServer

type redisServer struct {
	errors             []prometheus.Counter // the index is the redis.ErrorKind
	failedBatches      prometheus.Counter
	unconfirmedBatches prometheus.Counter
	stalledBatches     prometheus.Counter
	counterLosses      prometheus.Counter
	hits, queuedHits   prometheus.Observer
	waitTime, duration prometheus.Observer // in seconds
}

// Redis registers the metrics of package redis, for each Redis in use, and returns its Observer.
func (m *Metrics) Redis(roles ...redis.Role) redis.Observer {
	newHistogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return m.factory.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"server"})
	}
	counts := prometheus.ExponentialBuckets(1, 4, 7)        // 1 to 4096
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 12) // 0.1 to 205 ms
	errors := m.newCounters("rls_redis_errors_total", "Errors of Redis by their kind. A batch that is sent again can have several errors.", "server", "kind")
	failedBatches := m.newCounters("rls_redis_batch_errors_total", "Batches that Redis did not execute, or whose answer was lost.", "server")
	unconfirmedBatches := m.newCounters("rls_redis_unconfirmed_batches_total", "Batches that were answered before REDIS_WAIT_REPLICAS replicas of Redis had them.", "server")
	stalledBatches := m.newCounters("rls_redis_stalled_batches_total", "Batches that took 20 ms or more, and ten round trips or more. So Redis was slow, and not the network.", "server")
	counterLosses := m.newCounters("rls_redis_losses_total", "How often a probe found that a shard of Redis had lost counters or charges without an error.", "server")
	hits := newHistogram("rls_redis_batch_hits", "Hits in a batch.", counts)
	queuedHits := newHistogram("rls_redis_queued_hits", "Hits that wait in the queue while a batch is sent.", counts)
	waitTime := newHistogram("rls_redis_batch_wait_seconds", "Time that the first hit of a batch waits until the batch is sent.", seconds)
	duration := newHistogram("rls_redis_batch_duration_seconds", "Time from the sending of a batch until its answer.", seconds)
	servers := &redisServers{}
	for _, role := range roles {
		server := role.String()
		newServer := &redisServer{
			failedBatches:      failedBatches.WithLabelValues(server),
			unconfirmedBatches: unconfirmedBatches.WithLabelValues(server),
			stalledBatches:     stalledBatches.WithLabelValues(server),
			counterLosses:      counterLosses.WithLabelValues(server),
			hits:               hits.WithLabelValues(server),
			queuedHits:         queuedHits.WithLabelValues(server),
			waitTime:           waitTime.WithLabelValues(server),
			duration:           duration.WithLabelValues(server),
		}
		for _, kind := range redis.ErrorKinds() {
			newServer.errors = append(newServer.errors, errors.WithLabelValues(server, kind))
		}
		servers[role] = newServer
	}
	return servers
}

func (r *redisServers) BatchDone(batch redis.Batch) {
	server := r[batch.Role]
	server.hits.Observe(float64(batch.Hits))
	server.queuedHits.Observe(float64(batch.QueuedHits))
	server.waitTime.Observe(batch.Wait.Seconds())
	server.duration.Observe(batch.Duration.Seconds())
	if batch.Err != nil {
		server.failedBatches.Inc()
	}
	if batch.IsStalled {
		server.stalledBatches.Inc()
	}
	if batch.HasTooFewReplicas {
		server.unconfirmedBatches.Inc()
	}
}

func (r *redisServers) ErrorOccurred(role redis.Role, kind redis.ErrorKind) {
	r[role].errors[kind].Inc()
}

// CountersLost implements redis.Observer.
func (r *redisServers) CountersLost(role redis.Role, _ bool) { r[role].counterLosses.Inc() }

// RedisStatus is the part of a redis.Limiter that a scrape reads.
type RedisStatus interface {
	Shards() int
	RoleAndPartition(shard int) (role redis.Role, partition int)
	QueuedHits(shard int) int
	PoolStats() []redis.PoolStats
}

// RedisStatus registers the metrics of queues and connections. Each scrape reads status.
func (m *Metrics) RedisStatus(status RedisStatus) {
	var mu sync.Mutex                             // guards closedConnections
	var closedConnections [len(redis.Roles)]int64 // the highest numbers so far; the index is the redis.Role
	m.registerReader(func(s scrape) {
		queuedHits := map[Shard]int{}
		for i, shard := range mergeManyShards(ShardsOf(status)) {
			queuedHits[shard] += status.QueuedHits(i)
		}
		for shard, hits := range queuedHits {
			s.sendGauge("rls_redis_queue_hits", "Hits that wait for a batch now.", float64(hits), "server", shard.Server, "shard", shard.Name)
		}
		for _, pool := range status.PoolStats() {
			mu.Lock()
			closed := &closedConnections[pool.Role]
			*closed = max(*closed, pool.OpenedConnections-int64(pool.Connections)) // never falls, even if a connection opens during the read
			s.sendPool(&pool, *closed)
			mu.Unlock()
		}
	})
}

func (s scrape) sendPool(pool *redis.PoolStats, closedConnections int64) {
	const connections = "Connections to Redis that are in use or idle."
	server := pool.Role.String()
	s.sendGauge("rls_redis_connections", connections, float64(pool.Connections-pool.IdleConnections), "server", server, "state", "in_use")
	s.sendGauge("rls_redis_connections", connections, float64(pool.IdleConnections), "server", server, "state", "idle")
	s.sendCounter("rls_redis_connections_opened_total", "Connections to Redis that were opened.", float64(pool.OpenedConnections), "server", server)
	s.sendCounter("rls_redis_connection_waits_total", "Batches that waited for a connection.", float64(pool.ConnectionWaits), "server", server)
	s.sendCounter("rls_redis_connection_wait_seconds_total", "Time that batches waited for a connection.", pool.ConnectionWaitTime.Seconds(), "server", server)
	s.sendCounter("rls_redis_connection_timeouts_total", "Batches that got no connection in time.", float64(pool.ConnectionTimeouts), "server", server)
	s.sendGauge("rls_redis_round_trip_seconds", "Round trip to the slowest server of this Redis: the shortest of its last measurements. 0 before the first measurement.", pool.RoundTrip.Seconds(), "server", server)
	s.sendGauge("rls_redis_timeout_seconds", "Time limit of an operation (REDIS_TIMEOUT). With auto, the time limit follows the round trip.", pool.Budget.Seconds(), "server", server)
	prefix := "ratelimit_redis_pool_" // envoyproxy/ratelimit has these metrics too
	if pool.Role == redis.RolePerSecond {
		prefix = "ratelimit_redis_per_second_pool_"
	}
	s.sendGauge(prefix+"cx_active", "Open connections to this Redis.", float64(pool.Connections))
	s.sendCounter(prefix+"cx_total", "Connections to this Redis that were opened.", float64(pool.OpenedConnections))
	s.sendCounter(prefix+"cx_local_close", "Connections to this Redis that were closed.", float64(closedConnections))
}

// Shard has the labels of a shard: the server "main" or "per_second", and a name that is unique on this server.
type Shard struct{ Server, Name string }

// ShardsOf returns the labels of each shard.
func ShardsOf(status RedisStatus) []Shard {
	shards := make([]Shard, status.Shards())
	for i := range shards {
		role, partition := status.RoleAndPartition(i)
		shards[i] = Shard{role.String(), strconv.Itoa(partition)}
	}
	return shards
}

const maxShardSeries = 64 // a server with more shards has the series of a single shard, "all"

// mergeManyShards gives the name "all" to the shards of a server with more than maxShardSeries shards, and returns shards.
func mergeManyShards(shards []Shard) []Shard {
	shardCounts := map[string]int{}
	for _, shard := range shards {
		shardCounts[shard.Server]++
	}
	for i := range shards {
		if shardCounts[shards[i].Server] > maxShardSeries {
			shards[i].Name = "all"
		}
	}
	return shards
}

// RedisCheck registers the metric of the checks of Redis. roles are the Redis servers in use. The returned function sets
// the metric to the findings of a check.
func (m *Metrics) RedisCheck(roles ...redis.Role) func([]redis.Finding) {
	problems := m.newGauges("rls_redis_check_problems", "Problems and warnings that the last check of Redis found. The log has each finding with advice.", "server", "check")
	report := func(findings []redis.Finding) {
		for _, role := range roles {
			problemCounts := map[string]int{}
			for _, f := range findings {
				if f.Role == role && f.Level != redis.LevelNote {
					problemCounts[f.Check]++
				}
			}
			for _, check := range redis.Checks {
				problems.WithLabelValues(role.String(), check).Set(float64(problemCounts[check]))
			}
		}
	}
	report(nil)
	return report
}
