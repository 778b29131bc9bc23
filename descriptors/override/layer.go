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

// Layer has the overrides of the limits files, valid or not. It isn't
// safe for concurrent use; its zero value is empty.
type Layer struct{ byTarget map[string]*record }

// record is the values and the state of one target.
type record struct {
	value    string
	parsed   *Override // nil if value is not an override
	parseErr error
	lastGood *Override // the last override that was in force, or nil
	state    State
}

// State is the state of one override.
type State struct {
	// Target is the name of the override's field in Redis, and Value the content read last.
	Target, Value string

	// Problem is the reason why Value is not in force, or nil.
	Problem error

	// Expires is the time at which Value ends. The zero Time means never. Expired is true
	// once Value has ended.
	Expires time.Time
	Expired bool

	// Path is the path to the descriptor. BaseLimits describes its limits without the
	// override. Limits describes its limits with Value, or with the last good value. Limits
	// is empty if neither value is in force.
	Path, BaseLimits, Limits string

	// CountersKept is true if the limits use the same counters with and without the
	// override. It is false if any limit starts new counters.
	CountersKept bool

	// AlsoRejected is set by DryRun. It has the problems of other overrides that fit now and
	// would not fit beside this override.
	AlsoRejected []error
}

// Set replaces all overrides with the values in all, by target.
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
// the next override ends, or the zero Time. If an override is invalid or doesn't fit base,
// the last good override of its target stays in force until it ends.
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
	// If an override doesn't fit, the last good override takes its place, and all overrides
	// are applied again.
	for retry := true; retry; {
		retry = false
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
				candidates[i], retry = r.lastGood, true
			}
		}
	}
	for i, target := range targets {
		r := l.byTarget[target]
		if r.parsed != nil {
			r.state.Expires = r.parsed.Expires
			next = r.parsed.earlierEnd(next, now)
		}
		if candidates[i] == nil {
			r.state.Limits, r.state.CountersKept = "", false
			continue
		}
		r.lastGood = candidates[i]
		next = r.lastGood.earlierEnd(next, now)
	}
	return set, next
}

// earlierEnd returns the end of o if it lies between now and next, else next.
func (o *Override) earlierEnd(next, now time.Time) time.Time {
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

// DryRun returns the state that the override would have if it were put now. Base and the
// other overrides stay as they are.
func (l *Layer) DryRun(base *limitsfile.Set, target, value string, now time.Time) State {
	trial := Layer{byTarget: map[string]*record{}}
	for t, r := range l.byTarget {
		clone := *r
		trial.byTarget[t] = &clone
	}
	r := &record{value: value}
	r.parsed, r.parseErr = Parse(target, []byte(value))
	trial.byTarget[target] = r
	trial.Apply(base, now)
	for _, other := range trial.States() {
		if current := l.byTarget[other.Target]; other.Target != target && other.Problem != nil && current.state.Problem == nil {
			r.state.AlsoRejected = append(r.state.AlsoRejected, other.Problem)
		}
	}
	return r.state
}
