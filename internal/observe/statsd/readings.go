package statsd

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

type kind string

const (
	counter kind = "counter"
	gauge   kind = "gauge"
	timer   kind = "timer"
)

type point struct {
	name     string
	tags     []Tag // the labels of a metric that only rls has
	kind     kind
	value    float64       // the growth of a counter since the last flush, or the value of a gauge
	duration time.Duration // the duration of the calls of a timer
	calls    int           // the number of calls of a timer
}

// pointReader reads the metrics of the process as points. It keeps the counts of the last flush.
type pointReader struct {
	gatherer prometheus.Gatherer
	rules    func() iter.Seq[metrics.KeyCounts]

	counts   map[string]float64 // the counts of the last flush; the key is the name and the labels of a metric
	ruleSums map[ruleKey]metrics.HitSums
}

// ruleKey identifies the counts of a rule. Rules with the same key have the same name in statsd.
type ruleKey struct{ key, id string }

// points returns the points since the last call. It makes the points one by one, because there can be many rules. If the loop
// over the points ends early, the remaining points are lost.
func (r *pointReader) points() (iter.Seq[point], error) {
	families, err := r.gatherer.Gather()
	return func(yield func(point) bool) {
		wantsMore := true
		add := func(p point) { wantsMore = wantsMore && yield(p) }
		r.readRules(add)
		r.readFamilies(families, add)
		readDenyCache(families, add)
	}, err
}

func (r *pointReader) readFamilies(families []*dto.MetricFamily, add func(point)) {
	counts := map[string]float64{}
	for _, family := range families {
		translation, isTranslated := translations[family.GetName()]
		if !isTranslated && !keepsName(family.GetName()) {
			continue
		}
		for _, metric := range family.GetMetric() {
			newPoint, key := point{name: cmp.Or(translation.name, family.GetName())}, family.GetName()
			for _, label := range metric.GetLabel() {
				key += separator + label.GetValue()
				switch {
				case !isTranslated:
					newPoint.tags = append(newPoint.tags, Tag{label.GetName(), label.GetValue()})
				case label.GetName() == translation.label:
					newPoint.name = strings.Replace(newPoint.name, "*", metrics.PlainKey(label.GetValue()), 1)
				}
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				newPoint.kind = counter
				if newPoint.value = r.growth(counts, key, metric.GetCounter().GetValue()); newPoint.value > 0 {
					add(newPoint)
				}
			case dto.MetricType_GAUGE:
				newPoint.kind, newPoint.value = gauge, metric.GetGauge().GetValue()
				add(newPoint)
			case dto.MetricType_HISTOGRAM:
				if isTranslated {
					r.readTimer(counts, newPoint, key, metric.GetHistogram(), add)
				}
			}
		}
	}
	r.counts = counts
}

// readDenyCache calls add with the hits and misses of the deny cache, if the deny cache is on. The gauges have the names
// that envoyproxy/ratelimit gives to its local cache.
func readDenyCache(families []*dto.MetricFamily, add func(point)) {
	isOn, hits, misses := false, 0.0, 0.0
	for _, f := range families {
		isOn = isOn || f.GetName() == "rls_deny_cache_denials_total"
		if f.GetName() != "rls_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == "deny_cache" }) {
				hits += m.GetCounter().GetValue()
			} else {
				misses += m.GetCounter().GetValue()
			}
		}
	}
	if isOn {
		add(point{name: "ratelimit.localcache.hitCount", kind: gauge, value: hits})
		add(point{name: "ratelimit.localcache.missCount", kind: gauge, value: misses})
	}
}

// keepsName reports whether a metric is sent under the name that it has in Prometheus. Metrics such as rls_config_info
// are not sent, because their value is always 1.
func keepsName(name string) bool {
	return strings.HasPrefix(name, "rls_") && !strings.HasSuffix(name, "_info")
}

const separator = "\xff" // separates the parts of a key; no part contains separator

// growth stores the value of a counter in counts, and returns its growth since the last flush. If the value is lower than
// at the last flush, the counter has started again at 0.
func (r *pointReader) growth(counts map[string]float64, key string, value float64) float64 {
	counts[key] = value
	if lastValue := r.counts[key]; value >= lastValue {
		return value - lastValue
	}
	return value
}

// readTimer calls add with a point for each bucket with new calls. The duration of the point is the middle of the bucket.
func (r *pointReader) readTimer(counts map[string]float64, newPoint point, key string, histogram *dto.Histogram, add func(point)) {
	newPoint.kind = timer
	previousCount, lowerBound := 0.0, 0.0
	addBucket := func(bucket string, cumulativeCount, seconds float64) {
		newPoint.calls = int(r.growth(counts, key+separator+bucket, cumulativeCount-previousCount))
		newPoint.duration = time.Duration(seconds * float64(time.Second))
		previousCount = cumulativeCount
		if newPoint.calls > 0 {
			add(newPoint)
		}
	}
	for _, b := range histogram.GetBucket() {
		if upperBound := b.GetUpperBound(); !math.IsInf(upperBound, 1) {
			addBucket(formatValue(upperBound), float64(b.GetCumulativeCount()), (lowerBound+upperBound)/2)
			lowerBound = upperBound
		}
	}
	addBucket("", float64(histogram.GetSampleCount()), lowerBound)
}

func (r *pointReader) readRules(add func(point)) {
	ruleSums := make(map[ruleKey]metrics.HitSums, len(r.ruleSums))
	for currentCounts := range r.rules() {
		key := ruleKey{currentCounts.Key, currentCounts.ID}
		lastSums := r.ruleSums[key]
		for _, m := range metrics.RuleMetrics {
			hits, lastHits := m.Value(&currentCounts.HitSums), m.Value(&lastSums)
			if hits < lastHits { // the rule has started again at 0
				lastHits = 0
			}
			if hits > lastHits {
				add(point{name: "ratelimit.service.rate_limit." + currentCounts.Key + "." + m.Name, kind: counter, value: float64(hits - lastHits)})
			}
		}
		ruleSums[key] = currentCounts.HitSums
	}
	r.ruleSums = ruleSums
}
