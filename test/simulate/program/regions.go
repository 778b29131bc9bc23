package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/backend/region"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

const regionCount = 3

// The settings of all regions: the defaults of REGION_FLOOR, REGION_WASTE and REDIS_GLOBAL_TIMEOUT.
const (
	regionFloor   = 0.1
	regionWaste   = 0.25
	globalTimeout = time.Second
)

// roundTrips are the round trips between each region and the global Redis.
var roundTrips = [regionCount]time.Duration{35 * time.Millisecond, 80 * time.Millisecond, 150 * time.Millisecond}

// world is all regions with their global Redis.
type world struct {
	plan            *regionPlan
	regions         [regionCount]*simRegion
	global          *redisServer
	firstGoroutines int

	calls     []*globalCall
	sales     []*sale
	copyTime  time.Duration // when the global Redis has kept a copy
	resets    []resetRecord
	regionals []regionalLoss
}

// simRegion is a region: a fleet with a Redis of its own.
type simRegion struct {
	*fleet
	world       *world
	index       int
	globalLinks []*netmodel.Link // to the global Redis, by replica
	counters    map[counterID][]countState
	lastHits    map[string]backend.Hit // the last hit on each limit
}

// counterID is a counter of a limit in the Redis of a region.
type counterID struct {
	limit       string
	isPurchases bool  // the counter has the bought hits, not the used hits
	start       int64 // of the window, in microseconds since 1970
}

// countState is the count of a counter from a time on.
type countState struct {
	at    time.Duration
	count int64
}

// sale is an order that the global Redis has executed.
type sale struct {
	at          time.Duration
	region      int
	link        string // of the buyer
	limit       string
	start, end  int64 // of the window, in microseconds since 1970
	want, least int64
	unused      int64 // that the region has said it has
	granted     int64
	free        int64         // after the sale
	lostAt      time.Duration // when the global Redis has lost the sale; endless if it has kept the sale
}

// resetRecord is a reset of a counter through a replica.
type resetRecord struct {
	limit       string
	start, end  time.Duration
	othersHeld  int64 // the hits that the other regions had left
	isSucceeded bool
}

// regionalLoss is a loss of data of the Redis of a region.
type regionalLoss struct {
	at     time.Duration
	region int
	used   map[counterID]int64 // the used hits that are lost
}

// globalCall is one call with a hit on a limit of scope global, and its answer.
type globalCall struct {
	id              int
	region          int
	replica         *replica
	limit           *globalLimit
	hits            int64
	isGroup         bool // has a hit on the limit of the region, too
	isAfterRecovery bool
	refundOf        *globalCall
	start, end      time.Duration
	localWindow     int64 // of the replica's clock, which the fallback uses
	err             error
	reportCount     int
	result, own     backend.Result
}

func (c *globalCall) isAdmitted() bool {
	return c.refundOf == nil && c.err == nil && c.result.Err == nil && c.result.Allowed && (!c.isGroup || c.own.Allowed)
}

func (c *globalCall) isAdmittedByRedis() bool { return c.isAdmitted() && !c.result.IsDegraded() }

func newWorld(p *regionPlan) *world {
	w := &world{plan: p, firstGoroutines: runtime.NumGoroutine(), copyTime: longAgo}
	w.global = &redisServer{number: regionCount}
	w.global.recordCommand = w.recordSale
	config := w.newConfig(func(l *globalLimit) *globalLimit { return l })
	for i := range regionCount {
		settings := newNamedPlan(p.duration)
		settings.seed, settings.replicas, settings.denyCache, settings.allOrNone = p.seed, p.replicas, p.denyCache, p.ownMax > 0
		s := &simRegion{
			fleet: &fleet{plan: settings, redis: &redisServer{number: uint32(i)}, clockSteps: make([]time.Duration, p.replicas), records: &records{}, config: config},
			world: w, index: i, counters: map[counterID][]countState{}, lastHits: map[string]backend.Hit{},
		}
		s.region, s.redis.recordCommand = s, s.recordCounters
		w.regions[i] = s
		random := rand.New(rand.NewPCG(p.seed, uint64(100+i)))
		for j := range p.replicas {
			s.globalLinks = append(s.globalLinks, netmodel.NewLink(fmt.Sprintf("global link %d.%d", i, j), w.global.serve, func() time.Duration {
				return roundTrips[i]/2 + time.Duration(random.Int64N(int64(200*time.Microsecond)))
			}))
		}
		s.startReplicas(fmt.Sprintf("link %d.", i), uint64(200+i))
	}
	return w
}

