package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// testRun has a closed loop in which a peer is ahead, and an open loop in which it is not.
func testRun() *curves.Run {
	figures := func(p50, low, high, redis float64) map[curves.Figure]curves.Spread {
		return map[curves.Figure]curves.Spread{
			curves.P50: {Median: p50, Low: low, High: high}, curves.P99: {Median: 9 * p50, Low: 9 * low, High: 9 * high},
			curves.RedisCPU: {Median: redis, Low: redis, High: redis}, curves.ServerCPU: {Median: 30, Low: 30, High: 30},
			curves.PerSecond: {Median: 1000, Low: 1000, High: 1000},
		}
	}
	run := &curves.Run{Measured: time.Unix(1_763_784_000, 0), Cores: 2, Rounds: 5, Seconds: 1}
	for _, load := range []curves.Load{
		{InFlight: 1, Descriptors: 1, Keys: curves.DefaultKeys},
		{InFlight: 64, Descriptors: 1, Keys: curves.DefaultKeys},
		{Rate: 1000, Descriptors: 1, Keys: curves.DefaultKeys},
		{Rate: 1000, Descriptors: 4, Keys: curves.DefaultKeys},
	} {
		peerFigures := figures(300, 290, 310, 20)
		if load.InFlight == 1 {
			peerFigures = figures(50, 40, 60, 20)
		}
		run.Cells = append(run.Cells,
			curves.Cell{Server: curves.Redis, Load: load, Figures: figures(100, 90, 110, 10)},
			curves.Cell{Server: "neighbour", Load: load, Figures: peerFigures})
	}
	run.Exactness = []curves.Exactness{{Server: curves.Redis, Algorithm: "fixed_window", Span: curves.Spread{Median: 2}, Steady: curves.Spread{Median: 1}}}
	return run
}

func TestPageAndPlotsComeFromFile(t *testing.T) {
	folder := t.TempDir()
	file, page := filepath.Join(folder, "curves.json"), filepath.Join(folder, "page.md")
	if err := testRun().Write(file); err != nil {
		t.Fatal(err)
	}
	if err := write(file, "", filepath.Join(folder, "images"), page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"](images/latency.svg)",
		"| 1 in flight, 1 descriptor | p50, µs | rls, Redis | 100 | neighbour | 50.0 | yes |",
		"| 64 in flight, 1 descriptor | neighbour | 300 (290–310) |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("page: got no %q, want it in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "| 64 in flight, 1 descriptor | p50") {
		t.Error("page: got a peer ahead at 64 in flight, want none")
	}
	for _, name := range []string{"latency", "cpu", "algorithms"} {
		svg, err := os.ReadFile(filepath.Join(folder, "images", name+".svg"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(svg), "prefers-color-scheme:dark") || !strings.Contains(string(svg), "fill:#1F2328") {
			t.Errorf("%s.svg: got no colours for dark pages, want them", name)
		}
	}
}

func TestOverlappingRangesAreNotCertain(t *testing.T) {
	run := testRun()
	run.Cells[1].Figures[curves.P50] = curves.Spread{Median: 95, Low: 85, High: 120}
	if text := section(run, "."); !strings.Contains(text, "| 1 in flight, 1 descriptor | p50, µs | rls, Redis | 100 | neighbour | 95.0 | no: the ranges overlap |") {
		t.Errorf("page: got no uncertain row, want one in\n%s", text)
	}
}

func TestPartOfRunHasPlots(t *testing.T) {
	folder := t.TempDir()
	run := testRun()
	run.Cells, run.Exactness = run.Cells[:2], nil
	file := filepath.Join(folder, "curves.json")
	if err := run.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := write(file, "", folder, filepath.Join(folder, "page.md")); err != nil {
		t.Fatal(err)
	}
}
