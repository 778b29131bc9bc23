package reload

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// Observer learns what a Reloader does. The Reloader never calls two methods at the same time. No method may call the Reloader.
type Observer interface {
	// LimitsLoaded reports that a set of limits came into force.
	LimitsLoaded(domains int)

	// LimitsChanged reports that an update or the end of an override has changed the limits in force.
	LimitsChanged(LimitsChange)

	// LimitsRejected reports the problem of a set of limits that was rejected. The previous limits stay in force.
	LimitsRejected(error)

	// ConfigProblems reports the number of problems that keep the newest limits or overrides out of force.
	ConfigProblems(count int)

	// Overrides reports the numbers of overrides, rules and switches.
	Overrides(OverrideCounts)

	// OverridesChanged reports overrides that were set, changed, deleted, lost or rejected, or have expired.
	OverridesChanged([]OverrideChange)

	// SourceState reports the error when a source goes down, or nil when the source comes up. A source starts as down.
	SourceState(source string, err error)

	// SourceRead reports that a source was read and its content is in force, even if the content has not changed.
	SourceRead(source string)
}

// OverrideCounts are numbers of overrides, rules and switches.
type OverrideCounts struct {
	// InForceOverrides also counts a rejected override if its previous value stays in force.
	InForceOverrides, RejectedOverrides, WaitingOverrides int

	OverridesWithoutEnd int // the part of InForceOverrides that stays until somebody deletes it

	// The numbers of switches in force for a rule, for a domain and for all domains.
	OffRules, OffDomains, OffAll int
}

// LimitsChange describes a change of the limits in force.
type LimitsChange struct {
	Time time.Time

	// Cause is the name of the source, or empty if an override has expired.
	Cause string

	// First reports that no limits were in force before.
	First bool

	Domains, Rules int // the numbers in force after the change
	descriptors.Changes
	RemovedDomains []string
}

// Action is what happened to an override.
type Action string

// The actions.
const (
	OverrideSet      Action = "set"
	OverrideChanged  Action = "changed"
	OverrideDeleted  Action = "deleted"
	OverrideLost     Action = "lost with the data of Redis"
	OverrideExpired  Action = "expired"
	OverrideRejected Action = "rejected"
)

// OverrideChange describes a change of an override.
type OverrideChange struct {
	Action Action
	State  override.State // the state after the change; for a deleted or lost override, the state before the change
}

// reportOverrides logs and reports the changes of the overrides. In the first report, the Observer gets no changes, but
// the log gets all problems and switches, because an operator must see them.
func (r *Reloader) reportOverrides() {
	var counts OverrideCounts
	var changes []OverrideChange
	states, newProblems := map[string]override.State{}, 0
	for _, s := range r.overrides.States() {
		oldState, isKnown := r.overrideStates[s.Field()]
		states[s.Field()] = s
		counts.add(&s)
		if s.Problem != nil && (oldState.Problem == nil || oldState.Problem.Error() != s.Problem.Error()) {
			if newProblems++; newProblems <= maxLoggedProblems {
				r.logProblem(&s)
			}
		}
		if isSwitched(&s) && (!isSwitched(&oldState) || oldState.Value != s.Value) {
			r.logSwitch(&s)
		}
		action := OverrideSet
		hasSameOutcome := oldState.IsExpired == s.IsExpired && (oldState.Problem == nil) == (s.Problem == nil)
		switch {
		case isKnown && oldState.Value == s.Value && hasSameOutcome:
			continue
		case s.Problem != nil:
			action = OverrideRejected
		case s.IsExpired:
			action = OverrideExpired
		case isKnown:
			action = OverrideChanged
		}
		changes = append(changes, OverrideChange{action, s})
	}
	for _, field := range slices.Sorted(maps.Keys(r.overrideStates)) {
		oldState := r.overrideStates[field]
		s, exists := states[field]
		if isSwitched(&oldState) && !isSwitched(&s) {
			r.logSwitchEnd(&oldState)
		}
		if !exists && !oldState.IsExpired { // an expired override was reported before
			action := OverrideDeleted
			if r.hasLostOverrides {
				action = OverrideLost
			}
			changes = append(changes, OverrideChange{action, oldState})
		}
	}
	if newProblems > maxLoggedProblems {
		r.options.Log.Error("overrides rejected", "and_more", newProblems-maxLoggedProblems, "see", "/rlconfig/problems")
	}
	r.options.Observer.Overrides(counts)
	if r.overrideStates != nil && len(changes) > 0 {
		slices.SortFunc(changes, func(a, b OverrideChange) int { return cmp.Compare(a.State.Field(), b.State.Field()) })
		r.options.Observer.OverridesChanged(changes)
	}
	if r.hasReadOverrides {
		r.overrideStates = states
	}
}

func (c *OverrideCounts) add(s *override.State) {
	switch {
	case s.IsWaiting:
		c.WaitingOverrides++
	case s.Problem != nil:
		c.RejectedOverrides++
	}
	if s.Limits == "" {
		return
	}
	c.InForceOverrides++
	if s.ExpiresAt.IsZero() {
		c.OverridesWithoutEnd++
	}
	switch {
	case s.Kind != override.KindSwitch:
	case s.Target == "":
		c.OffAll++
	case override.IsDomain(s.Target):
		c.OffDomains++
	default:
		c.OffRules++
	}
}

func (r *Reloader) logProblem(s *override.State) {
	problem := fields.Cut(s.Problem.Error(), maxLoggedBytes)
	effect := "the limits apply without the override"
	if s.Limits != "" {
		effect = "the previous value stays in force: " + s.Limits
	}
	level, state := slog.LevelError, " rejected"
	if s.IsWaiting {
		level, state = slog.LevelWarn, " waiting"
	}
	message := strings.ReplaceAll(string(s.Kind), "_", " ") + state
	r.options.Log.Log(context.Background(), level, message, "problem", strings.ReplaceAll(problem, "\n", "; "), "effect", effect)
}

func isSwitched(s *override.State) bool {
	return (s.Kind == override.KindSwitch || s.Kind == override.KindShadowMode) && s.Limits != ""
}

func (r *Reloader) logSwitch(s *override.State) {
	attrs := []any{"limits", s.Path, "by", s.Author, "reason", s.Reason}
	if !s.ExpiresAt.IsZero() {
		attrs = append(attrs, "until", s.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if s.Kind == override.KindShadowMode {
		r.options.Log.Warn("shadow mode switched", append(attrs, "value", s.Limits)...)
	} else {
		r.options.Log.Warn("limits switched off", attrs...)
	}
}

func (r *Reloader) logSwitchEnd(s *override.State) {
	if s.Kind == override.KindShadowMode {
		r.options.Log.Warn("shadow mode restored to the setting")
	} else {
		r.options.Log.Warn("limits switched on", "limits", cmp.Or(s.Target, "all domains"))
	}
}
