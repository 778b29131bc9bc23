package metrics

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// RuleMetric is one metric of all rules.
type RuleMetric struct {
	Name, Help string
	Value      func(*HitSums) uint64
	isSparse   bool // a series with the value 0 is left out
}

// RuleMetrics have the names of envoyproxy/ratelimit.
var RuleMetrics = []RuleMetric{
	{"total_hits", "Hits on the rule.", func(s *HitSums) uint64 { return s.Total }, false},
	{"within_limit", "Hits that passed.", func(s *HitSums) uint64 { return s.WithinLimit }, false},
	{"near_limit", "Hits between NEAR_LIMIT_RATIO × the limit and the limit.", func(s *HitSums) uint64 { return s.NearLimit }, false},
	{"over_limit", "Hits beyond the limit, also in shadow mode.", func(s *HitSums) uint64 { return s.OverLimit }, false},
	{"over_limit_with_local_cache", "Hits beyond the limit that the deny cache denied without Redis.", func(s *HitSums) uint64 { return s.DeniedByCache }, false},
	{"shadow_mode", "Hits beyond the limit that passed because the rule is in shadow mode.", func(s *HitSums) uint64 { return s.ShadowHits }, false},
	{"total_negative_hits", "Hits that refunds have taken off.", func(s *HitSums) uint64 { return s.RefundedHits }, true},
}

type ruleSample struct {
	labels ruleLabels
	HitSums
}

// families returns the metrics of rules for which isWanted returns true. All of them describe the same moment.
func (r *rules) families(labels extraLabels, isWanted func(name string) bool) []family {
	var families []family
	var samples []ruleSample
	for _, metric := range RuleMetrics {
		name := "ratelimit_service_rate_limit_" + metric.Name
		if !isWanted(name) {
			continue
		}
		if samples == nil {
			samples = r.samples(time.Now())
		}
		if !slices.ContainsFunc(samples, func(s ruleSample) bool { return !metric.isSparse || metric.Value(&s.HitSums) > 0 }) {
			continue // Prometheus expects at least one series of a metric
		}
		families = append(families, family{name, func(w io.Writer) error {
			return metric.write(w, name, samples, labels)
		}})
	}
	return families
}

// samples returns the counts of all series, sorted by labels. It adds up series with the same labels.
func (r *rules) samples(now time.Time) []ruleSample {
	limits := r.limits.allLimits(now)
	samples := make([]ruleSample, 0, len(limits))
	for _, l := range limits {
		for s := range l.series() {
			sample := ruleSample{s.labels(), s.sums()}
			if r.options.NoRuleLabel {
				sample.labels[ruleLabel] = ""
			}
			samples = append(samples, sample)
		}
	}
	slices.SortFunc(samples, func(a, b ruleSample) int { return slices.Compare(a.labels[:], b.labels[:]) })
	mergedSamples := samples[:0]
	for _, s := range samples {
		if last := len(mergedSamples) - 1; last >= 0 && mergedSamples[last].labels == s.labels {
			mergedSamples[last].add(s.HitSums)
			continue
		}
		mergedSamples = append(mergedSamples, s)
	}
	return mergedSamples
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// write writes the lines of a metric itself, because the library would need several times the memory of the rules.
func (m *RuleMetric) write(w io.Writer, name string, samples []ruleSample, extraLabels extraLabels) error {
	var ruleLabelPairs []*dto.LabelPair
	for _, label := range ruleLabelNames {
		ruleLabelPairs = append(ruleLabelPairs, &dto.LabelPair{Name: &label})
	}
	labels := extraLabels.addTo(ruleLabelPairs)
	writer := bufio.NewWriter(w)
	fmt.Fprintf(writer, "# HELP %s %s\n# TYPE %s counter\n", name, m.Help, name)
	var line []byte
	for i := range samples {
		value := m.Value(&samples[i].HitSums)
		if value == 0 && m.isSparse {
			continue
		}
		line = append(line[:0], name...)
		separator := byte('{')
		for _, label := range labels {
			line = append(line, separator)
			line = append(line, label.GetName()...)
			line = append(line, `="`...)
			value := label.GetValue()
			if index := slices.Index(ruleLabelNames[:], label.GetName()); index >= 0 { // the other labels are extra labels
				value = samples[i].labels[index]
			}
			line = append(line, labelEscaper.Replace(value)...)
			line = append(line, '"')
			separator = ','
		}
		line = append(line, "} "...)
		line = strconv.AppendFloat(line, float64(value), 'g', -1, 64)
		if _, err := writer.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return writer.Flush()
}
