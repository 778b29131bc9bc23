package descriptors

import (
	"math"

	"github.com/cespare/xxhash/v2"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// AppendKey appends the name of the counter of r for entries: domain|key=value|key=value. With share_threshold, the
// name has the pattern, or a = and the condition, in place of the value. Special bytes are escaped as %XX.
//
// The name does not contain the Tag of a limit. Limits with the same Tag and name share a counter.
func (r *Rule) AppendKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	dst = appendEscaped(dst, domain, &escapedInValue)
	if r.isUntested {
		return append(dst, untestedCounter...)
	}
	for i, e := range entries {
		dst = append(dst, '|')
		dst = appendEscaped(dst, e.GetKey(), &escapedInValue)
		dst = append(dst, '=')
		if i < len(r.sharedValues) && r.sharedValues[i] != "" {
			dst = append(dst, r.sharedValues[i]...)
		} else {
			dst = appendEscaped(dst, e.GetValue(), &escapedInValue)
		}
	}
	return dst
}

// AppendCutKey is AppendKey for a rule without share_threshold. When dst has no free capacity, it cuts the name off.
func AppendCutKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	appendMark := func(mark byte) {
		if len(dst) < cap(dst) {
			dst = append(dst, mark)
		}
	}
	dst = appendCut(dst, domain)
	for i := 0; i < len(entries) && len(dst) < cap(dst); i++ {
		appendMark('|')
		dst = appendCut(dst, entries[i].GetKey())
		appendMark('=')
		dst = appendCut(dst, entries[i].GetValue())
	}
	return dst
}

// appendCut appends s, escaped as a value, until dst has no free capacity.
func appendCut(dst []byte, s string) []byte {
	for i := 0; i < len(s) && len(dst) < cap(dst); i++ {
		var memory [3]byte
		escaped := appendEscaped(memory[:0], s[i:i+1], &escapedInValue)
		dst = append(dst, escaped[:min(len(escaped), cap(dst)-len(dst))]...)
	}
	return dst
}

// escapedInValue and escapedInPattern are true for the bytes that appendEscaped escapes in a value or in a pattern.
var escapedInValue, escapedInPattern = func() (value, pattern [256]bool) {
	for c := range value {
		value[c] = c <= ' ' || c > '~' || c == '|' || c == '=' || c == '%' || c == '*'
	}
	pattern = value
	pattern['*'] = false
	return value, pattern
}()

func appendEscaped(dst []byte, s string, escape *[256]bool) []byte {
	const hex = "0123456789ABCDEF"
	appended := 0
	for i := range len(s) {
		if c := s[i]; escape[c] {
			dst = append(dst, s[appended:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			appended = i + 1
		}
	}
	return append(dst, s[appended:]...)
}

// enforcement chooses the keys of a rule that can be denied. All replicas choose the same keys. A larger percentage
// chooses all keys that a smaller percentage chooses.
type enforcement struct {
	percent float64 // 0 means 100
	end     uint64  // keys with a smaller hash can be denied
}

func newEnforcement(percent float64) enforcement {
	if percent <= 0 || percent >= 100 {
		return enforcement{}
	}
	return enforcement{percent, uint64(percent / 100 * math.MaxUint64)}
}

// InShadow reports whether requests pass although the counter with the name key denies them.
func (r *Rule) InShadow(key []byte) bool {
	if r.ShadowMode || r.enforcement.end == 0 {
		return r.ShadowMode
	}
	return xxhash.Sum64(key) >= r.enforcement.end
}

// EnforcedPercent returns the percentage of the keys that can be denied, above 0.
func (r *Rule) EnforcedPercent() float64 {
	if r.enforcement.percent == 0 {
		return 100
	}
	return r.enforcement.percent
}
