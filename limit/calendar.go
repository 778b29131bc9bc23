package limit

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// calendar divides time into windows of a time zone. Each window starts at midnight of a local day. If clocks go back and
// midnight comes twice, the window starts at the first midnight. If clocks jump over midnight, the window starts right
// after the jump. A zone can skip a whole day, as Pacific/Apia skipped 2011-12-30. No window starts on such a day.
type calendar struct {
	zone         *time.Location
	months, days int64  // the length of a window, in months or in days; the other number is 0
	epochDay     int64  // the number of days from the start of the first window to 1970-01-01; only used if days is above 0
	tag          string // the part of Limit.Tag for the window, such as EuropeBerlinday1
	lastWindow   atomic.Pointer[window]
}

// window is a span of time, in microseconds since 1970. The end does not belong to the window.
type window struct{ start, end int64 }

// maxZoneOffset is longer than the largest difference between a local time and UTC.
const maxZoneOffset = 26 * time.Hour

// CanHaveTimezone reports whether windows of s can follow the calendar of a time zone.
func (s *Spec) CanHaveTimezone() bool {
	return s.Algorithm.CountsByWindow() && (s.Unit == Day || s.Unit == Week || s.Unit == Month || s.Unit == Year)
}

func newCalendar(s *Spec) (*calendar, error) {
	switch {
	case s.Timezone == "":
		return nil, nil
	case !s.Algorithm.CountsByWindow():
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
		c.days, c.epochDay = 7*length, 3 // 1970-01-01 was a Thursday
	case Month:
		c.months = length
	case Year:
		c.months = 12 * length
	}
	return c, nil
}

// zoneTagReplacer turns the name of a zone into letters and digits, such as EtcGMTPlus5. Different names give different
// texts.
var zoneTagReplacer = strings.NewReplacer("/", "", "_", "", "+", "Plus", "-", "Minus")

var zones sync.Map // the loaded zones; the key is the name of the zone, and the value is a *time.Location

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

// windowAt returns the window that contains now. c keeps this window, because most calls need the same window again.
func (c *calendar) windowAt(now int64) (start, end int64) {
	if w := c.lastWindow.Load(); w != nil && w.start <= now && now < w.end {
		return w.start, w.end
	}
	localTime := time.UnixMicro(now).In(c.zone)
	number := c.windowNumber(localTime) // after clocks went back across midnight, number can be too small; the loop corrects it
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
	return floorDiv(days+c.epochDay, c.days)
}

func (c *calendar) windowStart(number int64) int64 {
	month, day := time.January+time.Month(number*c.months), 1+int(number*c.days-c.epochDay)
	return firstMoment(time.Date(1970, month, day, 0, 0, 0, 0, time.UTC), c.zone)
}

// firstMoment returns the first moment at which clocks in zone show midnight or a later time. midnight has the date of
// the wanted day, in UTC.
func firstMoment(midnight time.Time, zone *time.Location) int64 {
	for t := midnight.Add(-maxZoneOffset).In(zone); ; {
		_, offset := t.Zone()
		moment := midnight.Add(-time.Duration(offset) * time.Second)
		_, offsetEnd := t.ZoneBounds() // the time of the next change of the offset
		if !offsetEnd.IsZero() && !offsetEnd.After(t) {
			offsetEnd = t.Add(time.Hour) // ZoneBounds is wrong on 31 December 2040 and in later leap years
		}
		switch {
		case !moment.After(t): // the clocks jumped over midnight at t
			return t.UnixMicro()
		case offsetEnd.IsZero() || moment.Before(offsetEnd):
			return moment.UnixMicro()
		}
		t = offsetEnd
	}
}

func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}
