package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/fallback"
)

// outages measures outages of Redis.
type outages struct {
	up                       prometheus.Gauge
	downCount, upCount       prometheus.Counter // changes of up
	servedHits, replayedHits prometheus.Counter

	mu        sync.Mutex
	downSince time.Time     // zero if Redis is up
	downTotal time.Duration // of past outages
}

// Fallback registers the metrics of package fallback and returns its Observer.
func (m *Metrics) Fallback() fallback.Observer {
	changes := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_redis_state_changes_total", Help: "Changes of rls_redis_up, by the new state.",
	}, []string{"state"})
	o := &outages{
		up:           m.newGauge("rls_redis_up", "1 if all Redis breakers are closed, else 0."),
		downCount:    changes.WithLabelValues("down"),
		upCount:      changes.WithLabelValues("up"),
		servedHits:   m.newCounter("rls_redis_fallback_hits_total", "Hits decided without Redis."),
		replayedHits: m.newCounter("rls_fallback_replayed_hits_total", "Hits admitted without Redis and charged to Redis after the outage."),
	}
	o.up.Set(1)
	m.auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "rls_redis_down_seconds_total", Help: "Time for which rls_redis_up was 0.",
	}, o.downSeconds)
	return o
}

func (o *outages) StateChanged(c fallback.StateChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.Down {
		o.downSince = time.Now()
		o.up.Set(0)
		o.downCount.Inc()
		return
	}
	o.downTotal += time.Since(o.downSince)
	o.downSince = time.Time{}
	o.up.Set(1)
	o.upCount.Inc()
}

// downSeconds returns the length of all outages. It grows during an outage.
func (o *outages) downSeconds() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.downSince.IsZero() {
		return o.downTotal.Seconds()
	}
	return (o.downTotal + time.Since(o.downSince)).Seconds()
}

// BreakerChanged implements fallback.Observer.
func (o *outages) BreakerChanged(fallback.BreakerChange) {}

// BlipEnded implements fallback.Observer.
func (o *outages) BlipEnded(fallback.Outage) {}

func (o *outages) Served(hits int) { o.servedHits.Add(float64(hits)) }

func (o *outages) Replayed(hits int64) { o.replayedHits.Add(float64(hits)) }
