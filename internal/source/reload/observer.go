package reload

import (
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/override"
)

// Observer is notified of what a Reloader does. One goroutine at a time calls it. It must
// not call the Reloader.
type Observer interface {
	// LimitsLoaded reports that a set of limits with that many domains came into force.
	LimitsLoaded(domains int)

	// LimitsChanged reports that other limits came into force, by an update of a source or
	// at the end of an override.
	LimitsChanged(LimitsChange)

	// LimitsRejected reports that a set of limits was rejected, and why. The limits in force
	// stay.
	LimitsRejected(error)

	// ConfigProblems reports the number of problems that keep the newest limits or
	// overrides out of force; 0 if everything is in force.
	ConfigProblems(count int)

	// Overrides reports the numbers of overrides, rules and switches.
	Overrides(OverrideCounts)

	// OverridesChanged reports overrides that were set, changed, deleted or rejected, or
	// that have expired, sorted by target.
	OverridesChanged([]OverrideChange)

	// SourceState reports that a source went down, and why, or that it came up if err
	// is nil. Until the first report a source is down.
	SourceState(source string, err error)

	// SourceRead reports that a source was read and that its content is in force. The
	// content can be unchanged.
	SourceRead(source string)
}

// OverrideCounts are numbers of overrides, rules and switches.
type OverrideCounts struct {
	// A rejected one counts as in force too, if its previous value stays in force.
	InForce, Rejected, Waiting int

	// The switches in force, which take the limits of a rule, of a domain or of all domains
	// out of force.
	OffRules, OffDomains, OffAll int
}

// LimitsChange describes a change of the limits in force.
type LimitsChange struct {
	Time time.Time

	// Cause is the name of the source, or empty if an override has expired.
	Cause string

	// First reports that no limits were in force before.
	First bool

	Domains, Rules int // in force now
	descriptors.Changes
}

// Action is what happened to an override.
type Action string

// The actions.
const (
	OverrideSet      Action = "set"
	OverrideChanged  Action = "changed"
	OverrideDeleted  Action = "deleted"
	OverrideExpired  Action = "expired"
	OverrideRejected Action = "rejected"
)

// OverrideChange describes a change of an override.
type OverrideChange struct {
	Action Action
	State  override.State // now; of a deleted override, the state before
}
