package metrics

import (
	"cmp"
	"regexp"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

var invalidLabelCharacter = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// extraLabels are labels that each metric gets, unless the metric already has a label with the same name.
type extraLabels []*dto.LabelPair

// extraLabelsOf returns labels for tags. Underscores replace the characters that the name of a label can't have.
func extraLabelsOf(tags map[string]string) extraLabels {
	valuesByName := map[string]string{}
	for name, value := range tags {
		name = invalidLabelCharacter.ReplaceAllString(name, "_")
		if name[0] >= '0' && name[0] <= '9' {
			name = "_" + name
		}
		valuesByName[name] = value
	}
	var labels extraLabels
	for name, value := range valuesByName {
		labels = append(labels, &dto.LabelPair{Name: &name, Value: &value})
	}
	return labels
}

// addTo returns metricLabels and the extra labels, sorted by name. It does not change metricLabels, because metrics share
// these labels.
func (e extraLabels) addTo(metricLabels []*dto.LabelPair) []*dto.LabelPair {
	if len(e) == 0 {
		return metricLabels
	}
	labels := slices.Clone(metricLabels)
	for _, extraLabel := range e {
		hasName := func(l *dto.LabelPair) bool { return l.GetName() == extraLabel.GetName() }
		if !slices.ContainsFunc(metricLabels, hasName) {
			labels = append(labels, extraLabel)
		}
	}
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
