package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// simulated is a result of `make simulate-scale`.
type simulated struct {
	Name     string  `json:"name"`
	Rate     float64 `json:"rate"`
	RedisCPU float64 `json:"redis_cpu"`
	P99      float64 `json:"p99"`
}

// scalePanels returns the latency and the cost of 100 replicas over their load.
func scalePanels(path string) ([][]panel, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var run struct {
		Growth []simulated `json:"growth"`
	}
	if err := json.Unmarshal(text, &run); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	latency := newPlot("99th percentile of 100 replicas, simulated", "million calls per second", "ms")
	latency.Y.Scale, latency.Y.Tick.Marker = plot.LogScale{}, decades{}
	latency.Legend.Left = true
	cost := newPlot("CPU time of Redis for a call, simulated", "million calls per second", "µs")
	cost.Y.Min = 0
	palette := []color.RGBA{serverColors[curves.Redis], serverColors[curves.Lease], serverColors[curves.Incumbent], serverColors[curves.Local]}
	for i := 0; len(run.Growth) > 0; i++ {
		var name string
		var tail, micros plotter.XYs
		name, tail, micros, run.Growth = nextCurve(run.Growth)
		for _, c := range []struct {
			p      panel
			points plotter.XYs
		}{{latency, tail}, {cost, micros}} {
			line, markers, err := plotter.NewLinePoints(c.points)
			if err != nil {
				return nil, err
			}
			line.Color, line.Width = palette[i%len(palette)], vg.Points(1.6)
			markers.Color, markers.Shape, markers.Radius = line.Color, roundMarker, markerRadius
			c.p.Add(line, markers)
			c.p.Legend.Add(name, line, markers)
		}
	}
	panels := [][]panel{{latency, cost}}
	keepFirstLegend(panels)
	return panels, nil
}

// nextCurve returns the points of the first name, and the results of the other names.
func nextCurve(all []simulated) (name string, latency, cost plotter.XYs, others []simulated) {
	name = all[0].Name
	for _, r := range all {
		if r.Name != name {
			others = append(others, r)
			continue
		}
		latency = append(latency, plotter.XY{X: r.Rate / 1e6, Y: r.P99 / 1e3})
		cost = append(cost, plotter.XY{X: r.Rate / 1e6, Y: r.RedisCPU})
	}
	return name, latency, cost, others
}
