package metrics

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

var notInLabelName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// extraLabels is a Gatherer that adds labels to all metrics. If a metric has a label of the
// same name, the metric keeps its own label.
type extraLabels struct {
	prometheus.Gatherer
	labels []*dto.LabelPair
}

// withExtraLabels returns g with labels for tags. Characters that the name of a label can't
// have become underscores.
func withExtraLabels(g prometheus.Gatherer, tags map[string]string) prometheus.Gatherer {
	if len(tags) == 0 {
		return g
	}
	byName := map[string]string{}
	for name, value := range tags {
		name = notInLabelName.ReplaceAllString(name, "_")
		if name[0] >= '0' && name[0] <= '9' {
			name = "_" + name
		}
		byName[name] = value
	}
	e := extraLabels{Gatherer: g}
	for name, value := range byName {
		e.labels = append(e.labels, &dto.LabelPair{Name: &name, Value: &value})
	}
	return e
}

// Gather implements prometheus.Gatherer.
func (e extraLabels) Gather() ([]*dto.MetricFamily, error) {
	families, err := e.Gatherer.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			m.Label = e.addTo(m.GetLabel())
		}
	}
	return families, err
}

// addTo returns a sorted copy of own with the extra labels. Metrics share the slice own.
func (e extraLabels) addTo(own []*dto.LabelPair) []*dto.LabelPair {
	all := slices.Clone(own)
	for _, extra := range e.labels {
		hasName := func(l *dto.LabelPair) bool { return l.GetName() == extra.GetName() }
		if !slices.ContainsFunc(own, hasName) {
			all = append(all, extra)
		}
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}
