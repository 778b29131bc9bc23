package limit

import "strings"

// Unit is a unit of time. Its values are those of Envoy's RateLimitResponse
// (envoy/service/ratelimit/v3/rls.proto). The value 0 is not a unit.
type Unit uint8

// The units. A month has 30 days, a year 365.
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

// UnitNames returns the names of the units, shortest unit first.
func UnitNames() []string {
	return []string{"second", "minute", "hour", "day", "week", "month", "year"}
}

// String returns the name in limits files.
func (u Unit) String() string { return units[u].name }

// micros returns the length in microseconds, or 0 if u is not a unit.
func (u Unit) micros() int64 {
	if int(u) >= len(units) {
		return 0
	}
	return units[u].seconds * second
}

// ParseUnit returns the unit of that name, in any case.
func ParseUnit(name string) (Unit, bool) {
	name = strings.ToLower(name)
	for i, u := range units {
		if i > 0 && u.name == name {
			return Unit(i), true
		}
	}
	return 0, false
}
