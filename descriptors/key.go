package descriptors

import ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

// AppendKey appends the name of the counter of entries under r to dst:
// domain|key=value|key=value. Different domains and entries have different
// names, but for the values that share a counter by share_threshold: in their
// place is the pattern, with its * as such. In all else every byte that is not a
// visible ASCII character, and each of | = % *, is written %XX.
//
// A limit's Tag is not part of it: limits with one Tag and one key share their
// counter, also a request's own limit and a configured one.
func (r *Rule) AppendKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	dst = appendEscaped(dst, domain, &literal)
	for i, e := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, e.GetKey(), &literal)
		dst = append(dst, '=')
		if r.shares && i < len(r.trail) && r.trail[i].share {
			dst = appendEscaped(dst, r.trail[i].pattern(), &pattern)
		} else {
			dst = appendEscaped(dst, e.GetValue(), &literal)
		}
	}
	return dst
}

// literal and pattern tell the bytes to be escaped.
var literal, pattern = func() (l, p [256]bool) {
	for c := range l {
		l[c] = c <= ' ' || c > '~' || c == '|' || c == '=' || c == '%' || c == '*'
	}
	p = l
	p['*'] = false
	return l, p
}()

func appendEscaped(dst []byte, s string, escape *[256]bool) []byte {
	const hex = "0123456789ABCDEF"
	done := 0
	for i := range len(s) {
		if c := s[i]; escape[c] {
			dst = append(dst, s[done:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			done = i + 1
		}
	}
	return append(dst, s[done:]...)
}

// AppendMetricKey appends the name of r in metrics for entries that met it, as
// envoyproxy/ratelimit composes it: the domain and one segment for each entry,
// joined by dots. value_to_metric and detailed_metric put values of the request
// in. Nothing is escaped.
func (r *Rule) AppendMetricKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	dst = append(dst, domain...)
	for i, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		dst = append(append(dst, '.'), key...)
		switch {
		case i >= len(r.trail): // a request's own limit
			if value == "" {
				continue
			}
		case r.DetailedMetric:
			if n := r.trail[i]; n.share && n.wildFor(key, value) {
				value = n.metricPattern()
			} else if value == "" && r.shares { // else it keeps its _
				continue
			}
		default:
			var ok bool
			if value, ok = r.trail[i].metricValue(key, value); !ok {
				continue
			}
		}
		dst = append(append(dst, '_'), value...)
	}
	return dst
}

// metricValue is what stands behind the key in a segment, if anything.
func (n *node) metricValue(key, value string) (string, bool) {
	switch {
	case !n.wildFor(key, value):
		if n.value == "" && n.valueToMetric {
			return value, value != ""
		}
		return n.value, n.value != ""
	case n.valueToMetric && !n.share:
		return value, value != ""
	}
	return n.metricPattern(), true
}

// wildFor tells whether an entry met n as a wildcard.
func (n *node) wildFor(key, value string) bool {
	return n.keyWild && (n.value == "" || key != n.key || value != n.value) ||
		n.valueWild && value != n.value
}

// metricPattern is the pattern in a segment. Where the * is in the key that is
// all of the descriptor, as in envoyproxy/ratelimit: kw1_kw*.
func (n *node) metricPattern() string {
	if n.keyWild {
		return n.composite()
	}
	return n.value
}
