package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/source/reload"
)

type reloadObserver struct {
	loadedSets, rejectedSets prometheus.Counter
	problems, domains, rules prometheus.Gauge
	inForceTime              prometheus.Gauge // Unix time in seconds
	overridesWithoutEnd      prometheus.Gauge
	overrides, switches      *prometheus.GaugeVec
	sourceUp                 *prometheus.GaugeVec
	sourceReadTime           *prometheus.GaugeVec // Unix time in seconds
}

// Reload registers the metrics of package reload and returns its Observer. sources are the names of the sources in use.
// All sources are down at first.
func (m *Metrics) Reload(sources ...string) reload.Observer {
	observer := &reloadObserver{
		loadedSets:   m.newCounter("ratelimit_service_config_load_success", "Sets of limits that came into force."),
		rejectedSets: m.newCounter("ratelimit_service_config_load_error", "Sets of limits that were rejected."),
		problems:     m.newGauge("rls_config_problems", "Problems that keep the newest limits or overrides out of force. /rlconfig/problems lists them."),
		domains:      m.newGauge("rls_config_domains", "Domains of the limits in force."),
		rules:        m.newGauge("rls_config_rules", "Rules of the limits in force."),
		inForceTime:  m.newGauge("rls_config_in_force_timestamp_seconds", "Time at which the limits in force were loaded, or were last changed by overrides."),
		overrides: m.newGauges("rls_overrides",
			"Overrides, rules and switches of run time that are in force, rejected, or wait for a descriptor. If an override is rejected and its previous value stays in force, the override counts in both states.", "state"),
		overridesWithoutEnd: m.newGauge("rls_overrides_without_end", "Overrides, rules and switches in force that stay until somebody deletes them."),
		switches:            m.newGauges("rls_limits_off", "Switches that turn limits off, by scope: of a rule, of a domain, or of all domains.", "scope"),
		sourceUp:            m.newGauges("rls_source_up", "1 if the source of limits or overrides can be read, else 0.", "source"),
		sourceReadTime:      m.newGauges("rls_source_last_success_timestamp_seconds", "Time of the last good read of the source. 0 if there was no good read.", "source"),
	}
	observer.Overrides(reload.OverrideCounts{})
	for _, source := range sources {
		observer.sourceUp.WithLabelValues(source)
		observer.sourceReadTime.WithLabelValues(source)
	}
	return observer
}

func (r *reloadObserver) LimitsLoaded(domains int) {
	r.loadedSets.Inc()
	r.domains.Set(float64(domains))
	r.inForceTime.SetToCurrentTime()
}

func (r *reloadObserver) LimitsChanged(c reload.LimitsChange) {
	r.rules.Set(float64(c.Rules))
	r.inForceTime.Set(float64(c.Time.UnixMilli()) / 1000)
}

func (r *reloadObserver) LimitsRejected(error) { r.rejectedSets.Inc() }

func (r *reloadObserver) OverridesChanged([]reload.OverrideChange) {}

func (r *reloadObserver) ConfigProblems(count int) { r.problems.Set(float64(count)) }

func (r *reloadObserver) Overrides(c reload.OverrideCounts) {
	r.overrides.WithLabelValues("in_force").Set(float64(c.InForceOverrides))
	r.overrides.WithLabelValues("rejected").Set(float64(c.RejectedOverrides))
	r.overrides.WithLabelValues("waiting").Set(float64(c.WaitingOverrides))
	r.overridesWithoutEnd.Set(float64(c.OverridesWithoutEnd))
	r.switches.WithLabelValues("rule").Set(float64(c.OffRules))
	r.switches.WithLabelValues("domain").Set(float64(c.OffDomains))
	r.switches.WithLabelValues("all").Set(float64(c.OffAll))
}

func (r *reloadObserver) SourceRead(source string) {
	r.sourceReadTime.WithLabelValues(source).SetToCurrentTime()
}

func (r *reloadObserver) SourceState(source string, err error) {
	r.sourceUp.WithLabelValues(source).Set(oneIf(err == nil))
}

// ConfigHash registers the metric of the limits in force. hash returns "" before the first limits.
func (m *Metrics) ConfigHash(hash func() string) {
	m.registerReader(func(s scrape) {
		if currentHash := hash(); currentHash != "" {
			s.sendGauge("rls_config_info", "1 for the hash of the limits in force. Replicas with equal limits have equal hashes.", 1, "hash", currentHash)
		}
	})
}
