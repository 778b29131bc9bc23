package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// section returns the text of the page: plots, tables, and where a peer is ahead. images is the
// path of the plots from the page.
func section(run *curves.Run, images string) string {
	var b strings.Builder
	rounds := "rounds"
	if run.Rounds == 1 {
		rounds = "round"
	}
	fmt.Fprintf(&b, "Medians of %d %s of %g s, measured %s on %d cores, %s, Redis %s. A range in brackets goes from the lowest to the highest round.\n\n",
		run.Rounds, rounds, run.Seconds, run.Measured.Format("2 January 2006"), run.Cores, run.Go, run.RedisIs)
	fmt.Fprintf(&b, "![Latency of open loops over their rate](%s/latency.svg)\n\n", images)
	fmt.Fprintf(&b, "![CPU time of a call over the load](%s/cpu.svg)\n\n", images)
	fmt.Fprintf(&b, "![Redis commands, CPU time of Redis and error of the algorithms](%s/algorithms.svg)\n\n", images)
	writeAhead(&b, run)
	writeExactness(&b, run)
	writeMemory(&b, run)
	b.WriteString("<details>\n<summary>All figures</summary>\n\n")
	writeCells(&b, run)
	b.WriteString("\n</details>\n")
	return b.String()
}

// writeCells writes a row for each load and server.
func writeCells(b *strings.Builder, run *curves.Run) {
	b.WriteString("| load | server | p50, µs | p99, µs | p99.9, µs | calls/s | server CPU, µs | Redis CPU, µs | Redis commands | Redis reads |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, c := range run.Cells {
		fmt.Fprintf(b, "| %s | %s |", c.Load.Name(), c.Server)
		for _, f := range []curves.Figure{curves.P50, curves.P99, curves.P999, curves.PerSecond, curves.ServerCPU, curves.RedisCPU, curves.RedisCommands, curves.RedisReads} {
			fmt.Fprintf(b, " %s |", spreadText(c.Figures, f))
		}
		b.WriteByte('\n')
	}
}

// spreadText returns a figure and its range, or a dash if it was not measured.
func spreadText(figures map[curves.Figure]curves.Spread, f curves.Figure) string {
	s, ok := figures[f]
	if !ok {
		return "—"
	}
	if s.Low == s.High {
		return number(s.Median)
	}
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.Low), number(s.High))
}

// number returns a value with three digits, or with all digits before the point.
func number(value float64) string {
	digits := 0
	if value > 0 {
		digits = min(max(2-int(math.Floor(math.Log10(value))), 0), 3)
	}
	return strconv.FormatFloat(value, 'f', digits, 64)
}

func writeMemory(b *strings.Builder, run *curves.Run) {
	if len(run.Memory) == 0 {
		return
	}
	b.WriteString("Memory of a key, after one hit on each key. The memory of the process includes what its garbage collector has not returned yet.\n\n| server | keys | bytes in the process | bytes in Redis |\n|---|---|---|---|\n")
	for _, m := range run.Memory {
		redis := "—"
		if m.Redis > 0 {
			redis = number(m.Redis)
		}
		fmt.Fprintf(b, "| %s | %d | %.0f | %s |\n", m.Server, m.Keys, m.Bytes, redis)
	}
	b.WriteByte('\n')
}

func writeExactness(b *strings.Builder, run *curves.Run) {
	if len(run.Exactness) == 0 {
		return
	}
	b.WriteString("Admitted hits of three replicas, relative to a limit of one second (1 is the limit). A burst has three times the limit, half of it before and half after the end of a window. The steady demand is three times the limit in each second.\n\n| server | algorithm | most in any second, under bursts | share of the limit, under steady demand |\n|---|---|---|---|\n")
	for _, e := range run.Exactness {
		fmt.Fprintf(b, "| %s | %s | %.2f (%.2f–%.2f) | %.2f (%.2f–%.2f) |\n", e.Server, e.Algorithm,
			e.Span.Median, e.Span.Low, e.Span.High, e.Steady.Median, e.Steady.Low, e.Steady.High)
	}
	b.WriteByte('\n')
}
