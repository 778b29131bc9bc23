package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// costs are the measured times that the simulation uses, in microseconds.
type costs struct {
	// Command is the CPU time of Redis for a command in a trip.
	Command float64 `json:"command"`
	// WakingTrip is the CPU time of Redis for a trip that finds Redis idle, without its commands.
	WakingTrip float64 `json:"waking_trip"`
	// BusyTrip is the CPU time of Redis for a trip that finds Redis busy, without its commands.
	BusyTrip float64 `json:"busy_trip"`
	// Loopback is the time of a trip on one machine, without the CPU time of Redis.
	Loopback float64 `json:"loopback"`
	// Call is the time of a call that needs no trip, seen by the client.
	Call float64 `json:"call"`
	// Server is the CPU time of a replica for a call, by calls per second.
	Server []serverCost `json:"server"`
	// LeasedServer is the same with leases.
	LeasedServer []serverCost `json:"leased_server,omitempty"`
}

// serverCost is the CPU time of a replica for a call at a rate.
type serverCost struct {
	Rate   float64 `json:"rate"`
	Micros float64 `json:"micros"`
}

// costsOf derives the costs from a run.
//
// In a cell of one replica each trip finds Redis idle. So the CPU time of Redis for a call is
// WakingTrip × trips + Command × commands, and least squares over the closed loops give both.
// BusyTrip comes from the pipelines of many connections, which keep Redis busy.
func costsOf(run *curves.Run) (c costs, err error) {
	if c.WakingTrip, c.Command, err = fitTrips(run); err != nil {
		return c, err
	}
	if c.BusyTrip, err = busyTrip(run); err != nil {
		return c, err
	}
	alone := curves.Load{InFlight: 1, Descriptors: 1, Keys: curves.DefaultKeys}
	withRedis, ok := run.Cell(curves.Redis, alone)
	inProcess, okLocal := run.Cell(curves.Local, alone)
	if !ok || !okLocal {
		return c, fmt.Errorf("cells %q: got none, want one of %s and of %s", alone.Name(), curves.Redis, curves.Local)
	}
	c.Loopback = max(withRedis.Figures[curves.P50].Median-inProcess.Figures[curves.P50].Median-c.WakingTrip-c.Command, 0)
	c.Call = callMicros(run, callRate)
	c.Server = serverCosts(run, curves.Redis)
	c.LeasedServer = serverCosts(run, curves.Lease)
	if len(c.Server) == 0 {
		return c, fmt.Errorf("open loops of %s: got none, want at least one", curves.Redis)
	}
	return c, nil
}

// callRate is the rate at which a call is neither slow because the machine sleeps, nor because
// the client needs the same cores.
const callRate = 4000

// callMicros returns the time of a call that needs no trip at a rate. Without an open loop of
// this rate, it is the time of a lone call.
func callMicros(run *curves.Run, rate int) float64 {
	c, ok := run.Cell(curves.Local, curves.Load{Rate: rate, Descriptors: 1, Keys: curves.DefaultKeys})
	if !ok {
		c, _ = run.Cell(curves.Local, curves.Load{InFlight: 1, Descriptors: 1, Keys: curves.DefaultKeys})
	}
	return c.Figures[curves.P50].Median
}

// fitTrips returns the times of a trip and of a command that fit the closed loops best.
func fitTrips(run *curves.Run) (trip, command float64, err error) {
	var xx, xy, yy, xz, yz float64 // sums of products of trips x, commands y and CPU time z
	for _, cell := range run.Cells {
		l := cell.Load
		if cell.Server != curves.Redis || l.InFlight == 0 || l.Domain != "" || l.Keys == 1 {
			continue
		}
		z := cell.Figures[curves.RedisCPU].Median
		if z <= 0 {
			continue
		}
		// Divided by z, all cells count alike.
		x, y := cell.Figures[curves.RedisReads].Median/z, cell.Figures[curves.RedisCommands].Median/z
		xx, xy, yy, xz, yz = xx+x*x, xy+x*y, yy+y*y, xz+x, yz+y
	}
	determinant := xx*yy - xy*xy
	if determinant <= 0 {
		return 0, 0, fmt.Errorf("closed loops of %s: got too few, want some with different numbers of calls in flight", curves.Redis)
	}
	return max((xz*yy-yz*xy)/determinant, 0), max((yz*xx-xz*xy)/determinant, 0), nil
}

// busyTrip returns the time of a trip to a busy Redis: a pipeline of one command without the
// time of the command.
func busyTrip(run *curves.Run) (float64, error) {
	cost := map[int]float64{}
	for _, p := range run.Pipelines {
		if p.Connections > 1 {
			cost[p.Commands] = p.Micros.Median
		}
	}
	if cost[1] == 0 || cost[16] == 0 {
		return 0, fmt.Errorf("pipelines: got %d, want those of 1 and 16 commands over many connections", len(run.Pipelines))
	}
	command := (cost[16] - cost[1]) / 15
	return max(cost[1]-command, 0), nil
}

// serverCosts returns the CPU time of a server by rate: of the open loops that it answered, and
// at last of the busiest closed loop.
func serverCosts(run *curves.Run, server string) (found []serverCost) {
	for _, c := range run.Cells {
		l := c.Load
		if c.Server == server && l.Rate > 0 && l.Descriptors == 1 && l.Domain == "" && l.Keys == curves.DefaultKeys && !c.Saturated() {
			found = append(found, serverCost{float64(l.Rate), c.Figures[curves.ServerCPU].Median})
		}
	}
	if c, ok := run.Cell(server, curves.Load{InFlight: 256, Descriptors: 1, Keys: curves.DefaultKeys}); ok {
		found = append(found, serverCost{c.Figures[curves.PerSecond].Median, c.Figures[curves.ServerCPU].Median})
	}
	slices.SortFunc(found, func(a, b serverCost) int { return int(a.Rate - b.Rate) })
	return found
}

// serverMicros returns the CPU time for a call at a rate, between the two next rates that were
// measured.
func serverMicros(all []serverCost, rate float64) float64 {
	for i, next := range all {
		if rate > next.Rate {
			continue
		}
		if i == 0 {
			return next.Micros
		}
		last := all[i-1]
		return last.Micros + (next.Micros-last.Micros)*(rate-last.Rate)/(next.Rate-last.Rate)
	}
	return all[len(all)-1].Micros
}

// newKeyShare returns the share of hits that are the first of their key and window in a replica.
// Such a hit needs one more command. rate is the rate of a key in a replica, in hits per second.
func newKeyShare(rate, window float64) float64 {
	hits := rate * window
	if hits < 1e-9 {
		return 1
	}
	return (1 - math.Exp(-hits)) / hits
}