// addLayer adds the layer that divides limits of scope global, as cmd/rls/regions.go does.
func (s *simRegion) addLayer(ctx context.Context, r *replica) backend.Layer {
	global, err := redis.New(redis.Options{Main: redis.Server{URL: "global.simulated:6379"}, Timeout: globalTimeout, Dial: s.globalLinks[r.number].Dial})
	if err != nil {
		panic(err) // the options are valid
	}
	r.name = fmt.Sprintf("region %d, %s", s.index, r.name)
	ledger := redis.Ledger{Limiter: global}
	r.global = global
	r.regions = region.New(region.Options{
		Next: r.leases, Counters: r.client, ServerTime: r.client.ServerTime, Ledger: ledger,
		Regions: limit.Regions{Count: regionCount, Floor: regionFloor, Waste: regionWaste}, Region: regionName(s.index),
		OnTrip: func(err error) {
			if err != nil {
				logf("%s: a purchase failed: %v", r.name, err)
			}
		},
	})
	go r.regions.Run(ctx)
	go func() {
		for pause := time.Duration(0); wait.Sleep(ctx, pause); {
			pause = time.Minute
			if _, err := ledger.CompareRegions(ctx, regionName(s.index), "equal settings"); err != nil {
				pause = time.Second
			}
		}
	}()
	go func() {
		if r.client.Ping(ctx) == nil {
			r.client.MeasureRoundTrip(ctx)
		}
	}()
	return r.regions
}

func regionName(i int) string { return "r" + strconv.Itoa(i) }

// newConfig returns the limits of the plan in force. current returns a limit as it is now.
func (w *world) newConfig(current func(*globalLimit) *globalLimit) *descriptors.Config {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: d\ndescriptors:\n- key: own\n  rate_limit: {unit: year, requests_per_unit: %d}\n", max(w.plan.ownMax, 1))
	for _, l := range w.plan.limits {
		l = current(l)
		fmt.Fprintf(&b, "- key: %s\n  rate_limit: {unit: %s, unit_multiplier: %d, requests_per_unit: %d, algorithm: %s, scope: global", l.name, l.unit, l.multiplier, l.max, l.algorithm)
		if l.burst > 0 {
			fmt.Fprintf(&b, ", burst: %d", l.burst)
		}
		b.WriteString("}\n")
	}
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(b.String())}}, limitsfile.Options{HasGlobalRedis: true})
	if err != nil {
		panic(err) // the text is valid
	}
	return descriptors.Compile(set)
}

// setLimits puts the limits of the plan in force in a region.
func (s *simRegion) setLimits(current func(*globalLimit) *globalLimit) {
	s.config = s.world.newConfig(current)
	for _, r := range s.replicas {
		if !r.isClosed {
			r.limits.Set(s.config)
		}
	}
}

// recordCounters records the counters of limits of scope global that a command may have changed.
func (s *simRegion) recordCounters(at time.Duration, args []string, _ []byte) {
	if args[0] == "MODEL" || args[0] == "GET" || args[0] == "MGET" {
		return
	}
	for _, name := range args[1:] {
		if id, ok := parseCounter(name); ok {
			s.recordCounter(at, id, name)
		}
	}
}

func (s *simRegion) recordCounter(at time.Duration, id counterID, name string) {
	count, _ := strconv.ParseInt(s.redis.valueOf(startTime.Add(at), name), 10, 64)
	states := s.counters[id]
	if len(states) == 0 || states[len(states)-1].count != count {
		s.counters[id] = append(states, countState{at, count})
	}
}

// parseCounter returns the counter of scope global that has this name in the Redis of a region.
func parseCounter(name string) (id counterID, ok bool) {
	if len(name) > 100 {
		return id, false
	}
	name, window, hasWindow := strings.Cut(name, "@")
	start, err := strconv.ParseInt(window, 10, 64)
	tag, key, hasKey := strings.Cut(strings.TrimPrefix(name, "v2:"), ":")
	if !hasWindow || !hasKey || err != nil || !strings.Contains(tag, "g") {
		return id, false
	}
	if start *= 1000; start < 1e14 { // seconds
		start *= 1000
	}
	return counterID{limitOfKey(key), strings.HasSuffix(tag, "p"), start}, true
}

