package main

import (
	"context"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

const (
	patternLimit  = 60 // requests in a minute
	patternLength = 3 * time.Minute
	patternSlot   = 5 * time.Second // width of a bar
)

// patternAlgorithms are the algorithms of the pictures. They all count requests in a window.
var patternAlgorithms = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindow, limit.SlidingLog, limit.TokenBucket, limit.FirstHitWindow}

// pattern is a series of requests on one key.
type pattern struct {
	name, title string
	requests    []time.Duration // times since the start, in order
}

// patterns returns the series of requests that the pictures show.
func patterns() []pattern {
	return []pattern{
		{"burst", "90 requests at once, every 40 s", evenly(
			span{10 * time.Second, time.Second, 90}, span{50 * time.Second, time.Second, 90},
			span{90 * time.Second, time.Second, 90}, span{130 * time.Second, time.Second, 90},
		)},
		{"ramp", "from 0 to 3 requests a second", ramp(3, patternLength)},
		{"boundary", "60 requests before a boundary, 60 after it", evenly(
			span{55 * time.Second, 5 * time.Second, 60}, span{60 * time.Second, 5 * time.Second, 60},
			span{115 * time.Second, 5 * time.Second, 60}, span{120 * time.Second, 5 * time.Second, 60},
		)},
	}
}

// span is a number of requests at even distances.
type span struct {
	start, length time.Duration
	requests      int
}

// evenly returns the times of the requests of all spans.
func evenly(spans ...span) (times []time.Duration) {
	for _, s := range spans {
		for i := range s.requests {
			times = append(times, s.start+s.length*time.Duration(i)/time.Duration(s.requests))
		}
	}
	return times
}

// ramp returns the times of requests whose rate grows evenly from 0 to last in a second.
func ramp(last float64, length time.Duration) (times []time.Duration) {
	const step = 10 * time.Millisecond
	due := 0.0
	for at := time.Duration(0); at < length; at += step {
		due += last * at.Seconds() / length.Seconds() * step.Seconds()
		if due >= 1 {
			due--
			times = append(times, at)
		}
	}
	return times
}

// admitted returns the times of the requests that a limit with the algorithm admits.
func (p pattern) admitted(algorithm limit.Algorithm) (times []time.Duration, err error) {
	l, err := limit.New(limit.Spec{Algorithm: algorithm, Unit: limit.Minute, Requests: patternLimit, ChargeDenied: algorithm.DefaultChargeDenied()})
	if err != nil {
		return nil, err
	}
	counter := newClientCounter(l)
	for _, at := range p.requests {
		if counter.allows(at, 1, "") {
			times = append(times, at)
		}
	}
	return times, nil
}

// clientCounter counts the hits of one client. The process decides them as it does in the service.
type clientCounter struct {
	limiter *local.Limiter
	limit   *limit.Limit
}

// newClientCounter returns a counter without hits.
func newClientCounter(l *limit.Limit) clientCounter {
	return clientCounter{local.New(local.Options{}), l}
}

// allows reports whether n hits are admitted at a time since the start of a full minute. The id of a
// hold has a meaning only if the algorithm has holds.
func (c clientCounter) allows(at time.Duration, n int64, hold string) bool {
	start := time.Unix(1_800_000_000, 0) // the start of a minute
	var results [1]backend.Result
	hits := []backend.Hit{{Key: []byte("client"), Limit: c.limit, N: n, HoldID: hold}}
	c.limiter.Take(context.Background(), start.Add(at), hits, results[:])
	return results[0].Allowed
}

