package descriptors

import (
	"cmp"
	"math"

	"github.com/cespare/xxhash/v2"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// AppendKey appends the name of the counter of r for entries: domain|key=value|key=value. In place of the value of a
// descriptor with share_threshold, the name has the pattern, or a = and the condition. Special bytes are escaped as %XX.
//
// All limits of r have the same name. A counter is identified by this name and by the Tag of the limit.
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

// AppendBoundedKey does what AppendKey does, for a rule without share_threshold. It never allocates: if the name is longer
// than the free capacity of dst, it appends only the start of the name.
func AppendBoundedKey(dst []byte, domain string, entries []*ratelimitv3.RateLimitDescriptor_Entry) []byte {
	appendSeparator := func(separator byte) {
		if len(dst) < cap(dst) {
			dst = append(dst, separator)
		}
	}
	dst = appendBounded(dst, domain)
	for i := 0; i < len(entries) && len(dst) < cap(dst); i++ {
		appendSeparator('|')
		dst = appendBounded(dst, entries[i].GetKey())
		appendSeparator('=')
		dst = appendBounded(dst, entries[i].GetValue())
	}
	return dst
}

// appendBounded appends s, escaped as a value, until dst has no free capacity.
func appendBounded(dst []byte, s string) []byte {
	for i := 0; i < len(s) && len(dst) < cap(dst); i++ {
		var buffer [3]byte // an escaped byte has 3 bytes: %XX
		escaped := appendEscaped(buffer[:0], s[i:i+1], &escapedInValue)
		dst = append(dst, escaped[:min(len(escaped), cap(dst)-len(dst))]...)
	}
	return dst
}

// escapedInValue[c] reports whether appendEscaped escapes the byte c in a value. escapedInPattern is for patterns, which keep
// their *.
var escapedInValue, escapedInPattern = func() (value, pattern [256]bool) {
	for c := range value {
		value[c] = c <= ' ' || c > '~' || c == '|' || c == '=' || c == '%' || c == '*'
	}
	pattern = value
	pattern['*'] = false
	return value, pattern
}()

// appendEscaped appends s, with each byte c of isEscaped[c] as %XX.
func appendEscaped(dst []byte, s string, isEscaped *[256]bool) []byte {
	const hex = "0123456789ABCDEF"
	nextIndex := 0 // the index of the first byte that is not appended
	for i := range len(s) {
		if c := s[i]; isEscaped[c] {
			dst = append(dst, s[nextIndex:i]...)
			dst = append(dst, '%', hex[c>>4], hex[c&15])
			nextIndex = i + 1
		}
	}
	return append(dst, s[nextIndex:]...)
}

// enforcement chooses the keys of a rule that can be denied. All replicas choose the same keys. A larger percentage
// also chooses all keys that a smaller percentage chooses.
type enforcement struct {
	percent float64 // 0 means 100
	hashEnd uint64  // keys with a hash below hashEnd can be denied; 0 means all keys
}

func newEnforcement(percent float64) enforcement {
	if percent <= 0 || percent >= 100 {
		return enforcement{}
	}
	return enforcement{percent, uint64(percent / 100 * math.MaxUint64)}
}

// IsShadowed reports whether a request passes even if the counter with the name key denies the request.
func (r *Rule) IsShadowed(key []byte) bool {
	if r.ShadowMode || r.enforcement.hashEnd == 0 {
		return r.ShadowMode
	}
	return xxhash.Sum64(key) >= r.enforcement.hashEnd
}

// EnforcedPercent returns the percentage of the keys that can be denied: above 0, and at most 100.
func (r *Rule) EnforcedPercent() float64 {
	return cmp.Or(r.enforcement.percent, 100)
}
