package limit

import "slices"

// Scope is the set of replicas that share a counter: all, or one.
type Scope uint8

// The scopes.
const (
	Global   Scope = iota // all replicas share a counter
	Instance              // the counter belongs to one replica
)

var scopes = []string{Global: "global", Instance: "instance"}

// String returns the name in limits files.
func (s Scope) String() string { return scopes[s] }

// ParseScope returns the scope of that name.
func ParseScope(name string) (Scope, bool) { return parse[Scope](scopes, name) }

// FailureMode is the way in which a limit decides while its backend is unavailable.
type FailureMode uint8

// The failure modes.
const (
	FailDefault FailureMode = iota // the service chooses
	FailLocal                      // counts in the process
	FailAllow                      // allows all hits
	FailDeny                       // denies all hits
)

var failureModes = []string{FailDefault: "", FailLocal: "local", FailAllow: "allow", FailDeny: "deny"}

// String returns the name in limits files, empty for FailDefault.
func (m FailureMode) String() string { return failureModes[m] }

// ParseFailureMode returns the mode of that name.
func ParseFailureMode(name string) (FailureMode, bool) {
	return parse[FailureMode](failureModes, name)
}

// parse returns the place of name in names. The empty name is not found.
func parse[T ~uint8](names []string, name string) (T, bool) {
	i := slices.Index(names, name)
	if i < 0 || name == "" {
		return 0, false
	}
	return T(i), true
}