// mostInMinute returns the largest number of times in any minute.
func mostInMinute(times []time.Duration) (most int) {
	first := 0
	for i, at := range times {
		for times[first] <= at-time.Minute {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// writePatterns draws a picture for each pattern and for a slow endpoint, and writes their tables into
// the page.
func writePatterns(folder, page string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, p := range patterns() {
		panels, err := p.panels()
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := save(panels, filepath.Join(folder, p.name+".svg")); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	table, err := patternTable()
	if err != nil {
		return err
	}
	if err := curves.ReplaceSection(page, "patterns", table); err != nil {
		return err
	}
	return writeSlowCalls(folder, page)
}

// patternTable returns a table with the admitted requests of each pattern.
func patternTable() (string, error) {
	var b strings.Builder
	b.WriteString("| algorithm |")
	for _, p := range patterns() {
		fmt.Fprintf(&b, " %s: admitted of %d | most in any minute |", p.name, len(p.requests))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|---|", len(patterns())) + "\n")
	for _, algorithm := range patternAlgorithms {
		fmt.Fprintf(&b, "| `%s` |", algorithm)
		for _, p := range patterns() {
			admitted, err := p.admitted(algorithm)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, " %d | %d |", len(admitted), mostInMinute(admitted))
		}
		b.WriteString("\n")
	}
	return b.String(), nil
}

// panels returns a panel for each algorithm, two in a row. The last panel is the legend.
func (p pattern) panels() (rows [][]panel, err error) {
	var all []panel
	for _, algorithm := range patternAlgorithms {
		drawn, err := p.newPanel(algorithm)
		if err != nil {
			return nil, err
		}
		all = append(all, drawn)
	}
	all = append(all, legendPanel(p.title, "sent, and denied", "admitted", fmt.Sprintf("limit: %d per minute", patternLimit)))
	return slices.Collect(slices.Chunk(all, 2)), nil
}

// Colours of the bars.
var (
	sentColor     = serverColors[curves.Nothing]
	admittedColor = serverColors[curves.Redis]
)

// newPanel returns a panel with the sent and the admitted requests in each slot.
func (p pattern) newPanel(algorithm limit.Algorithm) (panel, error) {
	admitted, err := p.admitted(algorithm)
	if err != nil {
		return nil, err
	}
	drawn := newPlot(fmt.Sprintf("%s: at most %d in any minute", algorithm, mostInMinute(admitted)), "seconds", "requests in 5 s")
	drawn.Add(
		&plotter.Histogram{Bins: slots(p.requests), FillColor: sentColor},
		&plotter.Histogram{Bins: slots(admitted), FillColor: admittedColor},
	)
	setMinutes(drawn)
	return drawn, nil
}

// setMinutes sets the axes of a panel with a bar for each slot.
func setMinutes(drawn panel) {
	drawn.X.Min, drawn.X.Max, drawn.Y.Min = 0, patternLength.Seconds(), 0
	drawn.X.Tick.Marker = minuteTicks
}

// minuteTicks marks the minutes, at which windows end.
var minuteTicks = plot.ConstantTicks{{Value: 0, Label: "0"}, {Value: 60, Label: "60"}, {Value: 120, Label: "120"}, {Value: 180, Label: "180"}}

// slots returns a bar with the number of requests in each slot.
func slots(times []time.Duration) []plotter.HistogramBin {
	bars := emptyBars()
	for _, at := range times {
		bars[at/patternSlot].Weight++
	}
	return bars
}

// emptyBars returns a bar of height 0 for each slot.
func emptyBars() []plotter.HistogramBin {
	bars := make([]plotter.HistogramBin, patternLength/patternSlot)
	for i := range bars {
		start := time.Duration(i) * patternSlot
		bars[i].Min, bars[i].Max = start.Seconds(), (start + patternSlot).Seconds()
	}
	return bars
}

// legendPanel returns a panel that explains the two colours and the limit.
func legendPanel(title, sent, admitted, limits string) panel {
	legend := newPlot(title, "", "")
	legend.HideAxes()
	legend.Legend.Left, legend.Legend.TextStyle.Font.Size = true, vg.Points(11)
	legend.Legend.Add(sent, swatch(sentColor))
	legend.Legend.Add(admitted, swatch(admittedColor))
	legend.Legend.Add(limits)
	return legend
}

// swatch is a colour in a legend.
type swatch color.RGBA

// Thumbnail implements plot.Thumbnailer.
func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(color.RGBA(s), []vg.Point{
		{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y},
	})
}
