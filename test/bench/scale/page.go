package main

import (
	"fmt"
	"strings"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// section returns the tables of the page.
func section(run *curves.Run, o outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s on %d cores, %s, Redis %s.\n", run.Measured.Format("2 January 2006"), run.Cores, run.Go, run.RedisIs)
	writeCosts(&b, o.Costs)
	writeReplica(&b, run)
	writeCalibrations(&b, o.Calibrations)
	writeCapacities(&b, o.Capacities)
	writeGrowth(&b, o.Growth)
	writeSpecial(&b, o.Special)
	return b.String()
}

func writeCosts(b *strings.Builder, c costs) {
	b.WriteString("\n### Costs\n\n| cost | µs |\n|---|---|\n")
	fmt.Fprintf(b, "| CPU time of Redis for a command in a trip | %.2f |\n", c.Command)
	fmt.Fprintf(b, "| CPU time of Redis for a trip that finds Redis idle, without its commands | %.2f |\n", c.WakingTrip)
	fmt.Fprintf(b, "| CPU time of Redis for a trip that finds Redis busy, without its commands | %.2f |\n", c.BusyTrip)
	fmt.Fprintf(b, "| a trip over the loopback, without the CPU time of Redis | %.0f |\n", c.Loopback)
	fmt.Fprintf(b, "| a call without a trip, seen by the client | %.0f |\n", c.Call)
}

// writeReplica writes the most that one replica answered on the measured machine.
func writeReplica(b *strings.Builder, run *curves.Run) {
	b.WriteString("\n### One replica\n\nA closed loop: always 256 calls in flight. The last column is what one core of the replica could answer if it did nothing else.\n\n")
	b.WriteString("| server | descriptors | calls/s, client and Redis on the same cores | server CPU of a call, µs | calls/s of one core |\n|---|---|---|---|---|\n")
	for _, descriptors := range []int{1, 4} {
		for _, server := range run.Servers() {
			c, ok := run.Cell(server, curves.Load{InFlight: 256, Descriptors: descriptors, Keys: curves.DefaultKeys})
			cpu := c.Figures[curves.ServerCPU].Median
			if !ok || cpu == 0 || server == curves.Nothing {
				continue
			}
			fmt.Fprintf(b, "| %s | %d | %.0f | %.1f | %.0f |\n", server, descriptors, c.Figures[curves.PerSecond].Median, cpu, 1e6/cpu)
		}
	}
}

func writeCalibrations(b *strings.Builder, all []calibration) {
	b.WriteString("\n### Calibration\n\nOne replica, one Redis, and calls at regular intervals. Two numbers in a cell are *measured / simulated*. The measured client, replica and Redis share the cores of one machine. While the machine is busy, calls wait for a core and arrive in bursts, so more of them share a trip. The simulation has no such waits.\n\n")
	b.WriteString("| calls/s | machine busy, % | Redis busy, % | trips/s | hits in a trip | Redis CPU of a call, µs | p50, µs | p99, µs |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range all {
		m, s := c.Measured, c.Simulated
		fmt.Fprintf(b, "| %d | %.0f | %.1f / %.1f | %.0f / %.0f | %.2f / %.2f | %.1f / %.1f | %.0f / %.0f | %.0f / %.0f |\n", c.Load.Rate, 100*c.Machine,
			100*m.Busy, 100*s.Busy, m.Trips, s.Trips, m.HitsInTrip, s.HitsInTrip, m.RedisCPU, s.RedisCPU, m.P50, s.P50, m.P99, s.P99)
	}
}

func writeCapacities(b *strings.Builder, all []capacity) {
	fmt.Fprintf(b, "\n### What Redis carries\n\nThe highest load with a p99 of at most %d ms at which the fallback decides no call. Each replica gets 10,000 calls a second, so a higher load has more replicas.\n\n", latencyGoal/1000)
	b.WriteString("| Redis | calls/s | replicas | calls/s for each node | hits in a trip | Redis CPU of a call, µs | p99, ms |\n|---|---|---|---|---|---|---|\n")
	for _, c := range all {
		fmt.Fprintf(b, "| %s | %.0f | %d | %.0f | %.2f | %.2f | %.2f |\n", c.Name, c.Rate, c.Replicas, c.Rate/float64(c.Nodes), c.At.HitsInTrip, c.At.RedisCPU, c.At.P99/1000)
	}
}

func writeGrowth(b *strings.Builder, all []result) {
	fmt.Fprintf(b, "\n### %d replicas\n\n", replicas)
	b.WriteString("| Redis | calls/s | busiest node, % | trips/s | hits in a trip | p50, ms | p99, ms | decided by the fallback, % |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		fmt.Fprintf(b, "| %s | %.0f | %.0f | %.0f | %.1f | %.2f | %.2f | %.1f |\n", r.Name, r.Rate, 100*r.Busy, r.Trips, r.HitsInTrip, r.P50/1000, r.P99/1000, 100*r.Fallback)
	}
}

func writeSpecial(b *strings.Builder, all []result) {
	fmt.Fprintf(b, "\n### Keys, limits and leases\n\n%d replicas and %.0f calls a second, with a Cluster of 6 unless the row says otherwise.\n\n", replicas, fullRate)
	b.WriteString("| what | busiest node, % | Redis commands of a call | trips/s | p99, ms | decided by the fallback, % | over-admission, % of the limit | unused, % of the limit |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range all {
		over, unused := "—", "—"
		if r.Limit > 0 {
			over, unused = fmt.Sprintf("%.2f", 100*r.Over), fmt.Sprintf("%.2f", 100*r.Unused)
		}
		fmt.Fprintf(b, "| %s | %.0f | %.3f | %.0f | %.2f | %.1f | %s | %s |\n", r.Name, 100*r.Busy, r.Operations, r.Trips, r.P99/1000, 100*r.Fallback, over, unused)
	}
}
