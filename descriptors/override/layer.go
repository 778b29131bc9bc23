package override

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// ErrNoLimits is the problem of overrides as long as no limits are loaded.
var ErrNoLimits = errors.New("no limits are loaded yet")

// Layer has the overrides, rules and switches of run time, valid or not. It isn't safe for concurrent use.
type Layer struct{ byField map[string]*record }

type record struct {
	value    string
	notes    limitsfile.Notes
	parsed   *Override // nil if value is not an override
	parseErr error
	lastGood *Override // the last override that was in force, or nil
	state    State
	hazards  fields.Problems // see outcome
}

// State is the state of one override, rule or switch.
type State struct {
	Kind Kind

	// Target and Kind make the name of the field in Redis. Value is its content.
	Target, Value string

	// Problem is the reason why Value is not in force, or nil. Waiting reports that a valid Value waits for limits,
	// a domain or a descriptor.
	Problem error
	Waiting bool

	// Notes are those of Value. If Value is invalid, Expires is the zero Time.
	limitsfile.Notes

	// Expired is true once Value has ended.
	Expired bool

	// Path is the path to the descriptor. BaseLimits describes its limits without the override, and Limits with
	// Value or the last good value. Limits is empty if neither is in force.
	Path, BaseLimits, Limits string

	// CountersKept reports that the limits use the same counters with and without the override.
	CountersKept bool

	// AlsoRejected, of a DryRun, has the problems of overrides that would no longer fit.
	AlsoRejected []error
}

// Field returns the name of the field in Redis.
func (s *State) Field() string { return Field(s.Kind, s.Target) }

func newRecord(field, value string) *record {
	r := &record{value: value, notes: NotesOf(value)}
	if r.parsed, r.parseErr = Parse(field, []byte(value)); r.parsed == nil {
		r.notes.Expires = time.Time{}
	}
	r.state = r.newState(field, ErrNoLimits)
	return r
}

func (r *record) newState(field string, problem error) State {
	kind, target := SplitField(field)
	return State{Kind: kind, Target: target, Value: r.value, Notes: r.notes, Problem: problem, Waiting: errors.Is(problem, ErrNoLimits)}
}

// Set replaces all values with those in all, by field.
func (l *Layer) Set(all map[string]string) {
	old := l.byField
	l.byField = map[string]*record{}
	for field, value := range all {
		r := old[field]
		if r == nil || r.value != value {
			r = newRecord(field, value)
			if old[field] != nil {
				r.lastGood = old[field].lastGood
			}
		}
		l.byField[field] = r
	}
}

// Apply returns base with the overrides that are in force at now, and the time at which the next one ends, or the
// zero Time. If an override is invalid or doesn't fit base, the last good one of its field stays in force until it
// ends.
func (l *Layer) Apply(base *limitsfile.Set, now time.Time) (set *limitsfile.Set, next time.Time) {
	fields := slices.Sorted(maps.Keys(l.byField))
	candidates := make([]*Override, len(fields)) // nil: none
	for i, field := range fields {
		r := l.byField[field]
		r.state = r.newState(field, r.parseErr)
		if r.parsed == nil {
			candidates[i] = r.lastGood
		} else if candidates[i] = r.parsed; r.parsed.Ended(now) {
			r.state.Expired, r.lastGood = true, nil
		}
		if candidates[i] != nil && candidates[i].Ended(now) {
			candidates[i] = nil
		}
	}
	// If an override doesn't fit, its last good one takes its place, and all are applied again.
	for retry := true; retry; {
		retry = false
		var outcomes []outcome
		set, outcomes = apply(base, slices.DeleteFunc(slices.Clone(candidates), func(o *Override) bool { return o == nil }))
		for i, field := range fields {
			if candidates[i] == nil {
				continue
			}
			r, out := l.byField[field], outcomes[0]
			outcomes = outcomes[1:]
			r.state.Path, r.state.BaseLimits, r.state.Limits = out.Path, out.BaseLimits, out.Limits
			r.state.CountersKept, r.hazards = out.CountersKept, out.hazards
			if out.Problem == nil {
				continue
			}
			if r.state.Problem == nil {
				r.state.Problem, r.state.Waiting = out.Problem, out.Waiting
			}
			if candidates[i] == r.lastGood || r.lastGood == nil || r.lastGood.Ended(now) {
				candidates[i] = nil
			} else {
				candidates[i], retry = r.lastGood, true
			}
		}
	}
	for i, field := range fields {
		r := l.byField[field]
		if r.parsed != nil {
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
	if o.Expires.IsZero() || o.Ended(now) || !next.IsZero() && next.Before(o.Expires) {
		return next
	}
	return o.Expires
}

// States returns the states after the last Apply, sorted by field.
func (l *Layer) States() []State {
	var all []State
	for _, field := range slices.Sorted(maps.Keys(l.byField)) {
		all = append(all, l.byField[field].state)
	}
	return all
}

// DryRun returns the state that a field would have if value were put now. It changes nothing. A new rule that would
// take requests from other rules is a problem.
func (l *Layer) DryRun(base *limitsfile.Set, field, value string, now time.Time) State {
	trial := Layer{byField: map[string]*record{}}
	for f, r := range l.byField {
		clone := *r
		trial.byField[f] = &clone
	}
	r := newRecord(field, value)
	if r.parsed != nil {
		r.parsed.isNew = trial.byField[field] == nil
	}
	trial.byField[field] = r
	trial.Apply(base, now)
	if r.state.Problem == nil && len(r.hazards) > 0 {
		r.state.Problem, r.state.Limits = r.hazards, ""
	}
	for _, other := range trial.States() {
		if current := l.byField[other.Field()]; other.Field() != field && other.Problem != nil && current.state.Problem == nil {
			r.state.AlsoRejected = append(r.state.AlsoRejected, other.Problem)
		}
	}
	return r.state
}
