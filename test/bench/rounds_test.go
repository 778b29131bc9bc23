//go:build redis

package bench

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// Environment variables for short runs: the number of rounds, the seconds of a load, and a
// regular expression that selects loads by name.
const (
	roundsEnv  = "RLS_BENCH_ROUNDS"
	secondsEnv = "RLS_BENCH_SECONDS"
	loadsEnv   = "RLS_BENCH_LOADS"
)

// rounds is the plan of a measurement: each target gets a load in each round. The targets take
// turns, so noise of the machine concerns all.
type rounds struct {
	t      *testing.T
	number int
	length time.Duration // of a load in a round
	warmUp time.Duration
}

// newRounds returns rounds of the given seconds. The environment can change both numbers.
func newRounds(t *testing.T, seconds float64) rounds {
	return rounds{
		t:      t,
		number: int(numberFromEnv(t, roundsEnv, 5)),
		length: time.Duration(numberFromEnv(t, secondsEnv, seconds) * float64(time.Second)),
		warmUp: 200 * time.Millisecond,
	}
}

// measure returns a cell for each target.
func (r rounds) measure(targets []target, l curves.Load) []curves.Cell {
	values := make([]map[curves.Figure][]float64, len(targets))
	for i, target := range targets { // so that all keys exist in the rounds
		values[i] = map[curves.Figure][]float64{}
		require.NoError(r.t, target.client.Fill(target.withKnownDomain(l)), target.name)
	}
	for round := range r.number {
		for turn := range targets {
			i := (round + turn) % len(targets)
			for name, value := range r.measureOnce(targets[i], l) {
				values[i][name] = append(values[i][name], value)
			}
		}
	}
	var cells []curves.Cell
	for i, target := range targets {
		cell := curves.Cell{Server: target.name, Load: l, Figures: map[curves.Figure]curves.Spread{}}
		for name, measured := range values[i] {
			cell.Figures[name] = curves.SpreadOf(measured)
		}
		cells = append(cells, cell)
	}
	return cells
}

// measureOnce sends the load to a target for one round.
func (r rounds) measureOnce(target target, l curves.Load) map[curves.Figure]float64 {
	l = target.withKnownDomain(l)
	_, err := target.client.Send(l, r.warmUp)
	require.NoError(r.t, err, target.name)
	cpu, commands, reads := redisFigures(r.t, target.redis)
	var server time.Duration
	if target.pid > 0 {
		server = cpuOf(r.t, target.pid)
	}
	client, start := cpuOf(r.t, 0), time.Now()
	times, err := target.client.Send(l, r.length)
	require.NoError(r.t, err, target.name)
	require.NotEmpty(r.t, times)
	n, elapsed := float64(len(times)), time.Since(start)
	slices.Sort(times)
	figures := map[curves.Figure]float64{
		curves.ClientCPU: micros(cpuOf(r.t, 0)-client) / n,
		curves.PerSecond: n / elapsed.Seconds(),
		curves.P50:       micros(times[len(times)/2]),
		curves.P99:       micros(times[len(times)*99/100]),
		curves.P999:      micros(times[len(times)*999/1000]),
	}
	if target.pid > 0 {
		figures[curves.ServerCPU] = micros(cpuOf(r.t, target.pid)-server) / n
	}
	if len(target.redis) > 0 {
		cpuAfter, commandsAfter, readsAfter := redisFigures(r.t, target.redis)
		figures[curves.RedisCPU] = (cpuAfter - cpu) / n
		figures[curves.RedisCommands] = (commandsAfter - commands) / n
		figures[curves.RedisReads] = (readsAfter - reads) / n
	}
	return figures
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
