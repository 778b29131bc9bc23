package descriptors

import (
	"math"

	"github.com/cespare/xxhash/v2"
)

// enforcement chooses the keys of a rule that can be denied. All replicas choose the same
// keys, and a larger percentage has all keys of a smaller one.
type enforcement struct {
	percent float64 // 0 stands for 100
	end     uint64  // keys with a smaller hash are enforced
}

func newEnforcement(percent float64) enforcement {
	if percent <= 0 || percent >= 100 {
		return enforcement{}
	}
	return enforcement{percent, uint64(percent / 100 * math.MaxUint64)}
}

// InShadow reports whether denials of a counter let requests pass: the rule is in shadow
// mode, or enforce leaves the key out. key is the name of the counter.
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
