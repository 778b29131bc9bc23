package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/limit"
)

type outageObserver struct {
	upGauge                               prometheus.Gauge
	downChanges, upChanges                prometheus.Counter // changes of upGauge
	hitsWithoutRedis, replayedHits, blips prometheus.Counter

	mu        sync.Mutex
	downSince time.Time     // zero if Redis is up
	downTotal time.Duration // the length of all past outages
}

// Fallback registers the metrics of package fallback and returns its Observer.
func (m *Metrics) Fallback() fallback.Observer {
	changes := m.newCounters("rls_redis_state_changes_total", "Changes of rls_redis_up, by the new state.", "state")
	observer := &outageObserver{
		upGauge:          m.newGauge("rls_redis_up", "1 if all Redis breakers are closed, else 0. Without traffic, probes find out whether Redis answers."),
		downChanges:      changes.WithLabelValues("down"),
		upChanges:        changes.WithLabelValues("up"),
		hitsWithoutRedis: m.newCounter("rls_redis_fallback_hits_total", "Hits decided without Redis."),
		replayedHits:     m.newCounter("rls_fallback_replayed_hits_total", "Hits admitted without Redis and charged to Redis later."),
		blips:            m.newCounter("rls_redis_blips_total", "Short times with decisions without Redis in which no breaker opened. Blips within ten seconds count once."),
	}
	observer.upGauge.Set(1)
	m.registerReader(func(s scrape) {
		s.sendCounter("rls_redis_down_seconds_total", "Time for which rls_redis_up was 0.", observer.downSeconds())
	})
	m.fallbackDecisions = m.newFallbackDecisions()
	return observer
}

func (o *outageObserver) StateChanged(c fallback.StateChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.Down {
		o.downSince = time.Now()
		o.upGauge.Set(0)
		o.downChanges.Inc()
		return
	}
	o.downTotal += time.Since(o.downSince)
	o.downSince = time.Time{}
	o.upGauge.Set(1)
	o.upChanges.Inc()
}

// downSeconds returns the length of all outages, including the outage in progress.
func (o *outageObserver) downSeconds() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.downSince.IsZero() {
		return o.downTotal.Seconds()
	}
	return (o.downTotal + time.Since(o.downSince)).Seconds()
}

// BreakerChanged implements fallback.Observer. The metrics of breakers come from their status.
func (o *outageObserver) BreakerChanged(fallback.BreakerChange) {}

func (o *outageObserver) BlipEnded(fallback.Outage) { o.blips.Inc() }

func (o *outageObserver) HitsServed(hits int) { o.hitsWithoutRedis.Add(float64(hits)) }

func (o *outageObserver) HitsReplayed(hits int64) { o.replayedHits.Add(float64(hits)) }

// fallbackDecisions counts decisions without Redis. The indexes are the backend.Reason and the limit.FailureMode. The
// key of the map is true for denied hits.
type fallbackDecisions [len(backend.Reasons) + 1][limit.FailDeny + 1]map[bool]prometheus.Counter

func (m *Metrics) newFallbackDecisions() *fallbackDecisions {
	counters := m.newCounters("rls_decisions_without_redis_total",
		"Decisions that this process made without Redis, counted while they happen, by their reason, by the failure mode of the limit, and by their code.",
		"reason", "mode", "code")
	newDecisions := &fallbackDecisions{}
	for _, reason := range backend.Reasons {
		for _, mode := range []limit.FailureMode{limit.FailLocal, limit.FailAllow, limit.FailDeny} {
			newDecisions[reason][mode] = map[bool]prometheus.Counter{
				false: counters.WithLabelValues(reason.String(), mode.String(), "OK"),
				true:  counters.WithLabelValues(reason.String(), mode.String(), "OVER_LIMIT"),
			}
		}
	}
	return newDecisions
}

// count counts a decision of the fallback. A denial by a limit in shadow mode has the code OK.
func (d *fallbackDecisions) count(r *backend.Result, isShadow bool) {
	if counter := d[r.Reason][r.Mode][!r.Allowed && !isShadow]; counter != nil { // nil if the decision has no reason or no mode
		counter.Inc()
	}
}

// FallbackStatus registers the metrics of the breakers and of the price of an outage. Each scrape calls status.
func (m *Metrics) FallbackStatus(shards []Shard, status func() fallback.Status) {
	shards = mergeManyShards(shards)
	m.registerReader(func(s scrape) {
		currentStatus := status()
		s.sendBreakers(shards, currentStatus.Breakers)
		s.sendOutage(&currentStatus.Outage)
		s.sendGauge("rls_max_excess_hits", "The most hits that this process can have admitted beyond the limits since its start, in outages and in blips. A late answer of Redis can lower this number.", float64(currentStatus.MaxExcessHits))
	})
}

func (s scrape) sendOutage(outage *fallback.Outage) {
	start, seconds := 0.0, 0.0
	if !outage.Start.IsZero() {
		start, seconds = float64(outage.Start.UnixMilli())/1000, outage.Duration().Seconds()
	}
	const inLastOutage = " in the current outage, or else in the last outage."
	s.sendGauge("rls_outage_start_timestamp_seconds", "Start of the current outage of Redis, or else of the last outage. 0 if there was no outage.", start)
	s.sendGauge("rls_outage_duration_seconds", "Length of the current outage of Redis, or else of the last outage.", seconds)
	s.sendGauge("rls_outage_calls", "Calls with a decision without Redis"+inLastOutage, float64(outage.Calls))
	s.sendGauge("rls_outage_admitted_calls", "Admitted calls with a decision without Redis"+inLastOutage, float64(outage.AdmittedCalls))
	s.sendGauge("rls_outage_admitted_hits", "Hits of admitted calls, admitted without Redis"+inLastOutage, float64(outage.AdmittedHits))
	s.sendGauge("rls_outage_max_excess_hits", "The most hits that this process can have admitted beyond the limits"+inLastOutage, float64(outage.MaxExcessHits))
	for _, l := range outage.Limits {
		s.sendGauge("rls_outage_limit_max_excess_hits", "The most hits that this process can have admitted beyond each limit"+inLastOutage, float64(l.MaxExcessHits), "rule", l.Rule, "limit", l.Limit)
	}
}

// sendBreakers sends the states of breakers. It adds up the breakers of shards with the same labels.
func (s scrape) sendBreakers(shards []Shard, breakers []fallback.BreakerStatus) {
	type stateOfShard struct {
		Shard
		state fallback.BreakerState
	}
	counts, seconds := map[stateOfShard]int{}, map[stateOfShard]float64{}
	for i, b := range breakers {
		counts[stateOfShard{shards[i], b.State}]++
		for _, state := range fallback.BreakerStates {
			seconds[stateOfShard{shards[i], state}] += b.TimeByState[state].Seconds()
		}
	}
	for key, sum := range seconds {
		labels := []string{"server", key.Server, "shard", key.Name, "state", key.state.String()}
		s.sendGauge("rls_redis_breakers", "Breakers in each state.", float64(counts[key]), labels...)
		s.sendCounter("rls_redis_breaker_seconds_total", "Time that the breaker has spent in each state.", sum, labels...)
	}
}
