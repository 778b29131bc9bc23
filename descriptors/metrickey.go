package descriptors

import (
	"cmp"
	"slices"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// metricKey makes the metric keys of a rule. It is nil for the limit of a request.
type metricKey struct {
	// trail has the descriptors from the root of the domain to the rule. In place of a copy that an override made for a
	// single value, trail has the original, so that an override does not rename metrics.
	trail []*limitsfile.Descriptor

	// labels has the domain and the label of each descriptor. It is nil if all requests have the same metric key.
	labels []string
}

func newMetricKey(p path) *metricKey {
	k := &metricKey{trail: make([]*limitsfile.Descriptor, 0, len(p.trail))}
	for _, d := range p.trail {
		k.trail = append(k.trail, cmp.Or(d.Original, d))
	}
	if slices.ContainsFunc(k.trail, k.segmentVaries) {
		k.labels = append(k.labels, fields.Printable(p.domain))
		for _, d := range p.trail {
			k.labels = append(k.labels, d.Label())
		}
	}
	return k
}

// isDetailed reports whether the rule has detailed_metric. The metric key of such a rule has the values of all entries.
func (k *metricKey) isDetailed() bool { return k.trail[len(k.trail)-1].DetailedMetric }

// segmentVaries reports whether the segment of d contains texts of the request.
func (k *metricKey) segmentVaries(d *limitsfile.Descriptor) bool {
	return d.HasWildcardKey || k.valueVaries(d)
}

// valueVaries reports whether the segment of d contains the value of the request.
func (k *metricKey) valueVaries(d *limitsfile.Descriptor) bool {
	hasFixedValue := d.Value != "" && !d.MatchesManyValues()
	return !hasFixedValue && !d.ShareThreshold && (k.isDetailed() || d.ValueToMetric)
}

// MetricKeyVaries reports whether requests that match r can have different metric keys.
func (r *Rule) MetricKeyVaries() bool {
	return !r.isUntested && (r.metricKey == nil || r.metricKey.labels != nil)
}

// MetricFlags returns a text for the fields of the rule that change the metric key, such as value_to_metric. Two rules with
// one path and different fields have different texts. The text is "" if no field changes the key.
func (r *Rule) MetricFlags() string {
	hasFlag := func(d *limitsfile.Descriptor) bool { return d.ValueToMetric || d.ShareThreshold }
	if r.metricKey == nil || !r.metricKey.isDetailed() && !slices.ContainsFunc(r.metricKey.trail, hasFlag) {
		return ""
	}
	flags := make([]byte, len(r.metricKey.trail)+1)
	for i, d := range r.metricKey.trail {
		flags[i] = '0' // the digit is 1 for value_to_metric, plus 2 for share_threshold
		if d.ValueToMetric {
			flags[i]++
		}
		if d.ShareThreshold {
			flags[i] += 2
		}
	}
	if r.metricKey.isDetailed() {
		flags[len(flags)-1] = 'd'
	}
	return string(flags)
}

// AppendMetricKey appends the metric key of r to dst, in the form of envoyproxy/ratelimit: the domain and a segment for
// each entry, separated by dots, such as shop.tenant_acme.path. It escapes nothing. entries must match r.
func (r *Rule) AppendMetricKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	dst = append(dst, domain...)
	if r.isUntested {
		return append(dst, untestedMetric...)
	}
	sharesCounter := r.sharedValues != nil
	for i, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		dst = append(append(dst, '.'), key...)
		hasValue := value != ""
		if r.metricKey != nil {
			d := r.metricKey.trail[i]
			if r.metricKey.isDetailed() {
				value, hasValue = detailedValue(d, key, value, sharesCounter)
			} else {
				value, hasValue = metricValue(d, key, value)
			}
		}
		if hasValue {
			dst = append(append(dst, '_'), value...)
		}
	}
	return dst
}

// detailedValue returns the text after key_ in a segment of a rule with detailed_metric. ok is false if the segment has
// only the key, without a _. If no descriptor of the rule has share_threshold, an empty value keeps the _.
func detailedValue(d *limitsfile.Descriptor, key, value string, sharesCounter bool) (text string, ok bool) {
	if d.ShareThreshold && matchesAsWildcard(d, key, value) {
		return metricPattern(d), true
	}
	return value, value != "" || !sharesCounter
}

// metricValue does what detailedValue does, for a rule without detailed_metric.
func metricValue(d *limitsfile.Descriptor, key, value string) (text string, ok bool) {
	switch isWildcard := matchesAsWildcard(d, key, value); {
	case !isWildcard && d.Value == "" && d.ValueToMetric, isWildcard && d.ValueToMetric && !d.ShareThreshold:
		return value, value != ""
	case !isWildcard:
		return d.Value, d.Value != ""
	}
	return metricPattern(d), true
}

// matchesAsWildcard reports whether an entry matches d only through a * or a condition, because the text of the entry
// differs from the text of d. The entry must match d.
func matchesAsWildcard(d *limitsfile.Descriptor, key, value string) bool {
	return d.HasWildcardKey && (d.Value == "" || key != d.Key || value != d.Value) || d.MatchesManyValues() && value != d.Value
}

// metricPattern returns the pattern of d in a segment, as in envoyproxy/ratelimit: kw* in the segment kw1_kw*.
func metricPattern(d *limitsfile.Descriptor) string {
	switch {
	case !d.HasWildcardKey:
		return d.Value
	case d.Value == "":
		return d.Key
	}
	return d.Key + "_" + d.Value
}

// MetricPath returns the path of r. In the path, the texts of the request that are in the metric key replace the texts of
// the file: `shop > user=alice`.
func (r *Rule) MetricPath(entries []*ratelimitv3.RateLimitDescriptor_Entry) string {
	if !r.MetricKeyVaries() {
		return r.Path
	}
	path := r.Path
	if r.metricKey != nil {
		path = r.metricKey.labels[0]
	}
	for i, e := range entries {
		path += " > " + r.metricKey.label(i, e)
	}
	return path
}

// label returns the part of the path for e, the i-th entry of a request. k is nil for the limit of a request.
func (k *metricKey) label(i int, e *ratelimitv3.RateLimitDescriptor_Entry) string {
	requestEntry := limitsfile.Descriptor{Key: e.GetKey(), Value: e.GetValue()}
	if k == nil {
		return requestEntry.Label()
	}
	switch d := k.trail[i]; {
	case !k.segmentVaries(d):
		return k.labels[i+1]
	case k.valueVaries(d):
		return fields.Printable(requestEntry.Key + "=" + requestEntry.Value)
	default:
		requestEntry.Value = d.Value
		return requestEntry.Label()
	}
}

// ReplaceVaryingTexts returns a copy of entries. In the copy, text replaces the keys and values that vary in the metric
// key of r. All requests of r then have the same metric key.
func (r *Rule) ReplaceVaryingTexts(entries []*ratelimitv3.RateLimitDescriptor_Entry, text string) []*ratelimitv3.RateLimitDescriptor_Entry {
	if r.metricKey == nil {
		return []*ratelimitv3.RateLimitDescriptor_Entry{{Key: text}}
	}
	newEntries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(entries))
	for i, e := range entries {
		d := r.metricKey.trail[i]
		newEntries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.GetKey(), Value: e.GetValue()}
		if d.HasWildcardKey {
			newEntries[i].Key = text
		}
		if r.metricKey.valueVaries(d) {
			newEntries[i].Value = text
		}
	}
	return newEntries
}
