package main

import (
	"math/rand/v2"
	"slices"
)

// plan is what a simulation runs.
type plan struct {
	Name     string  `json:"name"`
	Replicas int     `json:"replicas"`
	Rate     float64 `json:"rate"` // calls in a second, of all replicas
	Keys     int     `json:"keys"`
	Nodes    int     `json:"nodes"`  // of Redis
	Window   float64 `json:"window"` // of the limit, in seconds
	// Limit is the limit of a key in a window. 0 means that no key reaches its limit.
	Limit int  `json:"limit,omitempty"`
	Lease bool `json:"lease,omitempty"`
	// Waste is the lease_waste of the limit.
	Waste float64 `json:"waste,omitempty"`
	// Even lets calls arrive at even distances, as the load program sends them. Otherwise the
	// distances are random (a Poisson process).
	Even bool `json:"even,omitempty"`
	// Network is the time of a trip without Redis, in microseconds.
	Network float64 `json:"network"`
	Seconds float64 `json:"seconds"`
	Seed    uint64  `json:"seed"`
}

// Settings of rls at their defaults.
const (
	maxBatch     = 256    // the default of redis.Options.MaxBatchSize
	maxQueue     = 4096   // REDIS_MAX_QUEUE_SIZE
	budget       = 50e6   // REDIS_TIMEOUT, in nanoseconds
	maxWait      = 37.5e6 // three quarters of the budget
	fallbackPart = 0.5    // FALLBACK_RATIO
	cores        = 2      // of a replica
	micro        = 1e3    // nanoseconds
	leaseHorizon = 1.0    // seconds of demand for which a lease has permits
	nearPart     = 8      // a lease takes at most this part of the remaining hits
	second       = int64(1e9)
)

// partitions returns the number of partitions: REDIS_CLUSTER_PARTITIONS as docs/redis.md advises.
func (p *plan) partitions() int {
	if p.Nodes == 1 {
		return 1
	}
	return max(16, 3*p.Nodes)
}

// simulation is the state of a run: replicas and Redis nodes.
type simulation struct {
	plan
	clock
	costs
	random   *rand.Rand
	replicas []*replica
	nodes    []node
	newKeys  float64 // share of hits that need one more command
	counters []counter
	starting int64 // calls before this time are not counted in the result
	tally
}

// counter is the state of a key in Redis, for the one window of a run.
type counter struct {
	charged  int
	admitted int
	held     int // permits of leases
}

// node is a Redis process. It serves one trip at a time, in the order of their arrival.
type node struct {
	freeAt int64
	busy   int64 // nanoseconds
	trips  int
}

// tally is what a run counts.
type tally struct {
	latencies []float64 // microseconds
	calls     int
	fallback  int // calls that the fallback decided
	commands  int
	hits      int // in trips
	trips     int
}

// simulate runs a plan.
func simulate(p plan, c costs) result {
	s := &simulation{plan: p, costs: c, random: rand.New(rand.NewPCG(p.Seed, 1)), nodes: make([]node, p.Nodes), counters: make([]counter, p.Keys)}
	s.newKeys = newKeyShare(p.Rate/float64(p.Replicas*p.Keys), p.Window)
	length := int64(p.Seconds * float64(second))
	s.starting = length / 4
	for range p.Replicas {
		s.replicas = append(s.replicas, newReplica(s))
	}
	s.run(s.starting)
	s.tally = tally{latencies: s.latencies[:0]}
	for i := range s.nodes {
		s.nodes[i].busy, s.nodes[i].trips = 0, 0
	}
	s.run(length)
	return s.result(float64(length-s.starting) / float64(second))
}

// distance returns the time between two calls of a replica.
func (s *simulation) distance() int64 {
	mean := float64(s.Replicas) / s.Rate * float64(second)
	if s.Even {
		return int64(mean)
	}
	return int64(mean * s.random.ExpFloat64())
}

// serve lets a node serve a trip that arrives at a time. It returns the time of the answer.
func (s *simulation) serve(n *node, arrival int64, commands int) int64 {
	trip := s.BusyTrip
	if arrival >= n.freeAt {
		trip = s.WakingTrip
	}
	took := int64((trip + s.Command*float64(commands)) * micro)
	n.freeAt = max(n.freeAt, arrival) + took
	n.busy += took
	n.trips++
	s.trips++
	s.commands += commands
	return n.freeAt
}

// result is what a run shows.
type result struct {
	plan
	Busy       float64 `json:"busy"`         // share of the time in which the busiest node is busy
	Server     float64 `json:"server"`       // share of the cores that a replica uses
	Trips      float64 `json:"trips"`        // of all nodes, in a second
	HitsInTrip float64 `json:"hits_in_trip"` // on average
	Operations float64 `json:"operations"`   // Redis commands for a call
	RedisCPU   float64 `json:"redis_cpu"`    // microseconds for a call that the fallback did not decide
	P50        float64 `json:"p50"`          // microseconds
	P99        float64 `json:"p99"`
	Fallback   float64 `json:"fallback"` // share of calls that the fallback decided
	Over       float64 `json:"over"`     // admitted beyond the limit, of the worst key, as a share of the limit
	Unused     float64 `json:"unused"`   // permits of leases at the end, of the worst key, as a share of the limit
}

func (s *simulation) result(seconds float64) result {
	r := result{plan: s.plan}
	var busy int64
	for _, n := range s.nodes {
		r.Busy = min(max(r.Busy, float64(n.busy)/float64(second)/seconds), 1)
		busy += n.busy
	}
	calls := float64(max(s.calls, 1))
	perReplica := s.Rate / float64(s.Replicas)
	r.Server = perReplica * s.serverMicros() / 1e6 / cores
	r.Trips = float64(s.trips) / seconds
	r.HitsInTrip = float64(s.hits) / float64(max(s.trips, 1))
	r.Operations, r.RedisCPU = float64(s.commands)/calls, float64(busy)/micro/max(calls-float64(s.fallback), 1)
	slices.Sort(s.latencies)
	if n := len(s.latencies); n > 0 {
		r.P50, r.P99 = s.latencies[n/2], s.latencies[n*99/100]
	}
	r.Fallback = float64(s.fallback) / calls
	if s.Limit > 0 {
		for _, c := range s.counters {
			r.Over = max(r.Over, float64(c.admitted-s.Limit)/float64(s.Limit))
			r.Unused = max(r.Unused, float64(c.held)/float64(s.Limit))
		}
	}
	return r
}

// serverMicros returns the CPU time of a replica for a call.
func (s *simulation) serverMicros() float64 {
	all := s.costs.Server
	if s.Lease && len(s.LeasedServer) > 0 {
		all = s.LeasedServer
	}
	return serverMicros(all, s.Rate/float64(s.Replicas))
}
