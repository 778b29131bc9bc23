package limit

import "strings"

// Algorithm is a way of counting.
type Algorithm uint8

// The algorithms. Each is documented where its step is.
const (
	FixedWindow Algorithm = iota
	SlidingWindow
	SlidingLog
	TokenBucket
)

// table holds one row for each algorithm: its name in limits files, which is
// also its script's name in lua/, the start of its counters' Tag, and its step.
var table = [...]struct {
	name, tag string
	step      func(s *State, l *Limit, now, n int64) Result
}{
	FixedWindow:   {"fixed_window", "fw", fixedWindow},
	SlidingWindow: {"sliding_window", "sw", slidingWindow},
	SlidingLog:    {"sliding_log", "sl", slidingLog},
	TokenBucket:   {"token_bucket", "tb", tokenBucket},
}

// Algorithms are all of them, in the order of their constants.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(table))
	for i := range all {
		all[i] = Algorithm(i)
	}
	return all
}

// String is the name in limits files.
func (a Algorithm) String() string { return table[a].name }

// DefaultChargeDenied is whether a charges denied hits where the limits file
// doesn't say: FixedWindow does, as envoyproxy/ratelimit does.
func (a Algorithm) DefaultChargeDenied() bool { return a == FixedWindow }

// ParseAlgorithm finds an algorithm by its name.
func ParseAlgorithm(name string) (Algorithm, bool) {
	for i, row := range table {
		if row.name == name {
			return Algorithm(i), true
		}
	}
	return 0, false
}

// Unit is a unit of time. Its values are those of Envoy's RateLimitResponse
// (envoy/service/ratelimit/v3/rls.proto); 0 is no unit.
type Unit uint8

// The units. A month is 30 days, a year 365.
const (
	Second Unit = iota + 1
	Minute
	Hour
	Day
	Month
	Year
	Week
)

var units = [...]struct {
	name    string
	seconds int64
}{
	Second: {"second", 1},
	Minute: {"minute", 60},
	Hour:   {"hour", 3_600},
	Day:    {"day", 86_400},
	Month:  {"month", 30 * 86_400},
	Year:   {"year", 365 * 86_400},
	Week:   {"week", 7 * 86_400},
}

// UnitNames are the names of the units, shortest first.
func UnitNames() []string {
	return []string{"second", "minute", "hour", "day", "week", "month", "year"}
}

// String is the name in limits files.
func (u Unit) String() string { return units[u].name }

// micros is 0 for what is no unit.
func (u Unit) micros() int64 {
	if int(u) >= len(units) {
		return 0
	}
	return units[u].seconds * second
}

// ParseUnit finds a unit by its name, in any case.
func ParseUnit(name string) (Unit, bool) {
	name = strings.ToLower(name)
	for i, u := range units {
		if i > 0 && u.name == name {
			return Unit(i), true
		}
	}
	return 0, false
}

// Scope says who shares a budget.
type Scope uint8

// Global is one budget for all replicas; Instance is one for each, which never
// leaves the process.
const (
	Global Scope = iota
	Instance
)

var scopes = [...]string{Global: "global", Instance: "instance"}

// String is the name in limits files.
func (s Scope) String() string { return scopes[s] }

// ParseScope finds a scope by its name.
func ParseScope(name string) (Scope, bool) { return parse[Scope](scopes[:], name) }

// FailureMode says what a limit does while its backend is away.
type FailureMode uint8

// FailDefault leaves it to the service; FailLocal counts in the process, FailAllow
// lets all pass, FailDeny none.
const (
	FailDefault FailureMode = iota
	FailLocal
	FailAllow
	FailDeny
)

var failureModes = [...]string{FailDefault: "", FailLocal: "local", FailAllow: "allow", FailDeny: "deny"}

// String is the name in limits files, empty for FailDefault.
func (m FailureMode) String() string { return failureModes[m] }

// ParseFailureMode finds a mode by its name.
func ParseFailureMode(name string) (FailureMode, bool) {
	return parse[FailureMode](failureModes[:], name)
}

func parse[T ~uint8](names []string, name string) (T, bool) {
	for i, s := range names {
		if s == name && s != "" {
			return T(i), true
		}
	}
	return 0, false
}
