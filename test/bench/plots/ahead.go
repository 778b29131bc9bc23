package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// comparison is a figure in which a peer can be ahead.
type comparison struct {
	title  string
	figure curves.Figure
	more   bool // more is better
}

var comparisons = []comparison{
	{"p50, µs", curves.P50, false},
	{"p99, µs", curves.P99, false},
	{"p99.9, µs", curves.P999, false},
	{"calls/s", curves.PerSecond, true},
	{"server CPU, µs", curves.ServerCPU, false},
	{"Redis CPU, µs", curves.RedisCPU, false},
	{"Redis commands", curves.RedisCommands, false},
	{"Redis reads", curves.RedisReads, false},
}

// ours are the servers that peers are compared with.
var ours = []string{curves.Redis, curves.Lease}

// writeAhead lists the figures in which a peer is ahead of rls with Redis or with leases.
func writeAhead(b *strings.Builder, run *curves.Run) {
	b.WriteString("**Where a peer is ahead.** ")
	var rows []string
	compared, uncertain := 0, 0
	for _, l := range run.Loads() {
		for _, own := range ours {
			for _, peer := range run.Servers() {
				if !isPeer(peer) {
					continue
				}
				for _, c := range comparisons {
					mine, theirs, ok := pair(run, l, own, peer, c)
					if !ok {
						continue
					}
					compared++
					if !better(theirs.Median, mine.Median, c.more) {
						continue
					}
					certainty := "yes"
					switch {
					case run.Rounds < 3:
						certainty = "no: too few rounds"
						uncertain++
					case theirs.High >= mine.Low && mine.High >= theirs.Low:
						certainty = "no: the ranges overlap"
						uncertain++
					}
					rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", l.Name(), c.title, own, number(mine.Median), peer, number(theirs.Median), certainty))
				}
			}
		}
	}
	memory, count := memoryAhead(run)
	rows, compared = append(rows, memory...), compared+count
	if compared == 0 {
		b.WriteString("This run had no peer.\n\n")
		return
	}
	fmt.Fprintf(b, "A peer has the better median in %d of %d comparisons with rls. In %d of them the order is not certain.\n\n", len(rows), compared, uncertain)
	if len(rows) > 0 {
		b.WriteString("| load | figure | server | its median | peer | its median | certain |\n|---|---|---|---|---|---|---|\n" + strings.Join(rows, "") + "\n")
	}
}

// memoryAhead returns a row for each memory of a key that a peer keeps smaller, and the number of
// comparisons.
func memoryAhead(run *curves.Run) (rows []string, compared int) {
	for _, own := range run.Memory {
		for _, peer := range run.Memory {
			if !slices.Contains(ours, own.Server) || !isPeer(peer.Server) {
				continue
			}
			for _, c := range []struct {
				title        string
				mine, theirs float64
			}{{"bytes in the process", own.Bytes, peer.Bytes}, {"bytes in Redis", own.Redis, peer.Redis}} {
				compared++
				if c.theirs < c.mine {
					rows = append(rows, fmt.Sprintf("| memory of a key, %d keys | %s | %s | %s | %s | %s | one measurement |\n", own.Keys, c.title, own.Server, number(c.mine), peer.Server, number(c.theirs)))
				}
			}
		}
	}
	return rows, compared
}

// isPeer reports whether a server is compared with ours.
func isPeer(server string) bool {
	return server != curves.Nothing && server != curves.Local && !slices.Contains(ours, server)
}

// pair returns the spreads of a figure for two servers. If both answered all calls of an open
// loop, their calls per second are not compared.
func pair(run *curves.Run, l curves.Load, own, peer string, c comparison) (mine, theirs curves.Spread, ok bool) {
	ownCell, _ := run.Cell(own, l)
	peerCell, _ := run.Cell(peer, l)
	mine, hasMine := ownCell.Figures[c.figure]
	theirs, hasTheirs := peerCell.Figures[c.figure]
	ok = hasMine && hasTheirs
	if c.figure == curves.PerSecond && l.Rate > 0 && !ownCell.Saturated() && !peerCell.Saturated() {
		return mine, theirs, false // both answered all calls
	}
	return mine, theirs, ok
}

func better(value, than float64, more bool) bool {
	if more {
		return value > than
	}
	return value < than
}
