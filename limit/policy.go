package limit

import "slices"

// Scope is the set of replicas that share a counter.
type Scope uint8

// The scopes.
const (
	Region   Scope = iota // all replicas of a region share a counter
	Instance              // the counter belongs to one replica
	Global                // all regions share a limit; without a global Redis, the limits file reader replaces Global by Region
)

var scopes = []string{Region: "region", Instance: "instance", Global: "global"}

// String returns the name in limits files.
func (s Scope) String() string { return scopes[s] }

// ParseScope returns the scope with this name.
func ParseScope(name string) (Scope, bool) { return parse[Scope](scopes, name) }

// FailureMode says how a limit decides while its backend is unavailable.
type FailureMode uint8

// The failure modes.
const (
	FailDefault FailureMode = iota // the service chooses
	FailLocal                      // the replica counts in its own process
	FailAllow                      // all hits are allowed
	FailDeny                       // all hits are denied
)

var failureModes = []string{FailDefault: "", FailLocal: "local", FailAllow: "allow", FailDeny: "deny"}

// String returns the name in limits files, empty for FailDefault.
func (m FailureMode) String() string { return failureModes[m] }

// ParseFailureMode returns the mode with this name.
func ParseFailureMode(name string) (FailureMode, bool) {
	return parse[FailureMode](failureModes, name)
}

// parse returns the index of name in names. It does not find the empty name.
func parse[T ~uint8](names []string, name string) (T, bool) {
	i := slices.Index(names, name)
	if i < 0 || name == "" {
		return 0, false
	}
	return T(i), true
}
