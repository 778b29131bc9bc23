package metrics

import (
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// redisServers measures the batches that are sent to each Redis.
type redisServers [len(redis.Roles)]*redisServer

// redisServer measures the batches that are sent to one Redis.
type redisServer struct {
	errors             []prometheus.Counter // by redis.ErrorKind
	failedBatches      prometheus.Counter
	unconfirmedBatches prometheus.Counter
	hits, queuedHits   prometheus.Observer
	waitTime, duration prometheus.Observer // in seconds
}

// Redis registers the metrics of package redis and returns its Observer. roles has each Redis
// that is in use.
func (m *Metrics) Redis(roles ...redis.Role) redis.Observer {
	newHistogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return m.auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"server"})
	}
	counts := prometheus.ExponentialBuckets(1, 4, 7)        // 1 to 4096
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 12) // 0.1 to 205 ms
	errors := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_redis_errors_total", Help: "Errors of Redis by their kind. A batch that is sent again can have several errors.",
	}, []string{"server", "kind"})
	failedBatches := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_redis_batch_errors_total", Help: "Batches that Redis did not execute, or whose answer was lost.",
	}, []string{"server"})
	unconfirmedBatches := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_redis_unconfirmed_batches_total", Help: "Batches that fewer replicas of Redis than REDIS_WAIT_REPLICAS had before the answer.",
	}, []string{"server"})
	hits := newHistogram("rls_redis_batch_hits", "Hits in a batch.", counts)
	queuedHits := newHistogram("rls_redis_queued_hits", "Hits that wait in the queue while a batch is sent.", counts)
	waitTime := newHistogram("rls_redis_batch_wait_seconds", "Time that the first hit of a batch waits until the batch is sent.", seconds)
	duration := newHistogram("rls_redis_batch_duration_seconds", "Time from the sending of a batch until its answer.", seconds)
	servers := &redisServers{}
	for _, role := range roles {
		server := role.String()
		s := &redisServer{
			failedBatches:      failedBatches.WithLabelValues(server),
			unconfirmedBatches: unconfirmedBatches.WithLabelValues(server),
			hits:               hits.WithLabelValues(server),
			queuedHits:         queuedHits.WithLabelValues(server),
			waitTime:           waitTime.WithLabelValues(server),
			duration:           duration.WithLabelValues(server),
		}
		for _, kind := range redis.ErrorKinds() {
			s.errors = append(s.errors, errors.WithLabelValues(server, kind))
		}
		servers[role] = s
	}
	return servers
}

// BatchDone implements redis.Observer.
func (r *redisServers) BatchDone(b redis.Batch) {
	s := r[b.Role]
	s.hits.Observe(float64(b.Hits))
	s.queuedHits.Observe(float64(b.Queued))
	s.waitTime.Observe(b.Wait.Seconds())
	s.duration.Observe(b.Took.Seconds())
	if b.Err != nil {
		s.failedBatches.Inc()
	}
	if b.ReplicasMissing {
		s.unconfirmedBatches.Inc()
	}
}

// Failed implements redis.Observer.
func (r *redisServers) Failed(role redis.Role, kind redis.ErrorKind) { r[role].errors[kind].Inc() }

// RedisStatus is the part of a redis.Limiter that a scrape reads.
type RedisStatus interface {
	Shards() int
	ShardName(shard int) (redis.Role, int)
	QueuedHits(shard int) int
	PoolStats() []redis.PoolStats
}

// redisCollector collects the queues and connections at each scrape.
type redisCollector struct {
	status RedisStatus

	mu     sync.Mutex
	closed [len(redis.Roles)]int64 // the highest number of closed connections so far

	queue, connections, opened, waits, waitTime, timeouts *prometheus.Desc
	roundTrip, budget                                     *prometheus.Desc
	incumbentPools                                        [len(redis.Roles)]incumbentPool
}

// incumbentPool has the metrics of a pool that envoyproxy/ratelimit has too.
type incumbentPool struct{ active, total, localClose *prometheus.Desc }

