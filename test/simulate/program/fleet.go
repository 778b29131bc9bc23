package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// fleet is all replicas with their Redis and their networks.
type fleet struct {
	plan            *plan
	redis           *redisServer
	links           []*netmodel.Link
	clockSteps      []time.Duration // of the machines of the replicas
	config          *descriptors.Config
	limit           tightLimit // in config
	burst           int        // of the tight limit after the next reload
	currentReplicas []*replica // by number; nil while a replica is not running
	replicas        []*replica // all that ever ran
	records         *records
	region          *simRegion // nil without regions

	lossTimes  []time.Duration // when Redis has lost counters
	pausedTime time.Duration   // time without CPU time
	lastPause  time.Duration   // end of the last time without CPU time

	lastLongPause time.Duration // end of the last time of more than pauseGrace without CPU time

	firstGoroutines int // before the first replica
}

// longAgo is a time long before the run.
const longAgo = time.Duration(math.MinInt64 / 2)

func newFleet(p *plan) *fleet {
	f := &fleet{plan: p, redis: &redisServer{history: history{states: map[string][]counterState{}, own: map[int][]chargedTime{}}}, clockSteps: make([]time.Duration, p.replicas), records: &records{}, lastPause: longAgo, lastLongPause: longAgo, firstGoroutines: runtime.NumGoroutine()}
	f.burst = p.burst
	f.setLimit(p.maxHits, p.leaseWaste)
	f.startReplicas("link", 2)
	return f
}

// startReplicas starts all replicas with their links. stream selects the random numbers of the links.
func (f *fleet) startReplicas(name string, stream uint64) {
	p := f.plan
	random := rand.New(rand.NewPCG(p.seed, stream))
	for i := range p.replicas {
		f.links = append(f.links, netmodel.NewLink(fmt.Sprintf("%s %d", name, i), f.redis.serve, func() time.Duration {
			return p.distance + p.networkDelay + time.Duration(random.Int64N(int64(p.networkDelay)))
		}))
		f.currentReplicas = append(f.currentReplicas, nil)
		f.currentReplicas[i] = f.startReplica(i)
	}
}

// setLimit puts a tight limit with this maximum and lease in force.
func (f *fleet) setLimit(maxHits int, leaseWaste float64) {
	f.limit = newTightLimit(f.plan, maxHits, f.burst, leaseWaste)
	f.config = newConfig(f.plan, maxHits, f.burst, leaseWaste)
	for _, r := range f.replicas {
		if !r.isClosed {
			r.limits.Set(f.config)
		}
	}
}

// heal ends all faults but the steps of clocks.
func (f *fleet) heal() {
	f.redis.resume()
	f.healNetwork()
	f.redis.setMode(resp.Normal)
	for i, r := range f.currentReplicas {
		if r == nil {
			f.currentReplicas[i] = f.startReplica(i)
		}
	}
}

// resetConnections breaks the connections of all replicas.
func (f *fleet) resetConnections() { f.eachLink((*netmodel.Link).Reset) }

// eachLink calls change with the network of each replica.
func (f *fleet) eachLink(change func(*netmodel.Link)) {
	for _, l := range f.links {
		change(l)
	}
}

func (f *fleet) close() {
	for _, r := range f.replicas {
		r.close()
	}
}

// checkRecovery sends a call to each replica, which Redis must decide.
func (f *fleet) checkRecovery() {
	for _, r := range f.currentReplicas {
		f.sendCall(r, callOptions{isAfterRecovery: true})
	}
	if f.plan.holds.slots > 0 {
		time.Sleep(f.plan.holds.hold)
		f.takeAllSlots()
	}
}
