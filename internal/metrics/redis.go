package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/redis"
)

// batches measures the batches that are sent to Redis.
type batches struct {
	errors             prometheus.Counter
	hits, queuedHits   prometheus.Histogram
	waitTime, duration prometheus.Histogram // in seconds
}

// Redis registers the metrics of package redis and returns its Observer.
func (m *Metrics) Redis() redis.Observer {
	newHistogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return m.auto.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	counts := prometheus.ExponentialBuckets(1, 4, 7)        // 1 to 4096
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 12) // 0.1 to 205 ms
	return &batches{
		errors:     m.newCounter("rls_redis_batch_errors_total", "Batches that Redis did not execute, or whose answer was lost."),
		hits:       newHistogram("rls_redis_batch_hits", "Hits in a batch.", counts),
		queuedHits: newHistogram("rls_redis_queued_hits", "Hits that wait in the queue while a batch is sent.", counts),
		waitTime:   newHistogram("rls_redis_batch_wait_seconds", "Time that the first hit of a batch waits until the batch is sent.", seconds),
		duration:   newHistogram("rls_redis_batch_duration_seconds", "Time from the sending of a batch until its answer.", seconds),
	}
}

func (m *batches) BatchDone(b redis.Batch) {
	m.hits.Observe(float64(b.Hits))
	m.queuedHits.Observe(float64(b.Queued))
	m.waitTime.Observe(b.Wait.Seconds())
	m.duration.Observe(b.Took.Seconds())
	if b.Err != nil {
		m.errors.Inc()
	}
}
