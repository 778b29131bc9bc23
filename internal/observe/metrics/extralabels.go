package metrics

import (
	"cmp"
	"regexp"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

var notInLabelName = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// extraLabels are labels that all metrics get, unless they have a label of the same name.
type extraLabels []*dto.LabelPair

// extraLabelsOf returns labels for tags. Underscores replace what the name of a label can't have.
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

// addTo returns own with the extra labels, sorted. It does not change own, which metrics share.
func (e extraLabels) addTo(own []*dto.LabelPair) []*dto.LabelPair {
	if len(e) == 0 {
		return own
	}
	all := slices.Clone(own)
	for _, extra := range e {
		hasName := func(l *dto.LabelPair) bool { return l.GetName() == extra.GetName() }
		if !slices.ContainsFunc(own, hasName) {
			all = append(all, extra)
		}
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}
