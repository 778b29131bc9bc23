package descriptors

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// ErrNoLimits is the problem of overrides where there is nothing to override yet.
var ErrNoLimits = errors.New("no limits are loaded yet that could be overridden")

// Overrides is a set of overrides as it comes from outside, good and bad ones. It
// isn't safe for concurrent use; its zero value is empty.
type Overrides struct{ byTarget map[string]*kept }

// kept is what is known of one target.
type kept struct {
	value string
	now   *Override // nil if value is none
	wrong error     // why
	good  *Override // the last one that was in force; nil if there is none
	state OverrideState
}

// OverrideState is what became of one override.
type OverrideState struct {
	// Target is where it is kept, Value what was read there last.
	Target, Value string

	// Problem is why Value is not in force; nil if it is.
	Problem error

	// Expires is when Value ends; the zero Time is never. Expired tells that it has.
	Expires time.Time
	Expired bool

	// Path is the way to its descriptor, Was what the limits are there without it,
	// and Is what they are with what is in force of it: Value, or the last good
	// one before; empty if nothing is.
	Path, Was, Is string

	// AlsoRefused, from Try, are the problems of other overrides that fit now, and
	// would not fit beside it.
	AlsoRefused []error
}

// Set makes all, values by target, the overrides that are known.
func (o *Overrides) Set(all map[string]string) {
	if o.byTarget == nil {
		o.byTarget = map[string]*kept{}
	}
	maps.DeleteFunc(o.byTarget, func(target string, _ *kept) bool {
		_, still := all[target]
		return !still
	})
	for target, value := range all {
		k := o.byTarget[target]
		if k == nil {
			k = &kept{}
			o.byTarget[target] = k
		} else if k.value == value {
			continue
		}
		k.value = value
		k.now, k.wrong = ParseOverride(target, []byte(value))
		k.state = OverrideState{Target: target, Value: value, Problem: ErrNoLimits} // until Over
	}
}

// Over is base with the overrides that hold at now, and when the next one ends, in force
// or not: the zero Time if none does. Where one is wrong, or doesn't fit base, the last good
// one of its target stays in force, as long as it has not ended.
func (o *Overrides) Over(base *Config, now time.Time) (c *Config, next time.Time) {
	targets := slices.Sorted(maps.Keys(o.byTarget))
	try := make([]*Override, len(targets)) // nil for those that are not to be tried
	for i, target := range targets {
		k := o.byTarget[target]
		k.state = OverrideState{Target: target, Value: k.value, Problem: k.wrong}
		if k.now == nil {
			try[i] = k.good
		} else if try[i] = k.now; k.now.ended(now) {
			k.state.Expired, k.good = true, nil
		}
		if try[i] != nil && try[i].ended(now) {
			try[i] = nil
		}
	}
	// What doesn't fit is replaced by what did before, and all is tried again.
	for again := true; again; {
		again = false
		var outcomes []Outcome
		c, outcomes = base.With(slices.DeleteFunc(slices.Clone(try), func(t *Override) bool { return t == nil }))
		for i, target := range targets {
			if try[i] == nil {
				continue
			}
			k, out := o.byTarget[target], outcomes[0]
			outcomes = outcomes[1:]
			k.state.Path, k.state.Was, k.state.Is = out.Path, out.Was, out.Is
			if len(out.Problems) == 0 {
				continue
			}
			if k.state.Problem == nil {
				k.state.Problem = out.Problems
			}
			if try[i] == k.good || k.good == nil || k.good.ended(now) {
				try[i] = nil
			} else {
				try[i], again = k.good, true
			}
		}
	}
	for i, target := range targets {
		k := o.byTarget[target]
		if k.now != nil {
			k.state.Expires = k.now.Expires
			next = k.now.sooner(next, now)
		}
		if try[i] == nil {
			k.state.Is = ""
			continue
		}
		k.good = try[i]
		next = k.good.sooner(next, now)
	}
	return c, next
}

// sooner is the end of o, if that comes after now and before next.
func (o *Override) sooner(next, now time.Time) time.Time {
	if o.Expires.IsZero() || o.ended(now) || !next.IsZero() && next.Before(o.Expires) {
		return next
	}
	return o.Expires
}

func (o *Override) ended(now time.Time) bool { return !o.Expires.IsZero() && !now.Before(o.Expires) }

// States are what became of the overrides the last time that Over was called, by
// target.
func (o *Overrides) States() []OverrideState {
	var all []OverrideState
	for _, target := range slices.Sorted(maps.Keys(o.byTarget)) {
		all = append(all, o.byTarget[target].state)
	}
	return all
}

// Try tells what would become of one more override, or of another value for one,
// over base at now. Nothing is changed.
func (o *Overrides) Try(base *Config, target, value string, now time.Time) OverrideState {
	tried := Overrides{byTarget: map[string]*kept{}}
	for t, k := range o.byTarget {
		same := *k
		tried.byTarget[t] = &same
	}
	k := &kept{value: value}
	k.now, k.wrong = ParseOverride(target, []byte(value))
	tried.byTarget[target] = k
	tried.Over(base, now)
	for _, other := range tried.States() {
		if known := o.byTarget[other.Target]; other.Target != target && other.Problem != nil && known.state.Problem == nil {
			k.state.AlsoRefused = append(k.state.AlsoRefused, other.Problem)
		}
	}
	return k.state
}
