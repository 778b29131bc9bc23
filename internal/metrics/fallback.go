package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend/fallback"
)

// Fallback measures outages of Redis.
type Fallback struct {
	up               prometheus.Gauge
	wentDown, wentUp prometheus.Counter
	served, replayed prometheus.Counter

	mu        sync.Mutex
	downFrom  time.Time     // zero if Redis is up
	downTotal time.Duration // of past outages
}

var _ fallback.Observer = (*Fallback)(nil)

// Fallback registers the metrics of package fallback and returns its Observer.
func (m *Metrics) Fallback() *Fallback {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_redis_state_changes_total", Help: "Changes of rls_redis_up, by the new state.",
	}, []string{"state"})
	f := &Fallback{
		up:       newGauge("rls_redis_up", "1 if all Redis breakers are closed, else 0."),
		wentDown: changes.WithLabelValues("down"),
		wentUp:   changes.WithLabelValues("up"),
		served:   newCounter("rls_redis_fallback_hits_total", "Hits decided without Redis."),
		replayed: newCounter("rls_fallback_replayed_hits_total", "Hits admitted without Redis and charged to Redis after the outage."),
	}
	f.up.Set(1)
	down := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rls_redis_down_seconds_total", Help: "Time for which rls_redis_up was 0.",
	}, f.downSeconds)
	m.registry.MustRegister(f.up, changes, down, f.served, f.replayed)
	return f
}

// StateChanged implements fallback.Observer.
func (f *Fallback) StateChanged(c fallback.StateChange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Down {
		f.downFrom = time.Now()
		f.up.Set(0)
		f.wentDown.Inc()
		return
	}
	f.downTotal += time.Since(f.downFrom)
	f.downFrom = time.Time{}
	f.up.Set(1)
	f.wentUp.Inc()
}

// downSeconds returns the length of all outages. It grows during an outage.
func (f *Fallback) downSeconds() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	total := f.downTotal
	if !f.downFrom.IsZero() {
		total += time.Since(f.downFrom)
	}
	return total.Seconds()
}

// Served implements fallback.Observer.
func (f *Fallback) Served(hits int) { f.served.Add(float64(hits)) }

// Replayed implements fallback.Observer.
func (f *Fallback) Replayed(hits int64) { f.replayed.Add(float64(hits)) }
