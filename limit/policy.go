package limit

import "slices"

// Scope is the set of replicas that share a counter: all, or one.
type Scope uint8

// Global counters are shared by all replicas. An Instance counter belongs to one
// replica and never leaves its process.
const (
	Global Scope = iota
	Instance
)

var scopes = []string{Global: "global", Instance: "instance"}

// String returns the name in limits files.
func (s Scope) String() string { return scopes[s] }

// ParseScope returns the scope of that name.
func ParseScope(name string) (Scope, bool) { return parse[Scope](scopes, name) }

// FailureMode is the way in which a limit decides while its backend is unavailable.
type FailureMode uint8

// FailDefault leaves the choice to the service. FailLocal counts in the process,
// FailAllow allows all hits, FailDeny denies all hits.
const (
	FailDefault FailureMode = iota
	FailLocal
	FailAllow
	FailDeny
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
