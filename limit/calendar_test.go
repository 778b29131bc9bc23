package limit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// testZones change their clocks in all ways: by an hour or by half an hour, at midnight, across midnight,
// and by whole days.
var testZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "America/St_Johns",
	"Asia/Beirut", "America/Havana", "Pacific/Apia", "Pacific/Kwajalein", "Asia/Kathmandu", "Africa/Casablanca", "America/Juneau",
}

func newCalendarLimit(t require.TestingT, zone string, unit Unit, multiplier uint32) *Limit {
	l, err := New(Spec{Requests: 3, Unit: unit, Multiplier: multiplier, Timezone: zone})
	require.NoError(t, err)
	return l
}

// parseMicros returns the microseconds since 1970 of a time such as 2026-03-29T12:00:00Z.
func parseMicros(t *testing.T, text string) int64 {
	moment, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return moment.UnixMicro()
}

func TestCalendarWindowsStartAtLocalMidnight(t *testing.T) {
	for _, c := range []struct {
		name, zone      string
		unit            Unit
		multiplier      uint32
		now, start, end string
	}{
		{"a day of 23 hours", "Europe/Berlin", Day, 1, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"a day of 25 hours", "Europe/Berlin", Day, 1, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},
		{"a change of the clocks by half an hour", "Australia/Lord_Howe", Day, 1, "2026-10-04T00:00:00Z", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"},
		{"clocks jump over midnight", "America/Sao_Paulo", Day, 1, "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"clocks go back to 23:01", "America/St_Johns", Day, 1, "2010-11-07T02:45:00Z", "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		{"midnight comes twice", "America/Havana", Day, 1, "2026-11-01T05:30:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},
		{"the day before a skipped day", "Pacific/Apia", Day, 1, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"the day after a skipped day", "Pacific/Apia", Day, 1, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},
		{"a week starts on Monday", "America/New_York", Week, 1, "2026-11-22T12:00:00Z", "2026-11-16T05:00:00Z", "2026-11-23T05:00:00Z"},
		{"a month with a change of the clocks", "America/New_York", Month, 1, "2026-03-15T12:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"},
		{"a quarter", "UTC", Month, 3, "2026-05-15T12:00:00Z", "2026-04-01T00:00:00Z", "2026-07-01T00:00:00Z"},
		{"a year", "Asia/Kathmandu", Year, 1, "2026-05-15T12:00:00Z", "2025-12-31T18:15:00Z", "2026-12-31T18:15:00Z"},
		{"the last day of a leap year", "Europe/Berlin", Day, 1, "2040-12-31T12:00:00Z", "2040-12-30T23:00:00Z", "2040-12-31T23:00:00Z"},
		{"clocks go back to the last hour of a day", "America/Sao_Paulo", Day, 1, "2018-02-18T02:00:00Z", "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		{"clocks jump from 23:30 over midnight", "America/Toronto", Day, 1, "1919-03-31T12:00:00Z", "1919-03-31T04:30:00Z", "1919-04-01T04:00:00Z"},
		{"days before 1970", "UTC", Day, 3, "1969-12-30T12:00:00Z", "1969-12-29T00:00:00Z", "1970-01-01T00:00:00Z"},
		{"the start of three days before 1970", "UTC", Day, 3, "1969-12-29T00:00:00Z", "1969-12-29T00:00:00Z", "1970-01-01T00:00:00Z"},
		{"a month before 1970", "UTC", Month, 1, "1969-12-15T00:00:00Z", "1969-12-01T00:00:00Z", "1970-01-01T00:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newCalendarLimit(t, c.zone, c.unit, c.multiplier)
			start, end := l.WindowAt(parseMicros(t, c.now))
			assert.Equal(t, c.start, time.UnixMicro(start).UTC().Format(time.RFC3339))
			assert.Equal(t, c.end, time.UnixMicro(end).UTC().Format(time.RFC3339))
			assert.Equal(t, start, l.WindowStart(end))
			nextStart, _ := l.WindowAt(end)
			assert.Equal(t, end, nextStart, "the next window starts where this window ends")
			startOfLastMoment, _ := l.WindowAt(end - 1)
			assert.Equal(t, start, startOfLastMoment)
		})
	}
}

// Windows divide time without gaps. All replicas have the same windows. Each window starts at a new local date.
func TestCalendarWindowsFollowEachOtherWithoutGaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(testZones).Draw(t, "zone")
		unit := rapid.SampledFrom([]Unit{Day, Week, Month, Year}).Draw(t, "unit")
		multiplier := rapid.Uint32Range(1, 5).Draw(t, "multiplier")
		l := newCalendarLimit(t, zone, unit, multiplier)
		location, err := loadZone(zone)
		require.NoError(t, err)
		now := time.Date(rapid.IntRange(1975, 2060).Draw(t, "year"), time.Month(rapid.IntRange(1, 12).Draw(t, "month")), 1, 0, 0, 0, 0, time.UTC).
			UnixMicro() + rapid.Int64Range(0, 31*86_400*second).Draw(t, "offset")
		start, end := l.WindowAt(now)
		assert.LessOrEqual(t, start, now)
		assert.Greater(t, end, now)

		otherReplica := newCalendarLimit(t, zone, unit, multiplier)
		for _, moment := range []int64{end, start, start + (end-start)/2, end - 1} {
			otherStart, otherEnd := otherReplica.WindowAt(moment)
			if moment == end {
				assert.Equal(t, end, otherStart, "the next window follows without a gap")
				continue
			}
			assert.Equal(t, [2]int64{start, end}, [2]int64{otherStart, otherEnd}, "all moments of a window have the same window")
		}
		firstTime, previousTime := time.UnixMicro(start).In(location), time.UnixMicro(start-1).In(location)
		assert.NotEqual(t, firstTime.YearDay(), previousTime.YearDay(), "the window starts at a new local date")
		tolerance := 26*3600*int64(second) + l.Period()/8
		assert.InDelta(t, l.Period(), end-start, float64(tolerance), "%s to %s", firstTime, time.UnixMicro(end).In(location))
	})
}

