package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/denycache"
	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/backend/lease"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
)

// replica is one process of rls. A restart makes a new replica with the same number.
type replica struct {
	number    int
	name      string
	link      *netmodel.Link
	limits    *descriptors.Store
	meter     *metrics.Metrics
	client    *redis.Limiter
	fallback  *fallback.Limiter
	leases    *lease.Limiter
	service   *service.Service
	clockStep *time.Duration // of the machine
	stopSweep context.CancelFunc
	regions   *region.Limiter // nil without regions
	global    *redis.Limiter  // the global Redis; nil without regions

	lastCallAt      time.Duration // start of the last call
	isClosed        bool
	isKilled        bool // without a return of its permits
	breakerOpenings []time.Duration
	fallbackHits    int // hits that the fallback has decided
	outages         []fallback.Outage
}

// idleProbePause is that of cmd/rls.
const idleProbePause = 10 * time.Second

// startReplica starts a replica, wired as in cmd/rls.
func (f *fleet) startReplica(number int) *replica {
	p := f.plan
	r := &replica{
		number: number, name: fmt.Sprintf("replica %d.%d", number, len(f.replicas)),
		link: f.links[number], clockStep: &f.clockSteps[number], meter: metrics.New(),
	}
	r.limits = &descriptors.Store{Prepare: r.meter.PrepareRules}
	r.limits.Set(f.config)

	ctx, stop := context.WithCancel(context.Background())
	r.stopSweep = stop
	counters := local.New(local.Options{MaxKeys: 100_000})
	go counters.Run(ctx, time.Minute)
	client, err := redis.New(redis.Options{
		Main:               redis.Server{URL: "redis.simulated:6379"},
		PerSecond:          p.perSecondServer(),
		Timeout:            p.timeout,
		AutoTimeout:        p.autoTimeout,
		MaxBatchSize:       p.maxBatch,
		MaxInflightBatches: p.inflight,
		MaxQueueSize:       p.maxQueue,
		WaitReplicas:       p.waitReplicas,
		Observer:           r.meter.Redis(p.redisRoles()...),
		Dial:               r.link.Dial,
	})
	if err != nil {
		panic(err) // the options are valid
	}
	r.client = client
	if p.autoTimeout {
		_ = client.Ping(ctx)
		client.MeasureRoundTrip(ctx) // as cmd/rls does before it serves
	}
	r.fallback = fallback.New(fallback.Options{
		Primary: client, Secondary: counters, Ratio: p.fallbackRatio, Mode: limit.FailLocal,
		Shards: client.Shards(), ShardOf: client.ShardOf, Probe: client.Probe,
		IdleProbePause: idleProbePause, KeepsCounters: client.HasKeptCounters, LastCount: client.TakeLastCount,
		Observer: &fallbackObserver{r.meter.Fallback(), r},
	})
	var shared backend.Layer = r.fallback
	if p.denyCache {
		shared = denycache.New(shared, denycache.Options{SizeBytes: 1 << 16, Observer: r.meter.DenyCache()})
	}
	r.leases = lease.New(lease.Options{
		Next: shared, Source: client,
		IsFailing: func(h *backend.Hit) bool { return !r.fallback.FailingSince(h).IsZero() },
	})
	r.meter.Leases(r.leases.Stats)
	go r.leases.Run(ctx)
	layer := backend.Layer(r.leases)
	observer := service.Observer(f.records)
	if f.region != nil {
		layer, observer = f.region.addLayer(ctx, r), f.region
	}
	r.service = service.New(service.Options{
		Limits: r.limits, Limiter: backend.Scopes{Shared: layer, Instance: backend.Counters{Limiter: counters}}, Now: r.now, AllOrNone: p.allOrNone,
		Observers: []service.Observer{observer, r.meter.Service(), r.meter.RuleObserver(metrics.RuleOptions{NearLimitRatio: 0.8})},
	})
	f.replicas = append(f.replicas, r)
	return r
}

