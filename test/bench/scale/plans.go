package main

import (
	"fmt"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

const (
	// replicas is the size of the service that can't be run on one machine.
	replicas = 100

	// fullRate is its load, in calls per second.
	fullRate = 1e6

	// network is the time of a trip in one region, without Redis, in microseconds.
	network = 300

	// keys are in use, with windows of a minute.
	keys   = 10_000
	window = 60
)

// calibration is a load that was measured, and the simulation of the same load.
type calibration struct {
	Load      curves.Load `json:"load"`
	Machine   float64     `json:"machine"` // share of the cores that client, server and Redis used
	Measured  result      `json:"measured"`
	Simulated result      `json:"simulated"`
}

// calibrate simulates the open loops that one replica answered. The simulation has no gRPC, so
// the time of a call without a trip is the measured one at the same rate.
func calibrate(run *curves.Run, c costs, seed uint64) (found []calibration) {
	for _, cell := range run.Cells {
		l := cell.Load
		if cell.Server != curves.Redis || l.Rate == 0 || l.Descriptors != 1 || l.Domain != "" || l.Keys != curves.DefaultKeys || cell.Saturated() {
			continue
		}
		median := func(f curves.Figure) float64 { return cell.Figures[f].Median }
		measured := result{
			Busy:       median(curves.RedisCPU) * median(curves.PerSecond) / 1e6,
			Trips:      median(curves.RedisReads) * median(curves.PerSecond),
			HitsInTrip: 1 / max(median(curves.RedisReads), 1e-9),
			RedisCPU:   median(curves.RedisCPU),
			Operations: median(curves.RedisCommands),
			P50:        median(curves.P50), P99: median(curves.P99),
		}
		p := plan{Name: "calibration", Replicas: 1, Rate: float64(l.Rate), Keys: l.Keys, Nodes: 1, Window: 3600, Even: true, Network: c.Loopback, Seconds: 4, Seed: seed}
		c.Call = callMicros(run, l.Rate)
		simulated := simulate(p, c)
		machine := (median(curves.ClientCPU) + median(curves.ServerCPU) + median(curves.RedisCPU)) * median(curves.PerSecond) / 1e6 / float64(run.Cores)
		found = append(found, calibration{l, machine, measured, simulated})
	}
	return found
}

// growth returns plans of more and more calls, for the numbers of nodes and for leases.
func growth(seed uint64) (plans []plan) {
	for _, nodes := range []int{1, 3, 6, 12} {
		for _, rate := range []float64{1e5, 2e5, 4e5, 6e5, 8e5, fullRate} {
			plans = append(plans, plan{
				Name: clusterName(nodes), Replicas: replicas, Rate: rate, Keys: keys, Nodes: nodes,
				Window: window, Network: network, Seconds: 0.4, Seed: seed,
			})
		}
	}
	return plans
}

func clusterName(nodes int) string {
	if nodes == 1 {
		return "one Redis"
	}
	return fmt.Sprintf("Cluster of %d", nodes)
}

// special returns plans at full rate in which the keys, the limits or leases make the difference.
func special(seed uint64) []plan {
	full := plan{Replicas: replicas, Rate: fullRate, Keys: keys, Nodes: 6, Window: window, Network: network, Seconds: 0.4, Seed: seed}
	change := func(name string, f func(*plan)) plan {
		p := full
		p.Name = name
		f(&p)
		return p
	}
	hot := func(p *plan) { p.Keys, p.Nodes = 10, 1 }
	const demand = 1.2 // limits
	limited := func(p *plan) {
		p.Seconds, p.Window = 1, 1
		p.Limit = int(p.Rate / float64(p.Keys) / demand)
	}
	return []plan{
		change("10,000 keys", func(*plan) {}),
		change("1,000,000 keys", func(p *plan) { p.Keys = 1_000_000 }),
		change("10,000 keys, leases", func(p *plan) { p.Lease = true }),
		change("10 keys, one Redis", hot),
		change("10 keys, one Redis, leases", func(p *plan) { hot(p); p.Lease, p.Seconds = true, 4 }),
		change("10 keys, one Redis, demand 1.2 × the limit", func(p *plan) { hot(p); limited(p) }),
		change("the same, leases with lease_waste 0.01", func(p *plan) { hot(p); limited(p); p.Lease, p.Waste = true, 0.01 }),
		change("the same, leases with lease_waste 0.1", func(p *plan) { hot(p); limited(p); p.Lease, p.Waste = true, 0.1 }),
		change("10,000 keys, demand 1.2 × the limit", limited),
		change("10,000 keys, one Redis, demand 1.2 × the limit", func(p *plan) { p.Nodes = 1; limited(p) }),
	}
}

// latencyGoal is the highest p99 with which Redis carries a load, in microseconds. The share of
// the time in which Redis is busy is no good measure: a busy Redis gets larger batches, and then
// a call costs less.
const latencyGoal = 5000

// capacity is the highest rate with a p99 of at most latencyGoal.
type capacity struct {
	Name     string  `json:"name"`
	Nodes    int     `json:"nodes"`
	Replicas int     `json:"replicas"`
	Rate     float64 `json:"rate"`
	At       result  `json:"at"`
}

// capacities searches the rate that Redis carries. The rate of a replica stays the same, so more
// load means more replicas.
func capacities(c costs, seed uint64) (found []capacity) {
	for _, nodes := range []int{1, 3, 6, 12} {
		const perReplica = 10_000
		low, high := 1, 400 // replicas
		var best result
		for low < high {
			middle := (low + high + 1) / 2
			r := simulate(plan{
				Name: clusterName(nodes), Replicas: middle, Rate: perReplica * float64(middle), Keys: keys, Nodes: nodes,
				Window: window, Network: network, Seconds: 0.12, Seed: seed,
			}, c)
			if r.P99 <= latencyGoal && r.Fallback == 0 {
				low, best = middle, r
			} else {
				high = middle - 1
			}
		}
		found = append(found, capacity{clusterName(nodes), nodes, low, perReplica * float64(low), best})
	}
	return found
}
