package main

import (
	"slices"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// spreadLoad and hotLoad are the loads of which the bars of algorithms show the cost.
var (
	spreadLoad = curves.Load{InFlight: 64, Descriptors: 1, Keys: curves.DefaultKeys}
	hotLoad    = curves.Load{Rate: 4000, Descriptors: 1, Keys: 1}
)

// variant is an algorithm of a server that counts in Redis.
type variant struct{ server, algorithm string }

func (v variant) name() string {
	if v.server == curves.Redis {
		return v.algorithm
	}
	return v.server + ": " + v.algorithm
}

// load returns l with the domain of the algorithm.
func (v variant) load(l curves.Load) curves.Load {
	if v.algorithm != "fixed_window" {
		l.Domain = v.algorithm
	}
	return l
}

func variants(run *curves.Run) (found []variant) {
	for _, e := range run.Exactness {
		found = append(found, variant{e.Server, e.Algorithm})
	}
	slices.Reverse(found) // bars grow from below
	return found
}

// algorithmPanels returns bars for each algorithm: its commands, its cost and its error.
func algorithmPanels(run *curves.Run) ([][]panel, error) {
	figure := func(l curves.Load, f curves.Figure) series {
		return func(v variant) float64 {
			c, _ := run.Cell(v.server, v.load(l))
			return c.Figures[f].Median
		}
	}
	exactness := func(value func(curves.Exactness) float64) series {
		return func(v variant) float64 {
			i := slices.IndexFunc(run.Exactness, func(e curves.Exactness) bool { return e.Server == v.server && e.Algorithm == v.algorithm })
			return 100 * value(run.Exactness[i])
		}
	}
	const loads = "strong: 64 in flight; pale: 4,000 calls/s on 1 key"
	var rows [][]panel
	for _, row := range [][]bars{
		{
			{"Redis commands for a call", loads, []series{figure(spreadLoad, curves.RedisCommands), figure(hotLoad, curves.RedisCommands)}},
			{"CPU time of Redis for a call, µs", loads, []series{figure(spreadLoad, curves.RedisCPU), figure(hotLoad, curves.RedisCPU)}},
		},
		{
			{"Admitted beyond the limit in any second", "% of the limit, bursts at the end of a window", []series{exactness(func(e curves.Exactness) float64 { return max(e.Span.Median-1, 0) })}},
			{"Not admitted under steady demand", "% of the limit, demand of 3 limits", []series{exactness(func(e curves.Exactness) float64 { return max(1-e.Steady.Median, 0) })}},
		},
	} {
		var panels []panel
		for _, b := range row {
			p, err := b.newPanel(run)
			if err != nil {
				return nil, err
			}
			panels = append(panels, p)
		}
		rows = append(rows, panels)
	}
	return rows, nil
}

// bars are horizontal bars for each variant.
type bars struct {
	title, label string
	series       []series
}

// series returns the value of a variant under one load.
type series func(variant) float64

// newPanel returns a panel with the bars of a run.
func (b bars) newPanel(run *curves.Run) (panel, error) {
	p := newPlot(b.title, b.label, "")
	all := variants(run)
	var names []string
	for _, v := range all {
		names = append(names, v.name())
	}
	width := vg.Points(14) / vg.Length(len(b.series))
	highest := 0.0
	for i, valueOf := range b.series {
		for at, v := range all {
			value := valueOf(v)
			highest = max(highest, value)
			bar, err := plotter.NewBarChart(plotter.Values{value}, width)
			if err != nil {
				return nil, err
			}
			bar.Horizontal, bar.XMin = true, float64(at)
			bar.LineStyle.Width = 0
			bar.Offset = width * vg.Length(float64(len(b.series)-1)/2-float64(i))
			c := colorOf(run, v.server)
			if i > 0 {
				c.R, c.G, c.B = lighter(c.R), lighter(c.G), lighter(c.B)
			}
			bar.Color = c
			p.Add(bar)
		}
	}
	p.X.Min, p.X.Max = 0, max(highest*1.05, 1)
	if len(names) > 0 { // NominalY needs a name
		p.NominalY(names...)
	}
	p.X.Label.TextStyle.Font.Size = vg.Points(8.5)
	p.Y.Tick.Label.Font.Size = vg.Points(7.5)
	return p, nil
}

// lighter returns a part of a colour halfway to white.
func lighter(part uint8) uint8 { return part/2 + 0x70 }
