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

// Table has the overrides, rules and switches that were set at run time, valid or not. It isn't safe for concurrent use.
type Table struct{ records map[string]*record }

type record struct {
	value            string
	notes            limitsfile.Notes
	override         *Override // nil if value is not an override
	parseErr         error
	lastGoodOverride *Override // the last override that was in force, or nil
	state            State
	hazards          fields.Problems // see outcome
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
	ProblemsOfOthers []error
}

// Field returns the name of the field in Redis.
func (s *State) Field() string { return Field(s.Kind, s.Target) }

func newRecord(field, value string) *record {
	r := &record{value: value, notes: NotesOf(value)}
	if r.override, r.parseErr = Parse(field, []byte(value)); r.override == nil {
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
func (l *Table) Set(values map[string]string) {
	oldRecords := l.records
	l.records = map[string]*record{}
	for field, value := range values {
		r := oldRecords[field]
		if r == nil || r.value != value {
			r = newRecord(field, value)
			if oldRecords[field] != nil {
				r.lastGoodOverride = oldRecords[field].lastGoodOverride
			}
		}
		l.records[field] = r
	}
}

// Apply returns base with the overrides that are in force at now, and the time at which the next one ends, or the
// zero Time. If an override is invalid or doesn't fit base, the last good one of its field stays in force until it
// ends.
func (l *Table) Apply(base *limitsfile.Set, now time.Time) (set *limitsfile.Set, nextEnd time.Time) {
	names := slices.Sorted(maps.Keys(l.records))
	chosen := make([]*Override, len(names)) // nil: none
	for i, field := range names {
		r := l.records[field]
		r.state = r.newState(field, r.parseErr)
		if r.override == nil {
			chosen[i] = r.lastGoodOverride
		} else if chosen[i] = r.override; r.override.Ended(now) {
			r.state.Expired, r.lastGoodOverride = true, nil
		}
		if chosen[i] != nil && chosen[i].Ended(now) {
			chosen[i] = nil
		}
	}
	// If an override doesn't fit, its last good one takes its place, and all are applied again.
	for mustRetry := true; mustRetry; {
		mustRetry = false
		var outcomes []outcome
		set, outcomes = apply(base, slices.DeleteFunc(slices.Clone(chosen), func(o *Override) bool { return o == nil }))
		for i, field := range names {
			if chosen[i] == nil {
				continue
			}
			r, out := l.records[field], outcomes[0]
			outcomes = outcomes[1:]
			r.state.Path, r.state.BaseLimits, r.state.Limits = out.Path, out.BaseLimits, out.Limits
			r.state.CountersKept, r.hazards = out.CountersKept, out.hazards
			if out.Problem == nil {
				continue
			}
			if r.state.Problem == nil {
				r.state.Problem, r.state.Waiting = out.Problem, out.Waiting
			}
			if chosen[i] == r.lastGoodOverride || r.lastGoodOverride == nil || r.lastGoodOverride.Ended(now) {
				chosen[i] = nil
			} else {
				chosen[i], mustRetry = r.lastGoodOverride, true
			}
		}
	}
	for i, field := range names {
		r := l.records[field]
		if r.override != nil {
			nextEnd = r.override.earlierEnd(nextEnd, now)
		}
		if chosen[i] == nil {
			r.state.Limits, r.state.CountersKept = "", false
			continue
		}
		r.lastGoodOverride = chosen[i]
		nextEnd = r.lastGoodOverride.earlierEnd(nextEnd, now)
	}
	return set, nextEnd
}

// earlierEnd returns the end of o if it lies between now and next, else next.
func (o *Override) earlierEnd(nextEnd, now time.Time) time.Time {
	if o.Expires.IsZero() || o.Ended(now) || !nextEnd.IsZero() && nextEnd.Before(o.Expires) {
		return nextEnd
	}
	return o.Expires
}

// States returns the states after the last Apply, sorted by field.
func (l *Table) States() []State {
	var states []State
	for _, field := range slices.Sorted(maps.Keys(l.records)) {
		states = append(states, l.records[field].state)
	}
	return states
}

// DryRun returns the state that a field would have if value were put now. It changes nothing. A new rule that would
// take requests from other rules is a problem.
func (l *Table) DryRun(base *limitsfile.Set, field, value string, now time.Time) State {
	copied := Table{records: map[string]*record{}}
	for f, r := range l.records {
		clone := *r
		copied.records[f] = &clone
	}
	r := newRecord(field, value)
	if r.override != nil {
		r.override.isNew = copied.records[field] == nil
	}
	copied.records[field] = r
	copied.Apply(base, now)
	if r.state.Problem == nil && len(r.hazards) > 0 {
		r.state.Problem, r.state.Limits = r.hazards, ""
	}
	for _, otherState := range copied.States() {
		if current := l.records[otherState.Field()]; otherState.Field() != field && otherState.Problem != nil && current.state.Problem == nil {
			r.state.ProblemsOfOthers = append(r.state.ProblemsOfOthers, otherState.Problem)
		}
	}
	return r.state
}