// RedisStatus registers the metrics of queues and connections. Each scrape reads status.
func (m *Metrics) RedisStatus(status RedisStatus) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	c := &redisCollector{
		status:      status,
		queue:       desc("rls_redis_queue_hits", "Hits that wait for a batch now.", "server", "shard"),
		connections: desc("rls_redis_connections", "Connections to Redis that are in use or idle.", "server", "state"),
		opened:      desc("rls_redis_connections_opened_total", "Connections to Redis that were opened.", "server"),
		waits:       desc("rls_redis_connection_waits_total", "Batches that waited for a connection.", "server"),
		waitTime:    desc("rls_redis_connection_wait_seconds_total", "Time that batches waited for a connection.", "server"),
		timeouts:    desc("rls_redis_connection_timeouts_total", "Batches that got no connection in time.", "server"),
		roundTrip:   desc("rls_redis_round_trip_seconds", "Shortest of the last measured round trips, to the slowest server of this Redis. 0 before the first.", "server"),
		budget:      desc("rls_redis_timeout_seconds", "Time limit of an operation (REDIS_TIMEOUT). With auto it follows the round trip.", "server"),
	}
	for role, prefix := range map[redis.Role]string{redis.RoleMain: "ratelimit_redis_pool_", redis.RolePerSecond: "ratelimit_redis_per_second_pool_"} {
		c.incumbentPools[role] = incumbentPool{
			active:     desc(prefix+"cx_active", "Open connections to this Redis."),
			total:      desc(prefix+"cx_total", "Connections to this Redis that were opened."),
			localClose: desc(prefix+"cx_local_close", "Connections to this Redis that were closed."),
		}
	}
	m.registry.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c *redisCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.queue, c.connections, c.opened, c.waits, c.waitTime, c.timeouts, c.roundTrip, c.budget} {
		out <- d
	}
	for _, p := range c.incumbentPools {
		out <- p.active
		out <- p.total
		out <- p.localClose
	}
}

// Collect implements prometheus.Collector.
func (c *redisCollector) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, value, labels...)
	}
	shards := ShardsOf(c.status)
	queued := map[Shard]int{}
	for i, shard := range boundedShards(shards) {
		queued[shard] += c.status.QueuedHits(i)
	}
	for shard, hits := range queued {
		send(c.queue, prometheus.GaugeValue, float64(hits), shard.Server, shard.Name)
	}
	for _, p := range c.status.PoolStats() {
		server := p.Role.String()
		send(c.connections, prometheus.GaugeValue, float64(p.Connections-p.Idle), server, "in_use")
		send(c.connections, prometheus.GaugeValue, float64(p.Idle), server, "idle")
		send(c.opened, prometheus.CounterValue, float64(p.Opened), server)
		send(c.waits, prometheus.CounterValue, float64(p.Waits), server)
		send(c.waitTime, prometheus.CounterValue, p.WaitTime.Seconds(), server)
		send(c.timeouts, prometheus.CounterValue, float64(p.Timeouts), server)
		send(c.roundTrip, prometheus.GaugeValue, p.RoundTrip.Seconds(), server)
		send(c.budget, prometheus.GaugeValue, p.Budget.Seconds(), server)
		incumbent := c.incumbentPools[p.Role]
		send(incumbent.active, prometheus.GaugeValue, float64(p.Connections))
		send(incumbent.total, prometheus.CounterValue, float64(p.Opened))
		send(incumbent.localClose, prometheus.CounterValue, float64(c.closedConnections(p)))
	}
}

// closedConnections returns the number of connections that were closed. The result never
// falls, though a connection that is just being opened is already open.
func (c *redisCollector) closedConnections(p redis.PoolStats) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed[p.Role] = max(c.closed[p.Role], p.Opened-int64(p.Connections))
	return c.closed[p.Role]
}

// Shard has the labels of a shard: the server "main" or "per_second", and a name that is
// unique there.
type Shard struct{ Server, Name string }

// ShardsOf returns the labels of each shard.
func ShardsOf(status RedisStatus) []Shard {
	shards := make([]Shard, status.Shards())
	for i := range shards {
		role, partition := status.ShardName(i)
		shards[i] = Shard{role.String(), strconv.Itoa(partition)}
	}
	return shards
}

// maxShardSeries bounds the shards of a server that have series of their own.
const maxShardSeries = 64

// boundedShards returns shards. If a server has more than maxShardSeries shards, they have the
// name "all".
func boundedShards(shards []Shard) []Shard {
	count := map[string]int{}
	for _, s := range shards {
		count[s.Server]++
	}
	bounded := make([]Shard, len(shards))
	for i, s := range shards {
		if count[s.Server] > maxShardSeries {
			s.Name = "all"
		}
		bounded[i] = s
	}
	return bounded
}
