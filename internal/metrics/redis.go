package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// Redis measures the batches that are sent to Redis.
type Redis struct {
	errors       prometheus.Counter
	hits, queued prometheus.Histogram
	wait, took   prometheus.Histogram // in seconds
}

var _ redis.Observer = (*Redis)(nil)

// Redis registers the metrics of package redis and returns its Observer.
func (m *Metrics) Redis() *Redis {
	newHistogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	counts := prometheus.ExponentialBuckets(1, 4, 7)        // 1 to 4096
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 12) // 0.1 to 205 ms
	r := &Redis{
		errors: newCounter("rls_redis_batch_errors_total", "Batches that Redis did not execute, or whose answer was lost."),
		hits:   newHistogram("rls_redis_batch_hits", "Hits in a batch.", counts),
		queued: newHistogram("rls_redis_queued_hits", "Hits that wait in the queue while a batch is sent.", counts),
		wait:   newHistogram("rls_redis_batch_wait_seconds", "Time that the first hit of a batch waits until the batch is sent.", seconds),
		took:   newHistogram("rls_redis_batch_duration_seconds", "Time from the sending of a batch until its answer.", seconds),
	}
	m.registry.MustRegister(r.errors)
	return r
}

// BatchDone implements redis.Observer.
func (r *Redis) BatchDone(b redis.Batch) {
	r.hits.Observe(float64(b.Hits))
	r.queued.Observe(float64(b.Queued))
	r.wait.Observe(b.Wait.Seconds())
	r.took.Observe(b.Took.Seconds())
	if b.Err != nil {
		r.errors.Inc()
	}
}
