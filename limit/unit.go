package limit

import "strings"

// Unit is a unit of time. The numbers of all units up to Week are those of Envoy's RateLimitResponse. 0 is no unit.
type Unit uint8

// The units. A month has 30 days, and a year has 365 days.
const (
	Second Unit = iota + 1
	Minute
	Hour
	Day
	Month
	Year
	Week
	Millisecond // Envoy has no such unit
)

var unitNames = []string{
	Second: "second", Minute: "minute", Hour: "hour", Day: "day", Month: "month", Year: "year", Week: "week",
	Millisecond: "millisecond",
}

var unitMicros = [...]int64{
	Second: second, Minute: 60 * second, Hour: 3_600 * second, Day: 86_400 * second, Month: 30 * 86_400 * second,
	Year: 365 * 86_400 * second, Week: 7 * 86_400 * second, Millisecond: 1000,
}

// UnitNames returns the names of the units, shortest unit first.
func UnitNames() []string {
	return []string{"millisecond", "second", "minute", "hour", "day", "week", "month", "year"}
}

// String returns the name of u in limits files.
func (u Unit) String() string { return unitNames[u] }

// ParseUnit returns the unit with this name. Upper and lower case are equal.
func ParseUnit(name string) (Unit, bool) { return parse[Unit](unitNames, strings.ToLower(name)) }
