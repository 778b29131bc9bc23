package limitsfile

import (
	"testing"

	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var calendarMonths = Options{CalendarMonths: true}

func TestLimitsPerMonthFollowTheCalendarOfUTC(t *testing.T) {
	for fields, want := range map[string]string{
		"unit: month":                            "UTC",
		"unit: month, unit_multiplier: 3":        "UTC",
		"unit: month, timezone: Europe/Berlin":   "Europe/Berlin",
		"unit: month, algorithm: sliding_window": "",
		"unit: day":                              "",
		"unit: year":                             "",
	} {
		t.Run(fields, func(t *testing.T) {
			files := []File{{Name: "f", Data: []byte(oneDescriptor("rate_limit: {requests_per_unit: 4, " + fields + "}"))}}
			set, err := Parse(files, calendarMonths)
			require.NoError(t, err)
			assert.Equal(t, want, set.Domains[0].Descriptors[0].Limits[0].Timezone)
		})
	}
}

func TestLimitsPerMonthFollowTheDefaultTimezone(t *testing.T) {
	set, err := Parse([]File{{Name: "f", Data: []byte("domain: d\ndefaults: {timezone: Europe/Berlin}\n" +
		"descriptors: [{key: k, rate_limit: {unit: month, requests_per_unit: 4}}]")}}, calendarMonths)
	require.NoError(t, err)
	assert.Equal(t, "Europe/Berlin", set.Domains[0].Descriptors[0].Limits[0].Timezone)
}

func TestLimitsPerMonthOfXDSFollowTheCalendar(t *testing.T) {
	set, err := ParseXDS([]*confv3.RateLimitConfig{{Name: "d", Domain: "d", Descriptors: []*confv3.RateLimitDescriptor{
		{Key: "k", RateLimit: &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_MONTH, RequestsPerUnit: 4}},
	}}}, nil, calendarMonths)
	require.NoError(t, err)
	assert.Equal(t, "UTC", set.Domains[0].Descriptors[0].Limits[0].Timezone)
}

func TestChangedUnitFollowsTheCalendar(t *testing.T) {
	set, err := Parse([]File{{Name: "f", Data: []byte(oneDescriptor("rate_limit: {unit: day, requests_per_unit: 4}"))}}, calendarMonths)
	require.NoError(t, err)
	p, err := ParsePatch("d|k", []byte(`{"unit": "month"}`))
	require.NoError(t, err)
	changedDescriptor, problems := p.Apply(set.Domains[0], "d > k", set.Domains[0].Descriptors[0])
	require.Empty(t, problems)
	assert.Equal(t, "UTC", changedDescriptor.Limits[0].Timezone)
}
