package metrics

import (
	"regexp"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

const (
	// maxMetricKey bounds the memory of a series in bytes. Longer keys count as otherValue.
	maxMetricKey = 256

	// otherValue takes the place of the values for which there is no series.
	otherValue = "other"
)

// series has the counts that share one set of labels.
type series struct {
	hitCounts
	checkedTotal uint64 // at the last check for idle values; the mutex of limitTable guards it
	key          string // the metric key without the characters that statsd gives a meaning
	path         string // of the rule, with the values of requests in place of patterns
}

// ruleLabels are the labels of a series of a rule, in the order of ruleLabelNames.
type ruleLabels [len(ruleLabelNames)]string

var ruleLabelNames = [...]string{"domain", "key1", "key2", "rule"}

const ruleLabel = 3 // the index of rule

func newSeries(l *limitSeries, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) *series {
	s := &series{}
	s.setNames(l, rule, entries)
	return s
}

// setNames sets the key and path of s, which is a series of l for requests with entries.
func (s *series) setNames(l *limitSeries, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) {
	var memory [maxMetricKey]byte
	s.key = PlainKey(string(rule.AppendMetricKey(memory[:0], l.domain, entries)))
	s.path = rule.MetricPath(entries)
	if l.name.limit != "" {
		s.path += " (" + l.name.limit + ")"
	}
}

// labels returns the labels of envoyproxy/ratelimit for the key of s: the first three parts between its dots.
func (s *series) labels() (l ruleLabels) {
	rest := validText(s.key)
	for i := range ruleLabel {
		l[i], rest, _ = strings.Cut(rest, ".")
	}
	l[ruleLabel] = validText(s.path)
	return l
}

// validText returns s in valid UTF-8, which Prometheus needs.
func validText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

var (
	statsdReplacer = strings.NewReplacer(":", "_", "|", "_")
	ipAddress      = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
)

// PlainKey returns a metric key as envoyproxy/ratelimit sends it to statsd: with _ for : and
// |, and for the dots of IPv4 addresses.
func PlainKey(key string) string {
	return ipAddress.ReplaceAllStringFunc(statsdReplacer.Replace(key), func(address string) string {
		return strings.ReplaceAll(address, ".", "_")
	})
}
