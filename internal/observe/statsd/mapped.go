package statsd

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

// LoadMapping reads a file of mappings of statsd_exporter.
func LoadMapping(file string) (*mapper.MetricMapper, error) {
	m := &mapper.MetricMapper{}
	return m, m.InitFromFile(file)
}

// FamilyMapper returns a function that replaces the metrics of envoyproxy/ratelimit in families. metricMapper makes the new
// metrics from the names that the old metrics have in statsd, as in statsd_exporter.
func FamilyMapper(metricMapper *mapper.MetricMapper, rules func() iter.Seq[metrics.KeyCounts]) func(families []*dto.MetricFamily) ([]*dto.MetricFamily, error) {
	return func(families []*dto.MetricFamily) ([]*dto.MetricFamily, error) {
		reader := pointReader{gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil }), rules: rules}
		points, err := reader.points()
		if err != nil {
			return nil, err
		}
		newFamilies := mappedFamilies{}
		for p := range points {
			if strings.HasPrefix(p.name, "ratelimit") {
				newFamilies.add(metricMapper, &p)
			}
		}
		families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return strings.HasPrefix(f.GetName(), "ratelimit_") })
		return append(families, newFamilies.prometheusFamilies()...), nil
	}
}

type mappedFamilies map[string]*mappedFamily // the key is the name of the family

type mappedFamily struct {
	kind    kind
	help    string
	mapping mapper.MetricMapping     // the zero value if the metric keeps its name
	series  map[string]*mappedSeries // the key is the text of the labels
}

// mappedSeries has the sum of a counter, the value of a gauge, or the calls of a timer.
type mappedSeries struct {
	labels []*dto.LabelPair
	value  float64
	calls  map[float64]int // the numbers of calls; the key is the duration of the calls, in milliseconds unless a mapping has a scale
}

var statsdTypes = map[kind]mapper.MetricType{counter: mapper.MetricTypeCounter, gauge: mapper.MetricTypeGauge, timer: mapper.MetricTypeObserver}

// add adds metricPoint to the series that metricMapper chooses. A family has the kind of its first point. add drops points
// of other kinds.
func (m mappedFamilies) add(metricMapper *mapper.MetricMapper, metricPoint *point) {
	mapping, labels, isMapped := metricMapper.GetMapping(metricPoint.name, statsdTypes[metricPoint.kind])
	if !isMapped {
		mapping = &mapper.MetricMapping{}
	}
	if mapping.Action == mapper.ActionTypeDrop {
		return
	}
	scale := 1.0
	if mapping.Scale.Set {
		scale = mapping.Scale.Val
	}
	name := mapper.EscapeMetricName(cmp.Or(mapping.Name, metricPoint.name))
	family := m[name]
	if family == nil {
		family = &mappedFamily{metricPoint.kind, cmp.Or(mapping.HelpText, "Metric of envoyproxy/ratelimit."), addDefaults(*mapping, metricMapper), map[string]*mappedSeries{}}
		m[name] = family
	}
	if family.kind != metricPoint.kind {
		return
	}
	key := ""
	var labelPairs []*dto.LabelPair
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		value := strings.ToValidUTF8(labels[label], "_")
		key += label + separator + value + separator
		labelPairs = append(labelPairs, &dto.LabelPair{Name: &label, Value: &value})
	}
	series := family.series[key]
	if series == nil {
		series = &mappedSeries{labelPairs, 0, map[float64]int{}}
		family.series[key] = series
	}
	switch metricPoint.kind {
	case counter:
		series.value += metricPoint.value * scale
	case gauge:
		series.value = metricPoint.value * scale
	case timer:
		series.calls[metricPoint.duration.Seconds()*1000*scale] += metricPoint.calls
	}
}

func addDefaults(mapping mapper.MetricMapping, metricMapper *mapper.MetricMapper) mapper.MetricMapping {
	mapping.ObserverType = cmp.Or(mapping.ObserverType, metricMapper.Defaults.ObserverType)
	mapping.HistogramOptions = cmp.Or(mapping.HistogramOptions, &metricMapper.Defaults.HistogramOptions)
	mapping.SummaryOptions = cmp.Or(mapping.SummaryOptions, &metricMapper.Defaults.SummaryOptions)
	return mapping
}

func (m mappedFamilies) prometheusFamilies() (families []*dto.MetricFamily) {
	for name, f := range m {
		family := &dto.MetricFamily{Name: &name, Help: &f.help, Type: f.prometheusType().Enum()}
		for _, key := range slices.Sorted(maps.Keys(f.series)) {
			family.Metric = append(family.Metric, f.newMetric(f.series[key]))
		}
		families = append(families, family)
	}
	return families
}

func (f *mappedFamily) prometheusType() dto.MetricType {
	switch {
	case f.kind == counter:
		return dto.MetricType_COUNTER
	case f.kind == gauge:
		return dto.MetricType_GAUGE
	case f.mapping.ObserverType == mapper.ObserverTypeHistogram:
		return dto.MetricType_HISTOGRAM
	}
	return dto.MetricType_SUMMARY
}

func (f *mappedFamily) newMetric(series *mappedSeries) *dto.Metric {
	metric := &dto.Metric{Label: series.labels}
	durations := slices.Sorted(maps.Keys(series.calls))
	sum, count := 0.0, uint64(0)
	for _, duration := range durations {
		sum, count = sum+duration*float64(series.calls[duration]), count+uint64(series.calls[duration])
	}
	switch f.prometheusType() {
	case dto.MetricType_COUNTER:
		metric.Counter = &dto.Counter{Value: &series.value}
	case dto.MetricType_GAUGE:
		metric.Gauge = &dto.Gauge{Value: &series.value}
	case dto.MetricType_HISTOGRAM:
		metric.Histogram = &dto.Histogram{SampleSum: &sum, SampleCount: &count}
		for _, bound := range f.mapping.HistogramOptions.Buckets {
			metric.Histogram.Bucket = append(metric.Histogram.Bucket, &dto.Bucket{UpperBound: &bound, CumulativeCount: series.callsUpTo(bound)})
		}
	default:
		metric.Summary = &dto.Summary{SampleSum: &sum, SampleCount: &count}
		for _, objective := range f.mapping.SummaryOptions.Quantiles {
			value := math.NaN()
			for _, duration := range slices.Backward(durations) {
				if float64(*series.callsUpTo(duration)) >= objective.Quantile*float64(count) {
					value = duration
				}
			}
			metric.Summary.Quantile = append(metric.Summary.Quantile, &dto.Quantile{Quantile: &objective.Quantile, Value: &value})
		}
	}
	return metric
}

func (s *mappedSeries) callsUpTo(duration float64) *uint64 {
	n := uint64(0)
	for d, calls := range s.calls {
		if d <= duration {
			n += uint64(calls)
		}
	}
	return &n
}