// perSecondServer returns the Redis for limits per second, or nil. It has another address, and is the same
// simulated Redis. The replicas don't know this, so they charge a request in several steps.
func (p *plan) perSecondServer() *redis.Server {
	if !p.perSecondRedis {
		return nil
	}
	return &redis.Server{URL: "redis.simulated:6380"}
}

// redisRoles returns the roles of the Redis servers.
func (p *plan) redisRoles() []redis.Role {
	if p.perSecondRedis {
		return []redis.Role{redis.RoleMain, redis.RolePerSecond}
	}
	return []redis.Role{redis.RoleMain}
}

// now is the clock of the replica's machine.
func (r *replica) now() time.Time { return time.Now().Add(*r.clockStep) }

// close ends the replica in the background, as cmd/rls ends.
func (r *replica) close() {
	if r.isClosed {
		return
	}
	r.isClosed = true
	r.stopSweep()
	go func() {
		r.leases.Close()
		r.closeBackend()
	}()
}

// kill ends the replica with the permits that it holds.
func (r *replica) kill() {
	logf("%s: killed with %d permits", r.name, r.leases.Stats().HeldPermits)
	r.isClosed, r.isKilled = true, true
	r.stopSweep()
	r.closeBackend()
}

func (r *replica) closeBackend() {
	if r.global != nil {
		_ = r.global.Close()
	}
	r.fallback.Close()
	_ = r.client.Close()
}

// fallbackObserver keeps the events of a fallback that the checks need.
type fallbackObserver struct {
	fallback.Observer
	replica *replica
}

func (o *fallbackObserver) StateChanged(c fallback.StateChange) {
	logf("%s: redis down %v, decided here %d", o.replica.name, c.Down, c.Outage.Decisions)
	if !c.Down {
		o.replica.outages = append(o.replica.outages, c.Outage)
	}
	o.Observer.StateChanged(c)
}

func (o *fallbackObserver) BreakerChanged(c fallback.BreakerChange) {
	logf("%s: breaker open %v: %v", o.replica.name, c.Open, c.Err)
	if c.Open {
		o.replica.breakerOpenings = append(o.replica.breakerOpenings, elapsed())
	}
	o.Observer.BreakerChanged(c)
}

func (o *fallbackObserver) BlipEnded(b fallback.Outage) {
	logf("%s: blip ended, decided here %d", o.replica.name, b.Decisions)
	o.replica.outages = append(o.replica.outages, b)
	o.Observer.BlipEnded(b)
}

func (o *fallbackObserver) HitsServed(hits int) {
	o.replica.fallbackHits += hits
	o.Observer.HitsServed(hits)
}

// newConfig returns the limits in force: the tight limit of the plan with this maximum and this
// lease, a limit with holds, a limit per second, and a limit for each call that is never spent.
func newConfig(p *plan, maxHits, burst int, leaseWaste float64) *descriptors.Config {
	fields := ""
	if p.algorithm == "fixed_window" {
		fields = fmt.Sprintf(", charge_denied: %v", p.chargeDenied)
	}
	if burst > 0 {
		fields += fmt.Sprintf(", burst: %d", burst)
	}
	if leaseWaste > 0 {
		fields += fmt.Sprintf(", lease: true, lease_waste: %v", leaseWaste)
	}
	text := fmt.Sprintf(`
domain: d
descriptors:
  - key: tight
    rate_limit: {unit: %s, requests_per_unit: %d, algorithm: %s, on_backend_failure: %s%s}
  - key: call
    rate_limit: {unit: year, requests_per_unit: 1000000, algorithm: %s}
  - key: second
    rate_limit: {unit: second, requests_per_unit: %d}
  - key: slots
    rate_limit: {requests_per_unit: %d, algorithm: concurrency, hold: %v, on_backend_failure: %s}
`, p.unit, maxHits, p.algorithm, p.failureMode, fields, p.callAlgorithm, p.secondMax, max(p.holds.slots, 1), cmp.Or(p.holds.hold, time.Minute), p.failureMode)
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(text)}}, limitsfile.Options{})
	if err != nil {
		panic(err) // the text is valid
	}
	return descriptors.Compile(set)
}
