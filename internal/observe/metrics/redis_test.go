package metrics

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
)

func TestBatchesAreMeasuredForEachRedis(t *testing.T) {
	metrics := New()
	r := metrics.Redis(redis.Roles[:]...)
	r.BatchDone(redis.Batch{Hits: 3, QueuedHits: 20, Wait: 125 * time.Millisecond, Duration: 125 * time.Millisecond})
	r.BatchDone(redis.Batch{Hits: 1, Wait: time.Second, Duration: 500 * time.Millisecond, Err: errors.New("broken")})
	r.BatchDone(redis.Batch{Role: redis.RolePerSecond, Hits: 5})
	families, err := metrics.registry.Gather()
	require.NoError(t, err)
	sums, counts := map[string]float64{}, map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if h := metric.GetHistogram(); h != nil && metric.GetLabel() != nil {
				sums[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = h.GetSampleSum()
				counts[metric.GetLabel()[0].GetValue()] += h.GetSampleCount()
			}
		}
	}
	assert.Equal(t, map[string]float64{
		"rls_redis_batch_hits main": 4, "rls_redis_queued_hits main": 20, "rls_redis_batch_wait_seconds main": 1.125, "rls_redis_batch_duration_seconds main": 0.625,
		"rls_redis_batch_hits per_second": 5, "rls_redis_queued_hits per_second": 0, "rls_redis_batch_wait_seconds per_second": 0, "rls_redis_batch_duration_seconds per_second": 0,
	}, sums)
	assert.Equal(t, map[string]uint64{"main": 2 * 4, "per_second": 1 * 4}, counts)
	assertMetrics(t, metrics, `
rls_redis_batch_errors_total{server="main"} 1
rls_redis_batch_errors_total{server="per_second"} 0
`, "rls_redis_batch_errors_total")
}

func TestErrorsAreCountedByKind(t *testing.T) {
	metrics := New()
	r := metrics.Redis(redis.RoleMain)
	n, err := testutil.GatherAndCount(metrics.registry, "rls_redis_errors_total")
	require.NoError(t, err)
	assert.Equal(t, len(redis.ErrorKinds()), n, "each kind has a series from the start")
	r.Failed(redis.RoleMain, redis.KindOOM)
	r.Failed(redis.RoleMain, redis.KindOOM)
	r.Failed(redis.RoleMain, redis.KindTimeout)
	servers := r.(*redisServers)
	assert.InDelta(t, 2, testutil.ToFloat64(servers[redis.RoleMain].errors[redis.KindOOM]), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(servers[redis.RoleMain].errors[redis.KindTimeout]), 0)
	assert.InDelta(t, 0, testutil.ToFloat64(servers[redis.RoleMain].errors[redis.KindOther]), 0)
}

// redisStatus is a RedisStatus with two shards of the main Redis and one of the other.
type redisStatus struct{ pools []redis.PoolStats }

func (redisStatus) Shards() int { return 3 }

func (redisStatus) ShardName(shard int) (redis.Role, int) {
	if shard == 2 {
		return redis.RolePerSecond, 0
	}
	return redis.RoleMain, shard
}

func (redisStatus) QueuedHits(shard int) int { return 10 * shard }

func (s redisStatus) PoolStats() []redis.PoolStats {
	if s.pools == nil {
		return []redis.PoolStats{{Role: redis.RoleMain}, {Role: redis.RolePerSecond}}
	}
	return s.pools
}

func TestQueuesAndConnectionsAreReadByEachScrape(t *testing.T) {
	metrics, status := New(), &redisStatus{}
	metrics.RedisStatus(status)
	assertMetrics(t, metrics, `
rls_redis_queue_hits{server="main",shard="0"} 0
rls_redis_queue_hits{server="main",shard="1"} 10
rls_redis_queue_hits{server="per_second",shard="0"} 20
`, "rls_redis_queue_hits")
	names := []string{
		"rls_redis_connections", "rls_redis_connections_opened_total", "rls_redis_connection_waits_total", "rls_redis_connection_wait_seconds_total",
		"rls_redis_connection_timeouts_total", "ratelimit_redis_pool_cx_active", "ratelimit_redis_pool_cx_total", "ratelimit_redis_pool_cx_local_close",
		"ratelimit_redis_per_second_pool_cx_active",
	}
	status.pools = []redis.PoolStats{{Connections: 5, Idle: 3, Opened: 9, Waits: 4, WaitTime: 1500 * time.Millisecond, Timeouts: 1}}
	assertMetrics(t, metrics, `
ratelimit_redis_pool_cx_active 5
ratelimit_redis_pool_cx_local_close 4
ratelimit_redis_pool_cx_total 9
rls_redis_connection_timeouts_total{server="main"} 1
rls_redis_connection_wait_seconds_total{server="main"} 1.5
rls_redis_connection_waits_total{server="main"} 4
rls_redis_connections_opened_total{server="main"} 9
rls_redis_connections{server="main",state="idle"} 3
rls_redis_connections{server="main",state="in_use"} 2
`, names...)
	status.pools = []redis.PoolStats{{Connections: 6, Opened: 9}}
	assertMetrics(t, metrics, "ratelimit_redis_pool_cx_local_close 4\n", "ratelimit_redis_pool_cx_local_close")
}
