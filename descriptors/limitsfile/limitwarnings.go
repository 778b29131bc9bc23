package limitsfile

import (
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
)

// warnLimits warns about limits of desc that never deny, because another limit is tighter.
func (d *document) warnLimits(desc *Descriptor, pos *place) {
	for i, l := range desc.Limits {
		for j, other := range desc.Limits {
			if i != j && other.isTighter(l) && (!l.isTighter(other) || j < i) {
				d.warns = append(d.warns, pendingProblem{fields.Problem{
					File: d.file, Line: l.Line,
					Reason: l.String() + " never denies, because " + other.String() + " is always tighter; remove one of them, or change a number",
				}, pos})
				break
			}
		}
	}
}

// isTighter reports whether l certainly denies each request that other denies.
func (l *Limit) isTighter(other *Limit) bool {
	if l.Unlimited || other.Unlimited || !l.Enabled || !other.Enabled || l.Name != "" || len(l.Replaces)+len(other.Replaces) > 0 {
		return false // a name can be replaced
	}
	a, b := l.Spec, other.Spec
	if a.Timezone != "" || b.Timezone != "" {
		return false // days and months of a calendar have no fixed length
	}
	if a.Algorithm != b.Algorithm || a.Scope != b.Scope || a.OnBackendFailure != b.OnBackendFailure || a.FallbackRatio != b.FallbackRatio || a.Lease || b.Lease {
		return false
	}
	long, short := l.Period(), other.Period() // of the tighter limit and of the other limit
	switch a.Algorithm {
	case limit.FixedWindow:
		if long >= short {
			return long%short == 0 && a.Requests <= b.Requests && (a.ChargeDenied || !b.ChargeDenied)
		}
		return short%long == 0 && !b.ChargeDenied && uint64(a.Requests)*uint64(short/long) <= uint64(b.Requests)
	case limit.SlidingLog:
		if a.ChargeDenied || b.ChargeDenied {
			return false
		}
		windows := uint64((short + long - 1) / long)
		return uint64(a.Requests)*windows <= uint64(b.Requests)
	case limit.TokenBucket:
		// Rates are compared as fractions of requests and periods.
		return !a.ChargeDenied && !b.ChargeDenied && l.Capacity() <= other.Capacity() &&
			float64(a.Requests)/float64(long) <= float64(b.Requests)/float64(short)
	}
	return false
}
