package override

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
)

// ErrNoLimits is the problem of overrides as long as no limits are loaded.
var ErrNoLimits = errors.New("no limits are loaded yet")

// Layer is the overrides that lie over the limits files, good and bad ones. It isn't
// safe for concurrent use; its zero value is empty.
type Layer struct{ byTarget map[string]*record }

// record is the values and the state of one target.
type record struct {
	value    string
	parsed   *Override // nil if value is no override
	parseErr error
	lastGood *Override // the last one that was in force; nil if there is none
	state    State
}

// State is the state of one override.
type State struct {
	// Target is the name of its field in Redis, and Value the content read last.
	Target, Value string

	// Problem is why Value is not in force; nil if it is.
	Problem error

	// Expires is when Value ends; the zero Time means never. Expired is true once it
	// has ended.
	Expires time.Time
	Expired bool

	// Path is the path to its descriptor, and BaseLimits the limits there without the
	// override, in words. Limits is the limits with it: with Value, or with the last good
	// value before it; empty if neither is in force.
	Path, BaseLimits, Limits string

	// CountersKept is true if the limits with the override use the counters of those
	// without. It is false if any limit starts new counters.
	CountersKept bool

	// AlsoRejected is set by DryRun: the problems of other overrides that fit now and
	// would not fit beside this one.
	AlsoRejected []error
}

// Set replaces all overrides; all has their values by target.
func (l *Layer) Set(all map[string]string) {
	if l.byTarget == nil {
		l.byTarget = map[string]*record{}
	}
	maps.DeleteFunc(l.byTarget, func(target string, _ *record) bool {
		_, ok := all[target]
		return !ok
	})
	for target, value := range all {
		r := l.byTarget[target]
		if r == nil {
			r = &record{}
			l.byTarget[target] = r
		} else if r.value == value {
			continue
		}
		r.value = value
		r.parsed, r.parseErr = Parse(target, []byte(value))
		r.state = State{Target: target, Value: value, Problem: ErrNoLimits} // until Apply
	}
}

// Apply returns base with the overrides that are in force at now, and the time at which
// the next override ends; the zero Time if none does. If an override is wrong or doesn't
// fit base, the last good one of its target stays in force until it ends.
func (l *Layer) Apply(base *limitsfile.Set, now time.Time) (set *limitsfile.Set, next time.Time) {
	targets := slices.Sorted(maps.Keys(l.byTarget))
	candidates := make([]*Override, len(targets)) // nil: none
	for i, target := range targets {
		r := l.byTarget[target]
		r.state = State{Target: target, Value: r.value, Problem: r.parseErr}
		if r.parsed == nil {
			candidates[i] = r.lastGood
		} else if candidates[i] = r.parsed; r.parsed.ended(now) {
			r.state.Expired, r.lastGood = true, nil
		}
		if candidates[i] != nil && candidates[i].ended(now) {
			candidates[i] = nil
		}
	}
	// An override that doesn't fit gives way to the last good one, and all are applied
	// again.
	for again := true; again; {
		again = false
		var outcomes []outcome
		set, outcomes = apply(base, slices.DeleteFunc(slices.Clone(candidates), func(o *Override) bool { return o == nil }))
		for i, target := range targets {
			if candidates[i] == nil {
				continue
			}
			r, out := l.byTarget[target], outcomes[0]
			outcomes = outcomes[1:]
			r.state.Path, r.state.BaseLimits, r.state.Limits = out.path, out.baseLimits, out.limits
			r.state.CountersKept = out.countersKept
			if len(out.problems) == 0 {
				continue
			}
			if r.state.Problem == nil {
				r.state.Problem = out.problems
			}
			if candidates[i] == r.lastGood || r.lastGood == nil || r.lastGood.ended(now) {
				candidates[i] = nil
			} else {
				candidates[i], again = r.lastGood, true
			}
		}
	}
	for i, target := range targets {
		r := l.byTarget[target]
		if r.parsed != nil {
			r.state.Expires = r.parsed.Expires
			next = r.parsed.sooner(next, now)
		}
		if candidates[i] == nil {
			r.state.Limits, r.state.CountersKept = "", false
			continue
		}
		r.lastGood = candidates[i]
		next = r.lastGood.sooner(next, now)
	}
	return set, next
}

// sooner returns the end of o if it lies between now and next, else next.
func (o *Override) sooner(next, now time.Time) time.Time {
	if o.Expires.IsZero() || o.ended(now) || !next.IsZero() && next.Before(o.Expires) {
		return next
	}
	return o.Expires
}

// States returns the state of each override after the last Apply, sorted by target.
func (l *Layer) States() []State {
	var all []State
	for _, target := range slices.Sorted(maps.Keys(l.byTarget)) {
		all = append(all, l.byTarget[target].state)
	}
	return all
}

// DryRun returns the state that an override would have over base at now, beside the
// others. It changes nothing.
func (l *Layer) DryRun(base *limitsfile.Set, target, value string, now time.Time) State {
	tried := Layer{byTarget: map[string]*record{}}
	for t, r := range l.byTarget {
		same := *r
		tried.byTarget[t] = &same
	}
	r := &record{value: value}
	r.parsed, r.parseErr = Parse(target, []byte(value))
	tried.byTarget[target] = r
	tried.Apply(base, now)
	for _, other := range tried.States() {
		if known := l.byTarget[other.Target]; other.Target != target && other.Problem != nil && known.state.Problem == nil {
			r.state.AlsoRejected = append(r.state.AlsoRejected, other.Problem)
		}
	}
	return r.state
}
