package metrics

import (
	"regexp"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
)

const (
	// maxMetricKey is the length of the longest metric key in bytes. Requests with a longer key count as otherValue.
	maxMetricKey = 256

	// otherValue replaces the values that have no series of their own.
	otherValue = "other"
)

// series has the counts that share one set of labels.
type series struct {
	hitCounts
	totalAtLastCheck uint64 // the total at the last call of deleteIdleValues; the mutex of limitTable guards this field
	key              string // the metric key after PlainKey
	path             string // the path of the rule, with values of requests in place of patterns
}

// ruleLabels are the labels of a series of a rule, in the order of ruleLabelNames.
type ruleLabels [len(ruleLabelNames)]string

var ruleLabelNames = [...]string{"domain", "key1", "key2", "rule"}

const ruleLabel = 3 // the index of the label rule

func newSeries(l *limitSeries, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) *series {
	s := &series{}
	s.setNames(l, rule, entries)
	return s
}

// setNames sets the key and the path of s. s is a series of l, for requests with these entries.
func (s *series) setNames(l *limitSeries, rule *descriptors.Rule, entries []*ratelimitv3.RateLimitDescriptor_Entry) {
	var memory [maxMetricKey]byte
	s.key = PlainKey(string(rule.AppendMetricKey(memory[:0], l.domain, entries)))
	s.path = rule.MetricPath(entries)
	if l.name.limit != "" {
		s.path += " (" + l.name.limit + ")"
	}
}

// labels returns the labels that envoyproxy/ratelimit has for s: the domain, key1 and key2 are the first three parts of
// the key, which dots separate.
func (s *series) labels() (labels ruleLabels) {
	remainder := validText(s.key)
	for i := range ruleLabel {
		labels[i], remainder, _ = strings.Cut(remainder, ".")
	}
	labels[ruleLabel] = validText(s.path)
	return labels
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
