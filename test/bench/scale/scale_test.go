package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// testCosts are round numbers, so that results can be computed by hand.
var testCosts = costs{Command: 2, WakingTrip: 10, BusyTrip: 3, Loopback: 50, Call: 70, Server: []serverCost{{1000, 50}, {10_000, 30}}}

func simulateSmall(change func(*plan)) result {
	p := plan{Replicas: 4, Rate: 20_000, Keys: 100, Nodes: 1, Window: 3600, Network: 300, Seconds: 0.4, Seed: 7}
	change(&p)
	return simulate(p, testCosts)
}

func TestSameSeedGivesSameResult(t *testing.T) {
	firstResult := simulateSmall(func(*plan) {})
	assert.Equal(t, firstResult, simulateSmall(func(*plan) {}))
	assert.NotEqual(t, firstResult.P99, simulateSmall(func(p *plan) { p.Seed = 8 }).P99)
}

func TestLoneCallCostsOneTrip(t *testing.T) {
	result := simulateSmall(func(p *plan) { p.Replicas, p.Rate, p.Even = 1, 1000, true })
	assert.InDelta(t, 1, result.HitsInTrip, 0.01)
	assert.InDelta(t, 1000, result.Trips, 10)
	assert.InDelta(t, 70+300+10+2, result.P50, 3, "a call, the network and a trip that wakes Redis")
	assert.InDelta(t, 1000*12e-6, result.Busy, 0.001)
}

func TestBusyRedisGetsLargerBatches(t *testing.T) {
	lightLoad := simulateSmall(func(p *plan) { p.Keys = 10_000 })
	heavyLoad := simulateSmall(func(p *plan) { p.Keys, p.Replicas, p.Rate = 10_000, 40, 400_000 })
	assert.Greater(t, heavyLoad.HitsInTrip, 2*lightLoad.HitsInTrip)
	assert.Less(t, heavyLoad.RedisCPU, lightLoad.RedisCPU)
}

func TestOverloadGoesToFallback(t *testing.T) {
	result := simulateSmall(func(p *plan) { p.Keys, p.Replicas, p.Rate = 100_000, 100, 2_000_000 })
	assert.Greater(t, result.Fallback, 0.5)
	assert.LessOrEqual(t, result.P99, budget/micro+testCosts.Call)
}

func TestLimitIsNeverExceededWithoutFallback(t *testing.T) {
	for _, lease := range []bool{false, true} {
		result := simulateSmall(func(p *plan) { p.Keys, p.Limit, p.Seconds, p.Lease, p.Waste = 2, 2000, 1, lease, 0.1 })
		require.Zero(t, result.Fallback)
		assert.LessOrEqual(t, result.Over, 0.0)
		assert.LessOrEqual(t, result.Unused, 0.1)
	}
}

func TestLeasesSaveTrips(t *testing.T) {
	resultWithoutLeases := simulateSmall(func(p *plan) { p.Keys = 2 })
	resultWithLeases := simulateSmall(func(p *plan) { p.Keys, p.Lease = 2, true })
	assert.Less(t, resultWithLeases.Operations, resultWithoutLeases.Operations/20)
	assert.Less(t, resultWithLeases.P50, resultWithoutLeases.P50)
}

func TestHitsOfNewKeysNeedTwoCommands(t *testing.T) {
	assert.InDelta(t, 1, newKeyShare(0, 60), 1e-6)
	assert.InDelta(t, 0.01, newKeyShare(100, 1), 1e-3)
	result := simulateSmall(func(p *plan) { p.Keys, p.Window = 10_000_000, 1 })
	assert.InDelta(t, 2, result.Operations, 0.05)
}

func TestCostsFitMeasuredCells(t *testing.T) {
	figures := func(values map[curves.Figure]float64) map[curves.Figure]curves.Spread {
		spreads := map[curves.Figure]curves.Spread{}
		for f, v := range values {
			spreads[f] = curves.Spread{Median: v}
		}
		return spreads
	}
	run := &curves.Run{Pipelines: []curves.Pipeline{
		{Connections: 64, Commands: 1, Micros: curves.Spread{Median: 5}},
		{Connections: 64, Commands: 16, Micros: curves.Spread{Median: 35}},
	}}
	for _, test := range []struct {
		load         curves.Load
		trips, costs float64
	}{
		{curves.Load{InFlight: 1, Descriptors: 1, Keys: curves.DefaultKeys}, 1, 12},
		{curves.Load{InFlight: 64, Descriptors: 1, Keys: curves.DefaultKeys}, 0.1, 3},
		{curves.Load{Rate: 4000, Descriptors: 1, Keys: curves.DefaultKeys}, 0.5, 99},
	} {
		run.Cells = append(run.Cells,
			curves.Cell{Server: curves.Redis, Load: test.load, Figures: figures(map[curves.Figure]float64{
				curves.RedisReads: test.trips, curves.RedisCommands: 1, curves.RedisCPU: test.costs,
				curves.P50: 130, curves.ServerCPU: 60, curves.PerSecond: 4000,
			})},
			curves.Cell{Server: curves.Local, Load: test.load, Figures: figures(map[curves.Figure]float64{curves.P50: 80})})
	}
	got, err := costsOf(run)
	require.NoError(t, err)
	assert.InDelta(t, 10, got.WakingTrip, 1e-6)
	assert.InDelta(t, 2, got.Command, 1e-6)
	assert.InDelta(t, 3, got.BusyTrip, 1e-6)
	assert.InDelta(t, 80, got.Call, 1e-6)
	assert.InDelta(t, 130-80-12, got.Loopback, 1e-6)
	assert.Equal(t, []serverCost{{4000, 60}}, got.Server)

	_, err = costsOf(&curves.Run{})
	assert.ErrorContains(t, err, "got too few")
}

func TestServerCostLiesBetweenMeasuredRates(t *testing.T) {
	assert.InDelta(t, 50, serverMicros(testCosts.Server, 10), 1e-9)
	assert.InDelta(t, 40, serverMicros(testCosts.Server, 5500), 1e-9)
	assert.InDelta(t, 30, serverMicros(testCosts.Server, 1e6), 1e-9)
}