func TestFixedWindowCountsByCalendar(t *testing.T) {
	l := newCalendarLimit(t, "Europe/Berlin", Day, 1)
	var s State
	evening := parseMicros(t, "2026-10-25T22:59:59Z") // the last second of a day of 25 hours
	midnight := parseMicros(t, "2026-10-24T22:00:00Z")
	for range 3 {
		assert.True(t, l.Take(&s, midnight, 1).Allowed)
	}
	r := l.Take(&s, evening, 1)
	assert.False(t, r.Allowed)
	assert.Equal(t, int64(second), r.RetryAfter)
	assert.False(t, l.Take(&s, midnight-second, 1).Allowed, "a clock that goes back keeps the window")
	assert.True(t, l.Take(&s, evening+second, 1).Allowed)
}

func TestLimitsWithDifferentWindowsHaveDifferentTags(t *testing.T) {
	tags := map[string]string{}
	for _, s := range []Spec{
		{Unit: Second},
		{Unit: Millisecond, Multiplier: 10},
		{Unit: Millisecond, Multiplier: 1500},
		{Unit: Day},
		{Unit: Day, Timezone: "UTC"},
		{Unit: Day, Timezone: "Etc/GMT+1"},
		{Unit: Day, Timezone: "Etc/GMT-1"},
		{Unit: Day, Timezone: "America/Port-au-Prince"},
		{Unit: Week, Timezone: "UTC"},
		{Unit: Day, Multiplier: 7, Timezone: "UTC"},
		{Unit: Day, Timezone: "UTC", Scope: Instance},
	} {
		l, err := New(s)
		require.NoError(t, err)
		assert.Regexp(t, "^[A-Za-z0-9]+$", l.Tag())
		assert.Empty(t, tags[l.Tag()], l.Tag())
		tags[l.Tag()] = l.String()
	}
	assert.Equal(t, "0 per 1500 milliseconds", tags["fw1500ms"])
	assert.Equal(t, "0 per day in UTC", tags["fwUTCday1"])
	minute, err := New(Spec{Unit: Millisecond, Multiplier: 60_000})
	require.NoError(t, err)
	assert.Equal(t, "fw60", minute.Tag(), "60 seconds in milliseconds are a minute")
}

func TestErrorsOfWindowsNameTheRemedy(t *testing.T) {
	for want, s := range map[string]Spec{
		"unit_multiplier 1 makes the window 1 ms long; with unit millisecond it must be at least 10": {Unit: Millisecond},
		"timezone is only for algorithm fixed_window, not sliding_log":                               {Unit: Day, Timezone: "UTC", Algorithm: SlidingLog},
		"timezone is only for units day, week, month and year, not hour":                             {Unit: Hour, Timezone: "UTC"},
		`timezone "Berlin" is unknown; want a name such as Europe/Berlin, America/New_York or UTC`:   {Unit: Day, Timezone: "Berlin"},
		`timezone "Local" is unknown`:                               {Unit: Day, Timezone: "Local"},
		`timezone "../etc/passwd" is unknown`:                       {Unit: Day, Timezone: "../etc/passwd"},
		"lease is only for limits without timezone":                 {Unit: Day, Timezone: "UTC", Lease: true},
		"lease is only for windows of a second or more":             {Unit: Millisecond, Multiplier: 100, Lease: true},
		"unit_multiplier 4294967295 makes the window longer than t": {Unit: Day, Multiplier: 1<<32 - 1},
	} {
		_, err := New(s)
		assert.ErrorContains(t, err, want)
	}
}

func BenchmarkCalendarWindow(b *testing.B) {
	l := newCalendarLimit(b, "Europe/Berlin", Day, 1)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixMicro()
	var s State
	b.ReportAllocs()
	for b.Loop() {
		l.Take(&s, now, 1)
	}
}
