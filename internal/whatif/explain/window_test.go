package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWindowShowsBothDatesIfOneIsAnotherDay(t *testing.T) {
	report := Report{Time: time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)}
	for want, hours := range map[string][2]int{
		"09:00:00 to 11:00:00 UTC (in 1h0m)":                        {-1, 1},
		"2026-11-28 23:00:00 to 2026-11-29 23:00:00 UTC (in 13h0m)": {-11, 13},
		"2026-11-28 09:00:00 to 2026-11-30 09:00:00 UTC (in 23h0m)": {-25, 23},
	} {
		start, end := report.Time.Add(time.Duration(hours[0])*time.Hour), report.Time.Add(time.Duration(hours[1])*time.Hour)
		assert.Equal(t, want, report.windowText(&start, &end))
	}
}
