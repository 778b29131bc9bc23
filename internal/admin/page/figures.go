package page

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/internal/observe/live"
)

// figure is a number at the top of the page, with a second number and a spark.
type figure struct {
	ID, Name                string
	Value, Unit             string
	Class                   string // the CSS class of Value
	SecondName, SecondValue string
	Spark                   spark
}

// spark is a small chart of the last five minutes, with one or two lines.
type spark struct {
	Text             string // the text for screen readers
	HighestText      string // the highest value, such as "highest 12"
	Width            int
	Line, DeniedLine string // paths of SVG
}

// sparkHeight is the height of a spark in the units of its SVG. The distance between two points is one unit.
const sparkHeight = 40

var formats = map[string]func(live.Value) string{"rate": FormatRate, "share": FormatShare, "duration": FormatDuration}

// newSpark returns the spark of two series with the same scale. Each series can be nil.
func newSpark(name, format string, figures *live.Figures, points, deniedPoints []live.Value) spark {
	highestValue, text := 0.0, "no values"
	for _, v := range slices.Concat(points, deniedPoints) {
		if v.IsKnown() {
			highestValue = max(highestValue, float64(v))
			text = "highest " + formats[format](live.Value(highestValue))
		}
	}
	return spark{
		Text: name + " in the last five minutes: " + text, HighestText: text, Width: pointCount(figures) - 1,
		Line: sparkLine(points, figures, highestValue), DeniedLine: sparkLine(deniedPoints, figures, highestValue),
	}
}

// pointCount returns the number of points in five minutes.
func pointCount(figures *live.Figures) int { return max(300/max(figures.StepSeconds, 1), 2) }

// sparkLine returns the SVG path of points, or an empty text if all points are 0. The newest point is at the
// right edge. An unknown point is a gap.
func sparkLine(points []live.Value, figures *live.Figures, highestValue float64) string {
	if highestValue == 0 || sum(points) == 0 {
		return ""
	}
	var path strings.Builder
	x, lastY := pointCount(figures)-len(points), 0
	isInLine := false
	for _, v := range points {
		y := sparkHeight - 1 - roundHalfUp(numberOrZero(v)/highestValue*(sparkHeight-4))
		switch {
		case v.IsKnown() && isInLine:
			fmt.Fprintf(&path, " 1 %d", y-lastY)
		case v.IsKnown():
			fmt.Fprintf(&path, "M%d %dh.1l0 0", x, y) // a single point is a short line
		}
		isInLine, lastY = v.IsKnown(), y
		x++
	}
	return path.String()
}

func roundHalfUp(x float64) int { return int(math.Floor(x + 0.5)) }

// File assets/page.js has the functions below too, so that the script shows the same texts. The command rls top uses
// the exported functions.

// thinSpace stands between a number and its unit. A line never breaks at a thinSpace.
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

// formatDecimals returns x with at most the given number of decimals, and without zeros at the end.
func formatDecimals(x float64, decimals int) string {
	scale := math.Pow10(decimals)
	text := strconv.FormatFloat(math.Floor(x*scale+0.5)/scale, 'f', decimals, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// FormatRate returns a rate with at most three significant digits and with separators of thousands,
// or a dash if the rate is unknown.
func FormatRate(v live.Value) string {
	if !v.IsKnown() {
		return "–"
	}
	return formatNumber(float64(v))
}

// FormatShare returns a share from 0 to 1 as a percentage.
func FormatShare(v live.Value) string {
	if !v.IsKnown() {
		return "–"
	}
	return formatNumber(float64(v)*100) + thinSpace + "%"
}

// formatSeconds returns a duration in its best unit, and the unit.
func formatSeconds(v live.Value) [2]string {
	seconds := float64(v)
	switch {
	case !v.IsKnown():
		return [2]string{"–", ""}
	case seconds < 0.0009995:
		return [2]string{formatNumber(seconds * 1e6), "µs"}
	case seconds < 0.9995:
		return [2]string{formatNumber(seconds * 1e3), "ms"}
	}
	return [2]string{formatNumber(seconds), "s"}
}

func processText(s *live.Snapshot) string {
	text := "Given up " + FormatRate(s.Figures.GivenUp.Now) + "/s · refused " + FormatRate(s.Figures.Refused.Now) + "/s · "
	if s.State.Redis != nil {
		text += "slowest of Redis " + FormatDuration(s.Figures.RedisMax.Max()) + " · "
	}
	return text + "CPU " + FormatRate(s.Figures.CPU.Now) + " of " + live.Count(s.Process.Cores, "core") + " · memory " +
		formatMegabytes(s.Process.MemoryBytes) + " · " + live.Count(s.Process.Connections, "connection") + " of clients"
}

func formatMegabytes(bytes int64) string { return formatNumber(float64(bytes)/1e6) + thinSpace + "MB" }

// FormatDuration returns a duration with its unit.
func FormatDuration(v live.Value) string {
	text := formatSeconds(v)
	return strings.TrimSuffix(text[0]+thinSpace+text[1], thinSpace)
}
