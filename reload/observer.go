package reload

// Observer is notified of what a Reloader does. One goroutine at a time calls it. It must
// not call the Reloader.
type Observer interface {
	// LimitsLoaded reports that a set of limits with that many domains came into force.
	LimitsLoaded(domains int)

	// LimitsRejected reports that a set of limits was rejected. The limits in force
	// stay.
	LimitsRejected()

	// ConfigProblems reports the number of problems that keep the newest limits or
	// overrides out of force; 0 if everything is in force.
	ConfigProblems(count int)

	// Overrides reports the numbers of overrides in force and rejected. A rejected
	// override counts in both if its previous value stays in force.
	Overrides(inForce, rejected int)

	// SourceState reports that a source went down, and why, or that it came up if err
	// is nil. Until the first report a source is down.
	SourceState(source string, err error)
}
