package main

import (
	"fmt"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// The marker of a point.
var (
	roundMarker  = draw.CircleGlyph{}
	markerRadius = vg.Points(2.4)
)

// latencyPanels returns the latency of open loops over their rate.
func latencyPanels(run *curves.Run) (rows [][]panel, err error) {
	for _, descriptors := range []int{1, 4} {
		var row []panel
		for _, c := range []struct {
			title  string
			figure curves.Figure
		}{{"median", curves.P50}, {"99th percentile", curves.P99}} {
			p := newPlot(fmt.Sprintf("Latency, %s, %s", c.title, descriptorsText(descriptors)), "calls per second", "ms from the due time")
			p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
			p.X.Min, p.X.Tick.Marker = 0, rateTicks{}
			p.Legend.Left = true
			err := addCurves(p, run, c.figure, 1e-3, func(l curves.Load) (x float64, ok bool) {
				return float64(l.Rate), l.Rate > 0 && l.Descriptors == descriptors && l.Keys == curves.DefaultKeys && l.Domain == ""
			})
			if err != nil {
				return nil, err
			}
			row = append(row, p)
		}
		rows = append(rows, row)
	}
	keepFirstLegend(rows)
	return rows, nil
}

// cpuPanels returns the CPU time of a call: in closed loops, and in open loops.
func cpuPanels(run *curves.Run) (rows [][]panel, err error) {
	closed := func(l curves.Load) (float64, bool) {
		return float64(l.InFlight), l.InFlight > 0 && l.Descriptors == 1 && l.Keys == curves.DefaultKeys && l.Domain == ""
	}
	open := func(l curves.Load) (float64, bool) {
		return float64(l.Rate), l.Rate > 0 && l.Descriptors == 1 && l.Keys == curves.DefaultKeys && l.Domain == ""
	}
	for _, x := range []struct {
		label string
		of    func(curves.Load) (float64, bool)
	}{{"calls in flight", closed}, {"calls per second", open}} {
		var row []panel
		for _, c := range []struct {
			title  string
			figure curves.Figure
		}{{"CPU time of the server for a call", curves.ServerCPU}, {"CPU time of Redis for a call", curves.RedisCPU}} {
			p := newPlot(c.title, x.label, "µs")
			p.Y.Min = 0
			p.X.Tick.Marker = rateTicks{}
			if x.label == "calls in flight" {
				p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, inFlightTicks
			}
			if err := addCurves(p, run, c.figure, 1, x.of); err != nil {
				return nil, err
			}
			row = append(row, p)
		}
		rows = append(rows, row)
	}
	keepFirstLegend(rows)
	return rows, nil
}

func descriptorsText(n int) string {
	if n == 1 {
		return "1 descriptor"
	}
	return strconv.Itoa(n) + " descriptors"
}

// keepFirstLegend removes all legends but the first, as the colours are the same.
func keepFirstLegend(rows [][]panel) {
	for i, row := range rows {
		for j, p := range row {
			if i+j > 0 {
				p.Legend = plot.NewLegend()
			}
		}
	}
}

// points are the points of a curve with the lowest and highest value of each.
type points struct {
	plotter.XYs
	plotter.YErrors
}

// addCurves adds a curve of a figure for each server. x returns the place of a load, or false
// if the load does not belong to the curves.
func addCurves(p panel, run *curves.Run, figure curves.Figure, unit float64, x func(curves.Load) (float64, bool)) error {
	for _, server := range run.Servers() {
		var found points
		for _, c := range run.Cells {
			spread, measured := c.Figures[figure]
			at, ok := x(c.Load)
			if !ok || !measured || c.Server != server {
				continue
			}
			found.XYs = append(found.XYs, plotter.XY{X: at, Y: spread.Median * unit})
			found.YErrors = append(found.YErrors, struct{ Low, High float64 }{(spread.Low - spread.Median) * unit, (spread.High - spread.Median) * unit})
		}
		if len(found.XYs) == 0 {
			continue
		}
		line, markers, err := plotter.NewLinePoints(found.XYs)
		if err != nil {
			return err
		}
		bars, err := plotter.NewYErrorBars(found)
		if err != nil {
			return err
		}
		c := colorOf(run, server)
		line.Color, line.Width = c, vg.Points(1.6)
		markers.Color, markers.Shape, markers.Radius = c, roundMarker, markerRadius
		bars.Color, bars.LineStyle.Width, bars.CapWidth = c, vg.Points(0.6), vg.Points(4)
		p.Add(bars, line, markers)
		p.Legend.Add(server, line, markers)
	}
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		switch { // a log scale needs a range above 0
		case axis.Min > axis.Max: // no curve
			axis.Min, axis.Max = 1, 10
		case axis.Min == axis.Max:
			axis.Min, axis.Max = axis.Min/2, axis.Max*2
		}
	}
	return nil
}

// plainTicks marks an axis at even distances, without zeros after the point.
type plainTicks struct{}

func (plainTicks) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i, tick := range ticks {
		if tick.Label != "" {
			ticks[i].Label = strconv.FormatFloat(tick.Value, 'g', 6, 64)
		}
	}
	return ticks
}

// rateTicks marks the axis of a rate.
type rateTicks struct{}

func (rateTicks) Ticks(_, high float64) (ticks []plot.Tick) {
	step := 4000
	if high > 30_000 {
		step = 8000
	}
	for rate := 0; float64(rate) <= high; rate += step {
		ticks = append(ticks, plot.Tick{Value: float64(rate), Label: fmt.Sprint(rate)})
	}
	return ticks
}

// decades marks the powers of ten, and two marks between them.
type decades struct{}

func (decades) Ticks(low, high float64) (ticks []plot.Tick) {
	for exponent := -3; exponent <= 5; exponent++ {
		for _, digit := range []int{1, 2, 5} {
			text := fmt.Sprintf("%de%d", digit, exponent)
			value, _ := strconv.ParseFloat(text, 64)
			if value >= low*0.999 && value <= high*1.001 {
				ticks = append(ticks, plot.Tick{Value: value, Label: strconv.FormatFloat(value, 'f', -1, 64)})
			}
		}
	}
	return ticks
}

var inFlightTicks = plot.ConstantTicks{{Value: 1, Label: "1"}, {Value: 16, Label: "16"}, {Value: 64, Label: "64"}, {Value: 256, Label: "256"}}
