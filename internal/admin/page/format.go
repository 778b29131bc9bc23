package page

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// File assets/page.js has the same functions, so that the script shows the same texts. rls top uses
// the exported functions.

// thinSpace stands between a number and its unit. A line never breaks there.
const thinSpace = "\u202f"

// formatNumber returns x with at most three significant digits and with separators of
// thousands. A positive x below 0.005 is "<0.01".
func formatNumber(x float64) string {
	switch {
	case !(x > 0):
		return "0"
	case x < 0.005:
		return "<0.01"
	case x < 9.995:
		return formatDecimals(x, 2)
	case x < 99.95:
		return formatDecimals(x, 1)
	}
	unit := 1.0
	for x/unit >= 999.5 {
		unit *= 10
	}
	return live.Thousands(int64(math.Floor(x/unit+0.5) * unit))
}

// formatDecimals returns x with up to the given number of decimals, without zeros at the
// end.
func formatDecimals(x float64, decimals int) string {
	scale := math.Pow10(decimals)
	text := strconv.FormatFloat(math.Floor(x*scale+0.5)/scale, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// FormatRate returns a rate with at most three significant digits and with separators of thousands,
// or a dash if it is unknown.
func FormatRate(v live.Value) string {
	if !v.Known() {
		return "–"
	}
	return formatNumber(float64(v))
}

// FormatShare returns a share of 1 as a percentage.
func FormatShare(v live.Value) string {
	if !v.Known() {
		return "–"
	}
	return formatNumber(float64(v)*100) + thinSpace + "%"
}

// formatSeconds returns a duration in its best unit, and the unit.
func formatSeconds(v live.Value) (value, unit string) {
	seconds := float64(v)
	switch {
	case !v.Known():
		return "–", ""
	case seconds < 0.0009995:
		return formatNumber(seconds * 1e6), "µs"
	case seconds < 0.9995:
		return formatNumber(seconds * 1e3), "ms"
	}
	return formatNumber(seconds), "s"
}

// FormatDuration returns a duration with its unit.
func FormatDuration(v live.Value) string {
	value, unit := formatSeconds(v)
	if unit == "" {
		return value
	}
	return value + thinSpace + unit
}

// formatClock returns the time of day in UTC. The script replaces it with local time.
func formatClock(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

func formatUTC(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