// limitOfKey returns the name of the limit of a key such as d|name=a.
func limitOfKey(key string) string {
	_, entry, _ := strings.Cut(key, "|")
	name, _, _ := strings.Cut(entry, "=")
	return name
}

// countAt returns the count of a counter at a time.
func (s *simRegion) countAt(id counterID, at time.Duration) (count int64) {
	for _, state := range slices.Backward(s.counters[id]) {
		if state.at <= at {
			return state.count
		}
	}
	return 0
}

// storedHits returns the bought hits that the region has stored for a window until a time, in all counters that its Redis
// has had.
func (s *simRegion) storedHits(limit string, start int64, until time.Duration) (n int64) {
	last := int64(0)
	for _, state := range s.counters[counterID{limit, true, start}] {
		if state.at > until {
			break
		}
		n += max(state.count-last, 0)
		last = state.count
	}
	return n
}

// restartRedis ends the Redis of the region, and starts it empty or with the kept copy.
func (s *simRegion) restartRedis(isEmpty bool) {
	s.crashRedis(isEmpty)
	now, loss := elapsed(), regionalLoss{at: elapsed(), region: s.index, used: map[counterID]int64{}}
	kept := map[counterID]string{}
	s.redis.eachCounter(func(name, _ string, _ bool) {
		if id, ok := parseCounter(name); ok {
			kept[id] = name
		}
	})
	for id, states := range s.counters {
		before := states[len(states)-1].count
		if name := kept[id]; name != "" {
			s.recordCounter(now, id, name)
		} else {
			s.counters[id] = append(states, countState{now, 0})
		}
		if !id.isPurchases {
			loss.used[id] = before - s.countAt(id, now)
		}
	}
	s.world.regionals = append(s.world.regionals, loss)
}

// recordSale records an order.
func (w *world) recordSale(at time.Duration, args []string, reply []byte) {
	if args[0] != "EVAL" || args[2] != "4" {
		return
	}
	numbers := strings.Fields(strings.ReplaceAll(string(reply), ":", ""))
	if len(numbers) != 3 {
		return // a failure
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	_, key, _ := strings.Cut(strings.TrimPrefix(args[3], "v2:"), ":")
	o := args[7:]
	w.sales = append(w.sales, &sale{
		at: at, lostAt: endless, region: int(o[0][1] - '0'), link: w.global.lastLink, limit: limitOfKey(key), start: number(o[7]), end: number(o[8]),
		want: number(o[3]), least: number(o[4]), unused: number(o[5]), granted: number(numbers[1]), free: number(numbers[2]),
	})
}

// restartGlobal ends the global Redis, and starts it empty or with the kept copy.
func (w *world) restartGlobal(isEmpty bool) {
	if isEmpty {
		w.copyTime = longAgo
	}
	for _, s := range w.sales {
		if s.at > w.copyTime {
			s.lostAt = min(s.lostAt, elapsed())
		}
	}
	for _, r := range w.regions {
		for _, l := range r.globalLinks {
			l.Refuse()
			l.Reset()
		}
	}
	w.global.restart(isEmpty)
}

// CallAnswered implements service.Observer.
func (s *simRegion) CallAnswered(ctx context.Context, c *service.Call) {
	r := ctx.Value(recordKey{}).(*globalCall)
	r.reportCount++
	for i := range c.DecisionCount() {
		d := c.Decision(i)
		if d.Descriptor == 1 {
			r.own = d.Result
			continue
		}
		r.result = d.Result
		s.lastHits[r.limit.name] = backend.Hit{Key: bytes.Clone(d.Key), Limit: d.Hit.Limit}
	}
}

// send sends a call to a replica.
func (s *simRegion) send(r *replica, c *globalCall) *globalCall {
	w := s.world
	c.id, c.region, c.replica = len(w.calls), s.index, r
	w.calls = append(w.calls, c)
	request := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitv3.RateLimitDescriptor{newDescriptor(c.limit.name, "a", uint64(c.hits), c.refundOf != nil)}}
	if c.isGroup {
		request.Descriptors = append(request.Descriptors, newDescriptor("own", "a", 1, false))
	}
	c.start, c.localWindow = elapsed(), r.now().UnixMicro()/c.limit.period()
	response, err := r.service.ShouldRateLimit(context.WithValue(context.Background(), recordKey{}, c), request)
	c.end, c.err = elapsed(), err
	logf("call %d of %d hits on %s to %s took %v: %v %v; %s, window %d", c.id, c.hits, c.limit.name, r.name, c.end-c.start, response.GetOverallCode(), err, resultText(c.result), c.result.WindowStart/1000)
	return c
}

