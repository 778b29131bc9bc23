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

// Table has all overrides, rules and switches that are set at run time, valid or not. It isn't safe for concurrent use.
type Table struct{ records map[string]*record } // by the name of the field in Redis

type record struct {
	value            string // the JSON in Redis
	notes            limitsfile.Notes
	override         *Override // nil if value is invalid
	parseErr         error
	lastGoodOverride *Override // the last override that was in force, or nil
	state            State
	newRuleProblems  fields.Problems // from the last Apply: problems that reject a new rule, but not a rule that exists
}

// State is the state of one override, rule or switch.
type State struct {
	Kind Kind

	// Target and Kind make the name of the field in Redis. Value is the value of the field.
	Target, Value string

	// Problem is the reason why Value is not in force, or nil. IsWaiting means that Value comes into force when the limits
	// have the domain and the descriptor of Target.
	Problem   error
	IsWaiting bool

	// Notes are the author, the reason and the end of the change, as Value has them. If Value is invalid, ExpiresAt is the
	// zero Time.
	limitsfile.Notes

	// IsExpired reports whether Value has expired.
	IsExpired bool

	// Path is the path to the descriptor. BaseLimits has the limits without the override, in words. Limits has the limits
	// with Value, or with the last good value, in words. Limits is empty if neither value is in force.
	Path, BaseLimits, Limits string

	// KeepsCounters reports whether the limits use the same counters with and without the override.
	KeepsCounters bool

	// ProblemsOfOthers has the problems that Value would cause for other overrides. Only DryRun sets ProblemsOfOthers.
	ProblemsOfOthers []error
}

// Field returns the name of the field in Redis.
func (s *State) Field() string { return Field(s.Kind, s.Target) }

func newRecord(field, value string) *record {
	r := &record{value: value, notes: NotesOf(value)}
	if r.override, r.parseErr = Parse(field, []byte(value)); r.override == nil {
		r.notes.ExpiresAt = time.Time{}
	}
	r.state = r.newState(field, ErrNoLimits)
	return r
}

func (r *record) newState(field string, problem error) State {
	kind, target := SplitField(field)
	return State{Kind: kind, Target: target, Value: r.value, Notes: r.notes, Problem: problem, IsWaiting: errors.Is(problem, ErrNoLimits)}
}

// Set replaces all overrides, rules and switches by values. The keys of values are names of fields in Redis. If a value
// changes, its record keeps the last good override.
func (t *Table) Set(values map[string]string) {
	oldRecords := t.records
	t.records = map[string]*record{}
	for field, value := range values {
		r := oldRecords[field]
		if r == nil || r.value != value {
			r = newRecord(field, value)
			if oldRecords[field] != nil {
				r.lastGoodOverride = oldRecords[field].lastGoodOverride
			}
		}
		t.records[field] = r
	}
}

// Apply returns base with the overrides that are in force at now. nextExpiry is the time at which the next override expires,
// or the zero Time. If an override is invalid or doesn't fit base, the last good override of the same field stays in force
// until this last good override expires.
func (t *Table) Apply(base *limitsfile.Set, now time.Time) (set *limitsfile.Set, nextExpiry time.Time) {
	names := slices.Sorted(maps.Keys(t.records))
	overridesToApply := make([]*Override, len(names)) // the override of each name, or nil
	for i, field := range names {
		r := t.records[field]
		r.state = r.newState(field, r.parseErr)
		if r.override == nil {
			overridesToApply[i] = r.lastGoodOverride
		} else if overridesToApply[i] = r.override; r.override.HasExpired(now) {
			r.state.IsExpired, r.lastGoodOverride = true, nil
		}
		if overridesToApply[i] != nil && overridesToApply[i].HasExpired(now) {
			overridesToApply[i] = nil
		}
	}
	// If an override doesn't fit, the last good override of the field replaces it, and the loop applies all again.
	for mustRetry := true; mustRetry; {
		mustRetry = false
		var outcomes []outcome
		set, outcomes = apply(base, slices.DeleteFunc(slices.Clone(overridesToApply), func(o *Override) bool { return o == nil }))
		for i, field := range names {
			if overridesToApply[i] == nil {
				continue
			}
			r, result := t.records[field], outcomes[0]
			outcomes = outcomes[1:]
			r.state.Path, r.state.BaseLimits, r.state.Limits = result.Path, result.BaseLimits, result.Limits
			r.state.KeepsCounters, r.newRuleProblems = result.KeepsCounters, result.newRuleProblems
			if result.Problem == nil {
				continue
			}
			if r.state.Problem == nil {
				r.state.Problem, r.state.IsWaiting = result.Problem, result.IsWaiting
			}
			if overridesToApply[i] == r.lastGoodOverride || r.lastGoodOverride == nil || r.lastGoodOverride.HasExpired(now) {
				overridesToApply[i] = nil
			} else {
				overridesToApply[i], mustRetry = r.lastGoodOverride, true
			}
		}
	}
	for i, field := range names {
		r := t.records[field]
		if r.override != nil {
			nextExpiry = r.override.earlierExpiry(nextExpiry, now)
		}
		if overridesToApply[i] == nil {
			r.state.Limits, r.state.KeepsCounters = "", false
			continue
		}
		r.lastGoodOverride = overridesToApply[i]
		nextExpiry = r.lastGoodOverride.earlierExpiry(nextExpiry, now)
	}
	return set, nextExpiry
}

// earlierExpiry returns the time at which o expires, if this time is after now and before nextExpiry. Otherwise it returns
// nextExpiry. The zero Time of nextExpiry means no end.
func (o *Override) earlierExpiry(nextExpiry, now time.Time) time.Time {
	if o.ExpiresAt.IsZero() || o.HasExpired(now) || !nextExpiry.IsZero() && nextExpiry.Before(o.ExpiresAt) {
		return nextExpiry
	}
	return o.ExpiresAt
}

// States returns the states after the last Apply, sorted by field.
func (t *Table) States() []State {
	var states []State
	for _, field := range slices.Sorted(maps.Keys(t.records)) {
		states = append(states, t.records[field].state)
	}
	return states
}

// DryRun returns the state that a field would have if somebody set value now. It changes nothing. If a new rule would take
// requests from other rules, the state has a problem.
func (t *Table) DryRun(base *limitsfile.Set, field, value string, now time.Time) State {
	dryRunTable := Table{records: map[string]*record{}}
	for f, r := range t.records {
		clone := *r
		dryRunTable.records[f] = &clone
	}
	r := newRecord(field, value)
	if r.override != nil {
		r.override.isNew = dryRunTable.records[field] == nil
	}
	dryRunTable.records[field] = r
	dryRunTable.Apply(base, now)
	if r.state.Problem == nil && len(r.newRuleProblems) > 0 {
		r.state.Problem, r.state.Limits = r.newRuleProblems, ""
	}
	for _, otherState := range dryRunTable.States() {
		if currentRecord := t.records[otherState.Field()]; otherState.Field() != field && otherState.Problem != nil && currentRecord.state.Problem == nil {
			r.state.ProblemsOfOthers = append(r.state.ProblemsOfOthers, otherState.Problem)
		}
	}
	return r.state
}
