package metrics

import (
	"cmp"
	"regexp"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

var notInLabelName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// extraLabels are labels that each metric gets, unless the metric has a label with the same name.
type extraLabels []*dto.LabelPair

// extraLabelsOf returns labels for tags. Underscores replace the characters that the name of a label can't have.
func extraLabelsOf(tags map[string]string) extraLabels {
	byName := map[string]string{}
	for name, value := range tags {
		name = notInLabelName.ReplaceAllString(name, "_")
		if name[0] >= '0' && name[0] <= '9' {
			name = "_" + name
		}
		byName[name] = value
	}
	var labels extraLabels
	for name, value := range byName {
		labels = append(labels, &dto.LabelPair{Name: &name, Value: &value})
	}
	return labels
}

// addTo returns ownLabels and the extra labels, sorted by name. It does not change ownLabels, because metrics share them.
func (e extraLabels) addTo(ownLabels []*dto.LabelPair) []*dto.LabelPair {
	if len(e) == 0 {
		return ownLabels
	}
	labels := slices.Clone(ownLabels)
	for _, extra := range e {
		hasName := func(l *dto.LabelPair) bool { return l.GetName() == extra.GetName() }
		if !slices.ContainsFunc(ownLabels, hasName) {
			labels = append(labels, extra)
		}
	}
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