// reset resets the counter of a limit through a replica, as the admin API does.
func (s *simRegion) reset(l *globalLimit) {
	r, h := s.currentReplicas[0], s.lastHits[l.name]
	h.N = -limit.MaxHits
	record := resetRecord{limit: l.name, start: elapsed()}
	results := make([]backend.Result, 1)
	r.regions.Take(context.Background(), r.now(), []backend.Hit{h}, results)
	record.end, record.isSucceeded = elapsed(), results[0].Err == nil
	for _, other := range s.replicas {
		if other != r {
			other.regions.Forget(&h) // as the other replicas do when they hear of the reset
		}
	}
	for _, other := range s.world.regions {
		if other != s {
			for id := range other.counters {
				if id.limit == l.name && !id.isPurchases {
					record.othersHeld += other.left(l, id.start, record.start)
				}
			}
		}
	}
	s.world.resets = append(s.world.resets, record)
}

// left returns what the region has left of a window at a time.
func (s *simRegion) left(l *globalLimit, start int64, at time.Duration) int64 {
	return l.inForceAt(at).floorHits() + s.countAt(counterID{l.name, true, start}, at) - s.countAt(counterID{l.name, false, start}, at)
}

// startCallers starts the callers of all demands.
func (w *world) startCallers() *sync.WaitGroup {
	var callers sync.WaitGroup
	stream := uint64(1000)
	for _, d := range w.plan.demands {
		for i := range d.callers {
			random := rand.New(rand.NewPCG(w.plan.seed, stream))
			stream++
			callers.Go(func() { w.runCaller(d, i, random) })
		}
	}
	return &callers
}

func (w *world) runCaller(d demand, number int, random *rand.Rand) {
	s := w.regions[d.region]
	sleepUntil(d.from)
	for elapsed() < min(d.to, w.plan.duration) {
		time.Sleep(time.Duration(random.Int64N(int64(2 * d.pause))))
		r := s.currentReplicas[number%w.plan.replicas]
		if r == nil {
			continue
		}
		call := s.send(r, &globalCall{limit: d.limit, hits: 1 + random.Int64N(max(d.mostHits, 1)), isGroup: w.plan.ownMax > 0})
		if w.plan.refundShare > 0 && call.isAdmittedByRedis() && random.Float64() < w.plan.refundShare {
			time.Sleep(time.Duration(random.Int64N(int64(2 * d.pause))))
			if r := s.currentReplicas[random.IntN(w.plan.replicas)]; r != nil {
				s.send(r, &globalCall{limit: d.limit, hits: call.hits, refundOf: call})
			}
		}
	}
}

// heal ends all faults but those of clocks.
func (w *world) heal() {
	w.global.resume()
	w.global.setMode(resp.Normal)
	for _, s := range w.regions {
		s.fleet.heal()
		for _, l := range s.globalLinks {
			l.Heal()
		}
	}
}

// simulateRegions runs a plan with regions, and returns the broken promises.
func simulateRegions(p *regionPlan) []string {
	w := newWorld(p)
	callers := w.startCallers()
	for _, e := range p.events {
		sleepUntil(e.at)
		logf("%s", e.text)
		e.run(w)
	}
	sleepUntil(p.duration)
	callers.Wait()
	w.heal()
	logf("faults ended")
	time.Sleep(settleTime)
	for _, s := range w.regions {
		for _, r := range s.currentReplicas {
			for _, l := range p.limits {
				s.send(r, &globalCall{limit: l, hits: 1, isAfterRecovery: true})
			}
		}
	}
	time.Sleep(time.Second)
	c := newRegionChecks(w)
	for _, s := range w.regions {
		s.fleet.close()
	}
	time.Sleep(settleTime)
	if n := runtime.NumGoroutine(); n > w.firstGoroutines {
		c.addProblem("goroutines: got %d after the end, want %d", n, w.firstGoroutines)
	}
	return c.problems
}
