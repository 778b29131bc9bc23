package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/limit"
)

// outages measures outages of Redis.
type outages struct {
	up                              prometheus.Gauge
	downCount, upCount              prometheus.Counter // changes of up
	servedHits, replayedHits, blips prometheus.Counter

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
		up:           m.newGauge("rls_redis_up", "1 if all Redis breakers are closed, else 0. Without traffic, probes find out."),
		downCount:    changes.WithLabelValues("down"),
		upCount:      changes.WithLabelValues("up"),
		servedHits:   m.newCounter("rls_redis_fallback_hits_total", "Hits decided without Redis."),
		replayedHits: m.newCounter("rls_fallback_replayed_hits_total", "Hits admitted without Redis and charged to Redis later."),
		blips:        m.newCounter("rls_redis_blips_total", "Short times with decisions without Redis in which no breaker opened. Blips within ten seconds count once."),
	}
	o.up.Set(1)
	m.auto.NewCounterFunc(prometheus.CounterOpts{
		Name: "rls_redis_down_seconds_total", Help: "Time for which rls_redis_up was 0.",
	}, o.downSeconds)
	m.withoutRedis = m.newWithoutRedis()
	return o
}

// StateChanged implements fallback.Observer.
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

// BreakerChanged implements fallback.Observer. The metrics of breakers come from their status.
func (o *outages) BreakerChanged(fallback.BreakerChange) {}

// BlipEnded implements fallback.Observer.
func (o *outages) BlipEnded(fallback.Outage) { o.blips.Inc() }

// Served implements fallback.Observer.
func (o *outages) Served(hits int) { o.servedHits.Add(float64(hits)) }

// Replayed implements fallback.Observer.
func (o *outages) Replayed(hits int64) { o.replayedHits.Add(float64(hits)) }

// withoutRedis counts the decisions of the fallback by backend.Reason and limit.FailureMode.
type withoutRedis [len(backend.Reasons) + 1][limit.FailDeny + 1]struct{ ok, overLimit prometheus.Counter }

func (m *Metrics) newWithoutRedis() *withoutRedis {
	vec := m.auto.NewCounterVec(prometheus.CounterOpts{
		Name: "rls_decisions_without_redis_total",
		Help: "Decisions that this process made without Redis, counted while they happen, by their reason, by the failure mode of the limit, and by their code.",
	}, []string{"reason", "mode", "code"})
	w := &withoutRedis{}
	for _, reason := range backend.Reasons {
		for _, mode := range []limit.FailureMode{limit.FailLocal, limit.FailAllow, limit.FailDeny} {
			w[reason][mode].ok = vec.WithLabelValues(reason.String(), mode.String(), "OK")
			w[reason][mode].overLimit = vec.WithLabelValues(reason.String(), mode.String(), "OVER_LIMIT")
		}
	}
	return w
}

// count counts a decision of the fallback. A denial by a limit in shadow mode has the code OK.
func (w *withoutRedis) count(r *backend.Result, isShadow bool) {
	c := &w[r.Reason][r.Mode]
	switch {
	case c.ok == nil: // the decision lacks a reason or a mode
	case r.Allowed || isShadow:
		c.ok.Inc()
	default:
		c.overLimit.Inc()
	}
}

// fallbackStatus collects the state of the breakers, and the price of the last outage, at each
// scrape.
type fallbackStatus struct {
	status func() fallback.Status
	shards []Shard // of the breakers

	breakers, breakerSeconds                                      *prometheus.Desc
	start, seconds, calls, admittedCalls, admittedHits, maxExcess *prometheus.Desc
	limitMaxExcess, totalMaxExcess                                *prometheus.Desc
}

// FallbackStatus registers the metrics of the breakers and of the price of an outage. Each
// scrape calls status. shards has the labels of each shard.
func (m *Metrics) FallbackStatus(shards []Shard, status func() fallback.Status) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	last := " in the current outage, or else in the last outage."
	m.registry.MustRegister(&fallbackStatus{
		status:         status,
		shards:         boundedShards(shards),
		breakers:       desc("rls_redis_breakers", "Breakers in each state.", "server", "shard", "state"),
		breakerSeconds: desc("rls_redis_breaker_seconds_total", "Time that the breaker has spent in each state.", "server", "shard", "state"),
		start:          desc("rls_outage_start_timestamp_seconds", "Start of the current outage of Redis, or else of the last outage. 0 if there was none."),
		seconds:        desc("rls_outage_duration_seconds", "Length of the current outage of Redis, or else of the last outage."),
		calls:          desc("rls_outage_calls", "Calls with a decision without Redis"+last),
		admittedCalls:  desc("rls_outage_admitted_calls", "Calls that no decision without Redis denied"+last),
		admittedHits:   desc("rls_outage_admitted_hits", "Hits admitted without Redis"+last),
		maxExcess:      desc("rls_outage_max_excess_hits", "The most hits that this process can have admitted beyond the limits"+last),
		totalMaxExcess: desc("rls_max_excess_hits", "The most hits that this process can have admitted beyond the limits since its start, in outages and in blips. A late answer of Redis can lower it."),
		limitMaxExcess: desc("rls_outage_limit_max_excess_hits", "The most hits that this process can have admitted beyond each limit"+last, "rule", "limit"),
	})
}

// Describe implements prometheus.Collector.
func (f *fallbackStatus) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		f.breakers, f.breakerSeconds, f.start, f.seconds, f.calls, f.admittedCalls, f.admittedHits, f.maxExcess, f.limitMaxExcess, f.totalMaxExcess,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (f *fallbackStatus) Collect(out chan<- prometheus.Metric) {
	s := f.status()
	f.collectBreakers(s.Breakers, out)
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	o := &s.Outage
	start, seconds := 0.0, 0.0
	if !o.Start.IsZero() {
		start, seconds = float64(o.Start.UnixMilli())/1000, o.Duration().Seconds()
	}
	gauge(f.start, start)
	gauge(f.seconds, seconds)
	gauge(f.calls, float64(o.Calls))
	gauge(f.admittedCalls, float64(o.AdmittedCalls))
	gauge(f.admittedHits, float64(o.AdmittedHits))
	gauge(f.maxExcess, float64(o.MaxExcessHits))
	gauge(f.totalMaxExcess, float64(s.MaxExcessHits))
	for _, l := range o.Limits {
		gauge(f.limitMaxExcess, float64(l.MaxExcessHits), l.Rule, l.Limit)
	}
}

// collectBreakers sends the metrics of breakers. Shards with the same labels are summed up.
func (f *fallbackStatus) collectBreakers(breakers []fallback.BreakerStatus, out chan<- prometheus.Metric) {
	type sums struct {
		count   [len(fallback.BreakerStates)]int
		seconds [len(fallback.BreakerStates)]float64
	}
	byShard := map[Shard]*sums{}
	for i, b := range breakers {
		shard := f.shards[i]
		if byShard[shard] == nil {
			byShard[shard] = new(sums)
		}
		byShard[shard].count[b.State]++
		for state, d := range b.TimeIn {
			byShard[shard].seconds[state] += d.Seconds()
		}
	}
	for shard, s := range byShard {
		for _, state := range fallback.BreakerStates {
			out <- prometheus.MustNewConstMetric(f.breakers, prometheus.GaugeValue, float64(s.count[state]), shard.Server, shard.Name, state.String())
			out <- prometheus.MustNewConstMetric(f.breakerSeconds, prometheus.CounterValue, s.seconds[state], shard.Server, shard.Name, state.String())
		}
	}
}
