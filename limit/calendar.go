package limit

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// calendar divides time into windows of a time zone. Each window starts at the first moment of a local day: at
// the first midnight, or at the end of a gap that hides midnight. A day that the zone skipped has no window.
type calendar struct {
	zone         *time.Location
	months, days int64  // the length of a window: months or days, the other number is 0
	offset       int64  // the days from the start of the window that has 1970-01-01 to that day
	tag          string // the window in the Tag, in letters and digits only
	lastWindow   atomic.Pointer[window]
}

// window is a span of time in microseconds. The end is not part of it.
type window struct{ start, end int64 }

// maxZoneOffset is more than any local time differs from UTC.
const maxZoneOffset = 26 * time.Hour

// CanHaveTimezone reports whether windows of s can follow the calendar of a time zone.
func (s *Spec) CanHaveTimezone() bool {
	return s.Algorithm.CountsWindows() && (s.Unit == Day || s.Unit == Week || s.Unit == Month || s.Unit == Year)
}

func newCalendar(s *Spec) (*calendar, error) {
	switch {
	case s.Timezone == "":
		return nil, nil
	case !s.Algorithm.CountsWindows():
		return nil, fmt.Errorf("timezone is only for algorithm %s, not %s", FixedWindow, s.Algorithm)
	case !s.CanHaveTimezone():
		return nil, fmt.Errorf("timezone is only for units day, week, month and year, not %s", s.Unit)
	}
	zone, err := loadZone(s.Timezone)
	if err != nil {
		return nil, err
	}
	c := &calendar{zone: zone, tag: zoneTagReplacer.Replace(s.Timezone) + s.Unit.String() + strconv.FormatUint(uint64(s.Multiplier), 10)}
	switch length := int64(s.Multiplier); s.Unit {
	case Day:
		c.days = length
	case Week:
		c.days, c.offset = 7*length, 3 // 1970-01-01 was a Thursday
	case Month:
		c.months = length
	case Year:
		c.months = 12 * length
	}
	return c, nil
}

// zoneTagReplacer turns names of zones into texts of letters and digits. Different names give different texts.
var zoneTagReplacer = strings.NewReplacer("/", "", "_", "", "+", "Plus", "-", "Minus")

var zones sync.Map // the loaded zones, each a *time.Location; the key is the name of the zone

func loadZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("timezone %q is unknown; want a name such as Europe/Berlin, America/New_York or UTC", name)
	}
	zones.Store(name, zone)
	return zone, nil
}

// windowAt returns the window that contains now. c keeps this window, because most calls ask for the same window again.
func (c *calendar) windowAt(now int64) (start, end int64) {
	if w := c.lastWindow.Load(); w != nil && w.start <= now && now < w.end {
		return w.start, w.end
	}
	local := time.UnixMicro(now).In(c.zone)
	number := c.windowNumber(local) // the number of an earlier window, if local clocks went back across midnight
	start, end = c.windowStart(number), c.windowStart(number+1)
	for end <= now {
		number++
		start, end = end, c.windowStart(number+1)
	}
	c.lastWindow.Store(&window{start, end})
	return start, end
}

// windowNumber returns the number of the window that contains the local date of t.
func (c *calendar) windowNumber(t time.Time) int64 {
	year, month, day := t.Date()
	if c.months > 0 {
		return floorDiv(int64(year-1970)*12+int64(month-1), c.months)
	}
	days := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / 86_400
	return floorDiv(days+c.offset, c.days)
}

func (c *calendar) windowStart(number int64) int64 {
	month, day := time.January+time.Month(number*c.months), 1+int(number*c.days-c.offset)
	return firstMoment(time.Date(1970, month, day, 0, 0, 0, 0, time.UTC), c.zone)
}

// firstMoment returns the first moment at which clocks in zone show this midnight or a later time. midnight is in UTC.
func firstMoment(midnight time.Time, zone *time.Location) int64 {
	for t := midnight.Add(-maxZoneOffset).In(zone); ; {
		_, offset := t.Zone()
		moment := midnight.Add(-time.Duration(offset) * time.Second)
		_, offsetEnd := t.ZoneBounds() // the moment at which the zone changes this offset
		if !offsetEnd.IsZero() && !offsetEnd.After(t) {
			offsetEnd = t.Add(time.Hour) // ZoneBounds is wrong on 31 December 2040 and in later leap years
		}
		switch {
		case !moment.After(t): // a gap hides midnight
			return t.UnixMicro()
		case offsetEnd.IsZero() || moment.Before(offsetEnd):
			return moment.UnixMicro()
		}
		t = offsetEnd
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
