package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/test/simulate/netmodel"
)

// regionPlan is everything that a run with regions does.
type regionPlan struct {
	seed        uint64
	replicas    int // of each region
	duration    time.Duration
	limits      []*globalLimit
	demands     []demand
	ownMax      int // of a limit of each region, which each call has too, all or none; 0 for none
	denyCache   bool
	refundShare float64 // of the calls that Redis has admitted, which their callers take back

	events       []regionEvent
	disturbances []disturbance
	clockSteps   []clockStep
	losesAnswers bool // orders or their answers can get lost
}

type regionEvent struct {
	at   time.Duration
	text string
	run  func(*world)
}

// disturbance is a time in which a fault can keep a region from its purchases.
type disturbance struct {
	region     int // allRegions for all
	start, end time.Duration
}

const allRegions = -1

// clockStep is a step of the clock of the Redis of a region.
type clockStep struct {
	region int
	at, by time.Duration
}

// demand is callers in a region.
type demand struct {
	region   int
	limit    *globalLimit
	callers  int
	pause    time.Duration // mean time between two calls of a caller
	from, to time.Duration
	mostHits int64 // of a call
}

// globalLimit is a limit of scope global.
type globalLimit struct {
	name, algorithm string
	unit            string
	multiplier      int
	max, burst      int
	reloads         []limitReload
}

// limitReload is a limit from a time on.
type limitReload struct {
	at    time.Duration
	limit globalLimit
}

const endOfRun = time.Hour

// yearly returns a limit of a year.
func yearly(name, algorithm string, maxHits int) *globalLimit {
	return &globalLimit{name: name, algorithm: algorithm, unit: "year", multiplier: 1, max: maxHits}
}

// every3s returns a limit with windows of three seconds.
func every3s(name, algorithm string, maxHits int) *globalLimit {
	return &globalLimit{name: name, algorithm: algorithm, unit: "second", multiplier: 3, max: maxHits}
}

// bucket returns a token bucket with 60 hits per second.
func bucket(burst int) *globalLimit {
	return &globalLimit{name: "bucket", algorithm: "token_bucket", unit: "second", multiplier: 1, max: 60, burst: burst}
}

// period returns the window of the limit in microseconds.
func (l *globalLimit) period() int64 {
	if l.unit == "year" {
		return 365 * 24 * time.Hour.Microseconds()
	}
	return int64(l.multiplier) * time.Second.Microseconds()
}

// inForceAt returns the limit in force at a time.
func (l *globalLimit) inForceAt(t time.Duration) *globalLimit {
	current := l
	for i := range l.reloads {
		if l.reloads[i].at <= t {
			current = &l.reloads[i].limit
		}
	}
	return current
}

// highestBetween returns a limit with the highest maximum and burst from one time to another.
func (l *globalLimit) highestBetween(from, to time.Duration) globalLimit {
	highest := *l.inForceAt(from)
	for _, r := range l.reloads {
		if r.at >= from && r.at <= to {
			highest.max, highest.burst = max(highest.max, r.limit.max), max(highest.burst, r.limit.burst)
		}
	}
	return highest
}

func (l *globalLimit) isTokenBucket() bool   { return l.algorithm == "token_bucket" }
func (l *globalLimit) isSlidingWindow() bool { return l.algorithm == "sliding_window" }

// window returns the length of a window of a region in microseconds.
func (l *globalLimit) window() int64 {
	if !l.isTokenBucket() {
		return l.period()
	}
	return min(int64(l.burst)*l.period()/int64(4*l.max)/1000*1000, 10*time.Second.Microseconds())
}

// windowHits returns the hits of a window of a region.
func (l *globalLimit) windowHits() int64 {
	if l.isTokenBucket() {
		return l.window() * int64(l.max) / l.period()
	}
	return int64(l.max)
}

// floorHits returns the hits that a region can admit in each window without a purchase.
func (l *globalLimit) floorHits() int64 {
	regions := int64(regionCount)
	if l.isSlidingWindow() {
		regions *= 2
	}
	floor := int64(regionFloor*float64(l.windowHits())/float64(regions) + 1e-9)
	if floor == 0 && 2*regions <= l.windowHits() {
		floor = 1
	}
	return floor
}

// pool returns the hits that the global Redis can sell in a window, or at once from a bucket.
func (l *globalLimit) pool() int64 {
	switch {
	case l.isTokenBucket():
		return int64(l.burst) - 2*(l.windowHits()+1)
	case l.isSlidingWindow():
		return int64(l.max) - 2*regionCount*l.floorHits()
	}
	return int64(l.max) - regionCount*l.floorHits()
}

// maxUnused returns the hits of a window that all regions together may have bought and not used.
func (l *globalLimit) maxUnused() int64 {
	if l.isTokenBucket() {
		return l.windowHits()
	}
	return int64(regionWaste * float64(l.max))
}

func (p *regionPlan) addEvent(at time.Duration, run func(*world), format string, args ...any) {
	p.events = append(p.events, regionEvent{min(at, p.duration), fmt.Sprintf(format, args...), run})
}

func (p *regionPlan) sortEvents() {
	slices.SortStableFunc(p.events, func(a, b regionEvent) int { return cmp.Compare(a.at, b.at) })
}

// isDisturbed reports whether a fault can keep a region from its purchases at some time between from and to.
func (p *regionPlan) isDisturbed(region int, from, to time.Duration) bool {
	return slices.ContainsFunc(p.disturbances, func(d disturbance) bool {
		return (d.region == region || d.region == allRegions) && d.start <= to && from <= d.end
	})
}

func (p *regionPlan) disturb(region int, from, to time.Duration) {
	p.disturbances = append(p.disturbances, disturbance{region, from, min(to, p.duration)})
}

// addDemand adds callers of a limit in some regions.
func (p *regionPlan) addDemand(l *globalLimit, callers int, pause, from, to time.Duration, regions ...int) {
	for _, i := range regions {
		p.demands = append(p.demands, demand{region: i, limit: l, callers: callers, pause: pause, from: from, to: to})
	}
}

func (p *regionPlan) print() {
	fmt.Fprintf(output, "seed %d: regions with %d replicas for %v; deny cache %v, limit of the region %d, taken back %v\n", p.seed, p.replicas, p.duration, p.denyCache, p.ownMax, p.refundShare)
	for _, l := range p.limits {
		fmt.Fprintf(output, "limit %s: %d per %d %ss, burst %d, %s\n", l.name, l.max, l.multiplier, l.unit, l.burst, l.algorithm)
	}
	for _, d := range p.demands {
		fmt.Fprintf(output, "region %d: %d callers of %s, pause %v, from %v to %v, at most %d hits\n", d.region, d.callers, d.limit.name, d.pause, d.from, d.to, max(d.mostHits, 1))
	}
	for _, e := range p.events {
		fmt.Fprintf(output, "at %v: %s\n", e.at, e.text)
	}
}

// addCut adds a time in which cut disturbs the network between a region and the global Redis. resets breaks all
// connections at the end, so the held bytes are lost.
func (p *regionPlan) addCut(region int, from, to time.Duration, resets bool, cut func(*netmodel.Link), format string, args ...any) {
	p.losesAnswers = true
	p.disturb(region, from, to)
	eachLink := func(w *world, change func(*netmodel.Link)) {
		for i, s := range w.regions {
			if i == region || region == allRegions {
				for _, l := range s.globalLinks {
					change(l)
				}
			}
		}
	}
	text := fmt.Sprintf(format, args...)
	p.addEvent(from, func(w *world) { eachLink(w, cut) }, "region %d: %s for %v", region, text, to-from)
	p.addEvent(to, func(w *world) {
		if resets {
			eachLink(w, (*netmodel.Link).Reset)
		}
		eachLink(w, (*netmodel.Link).Heal)
	}, "region %d: %s ends", region, text)
}

// dialPause is the further time without purchases after the global Redis has refused connections. go-redis then dials once in
// a second.
const dialPause = 500 * time.Millisecond

func (p *regionPlan) addGlobalRestart(at, down time.Duration, isEmpty bool, lag time.Duration) {
	p.losesAnswers = true
	p.disturb(allRegions, at, at+down+dialPause)
	if !isEmpty {
		p.addEvent(at-lag, func(w *world) { w.global.keepCopy(); w.copyTime = elapsed() }, "the replica of the global Redis gets no more writes")
	}
	p.addEvent(at, func(w *world) { w.restartGlobal(isEmpty) }, "the global Redis starts again (empty %v)", isEmpty)
	p.addEvent(at+down, func(w *world) {
		for _, s := range w.regions {
			for _, l := range s.globalLinks {
				l.Heal()
			}
		}
	}, "the global Redis answers again")
}

// buyerTime is the longest time for which a killed replica keeps others from buying.
const buyerTime = 2 * time.Second

func (p *regionPlan) addKill(region, replica int, at, down time.Duration) {
	p.losesAnswers = true
	p.disturb(region, at, at+max(down, buyerTime))
	p.addEvent(at, func(w *world) {
		s := w.regions[region]
		if r := s.currentReplicas[replica]; r != nil {
			s.currentReplicas[replica] = nil
			r.kill()
		}
	}, "region %d: replica %d is killed", region, replica)
	p.addEvent(at+down, func(w *world) {
		if s := w.regions[region]; s.currentReplicas[replica] == nil {
			s.currentReplicas[replica] = s.startReplica(replica)
		}
	}, "region %d: replica %d starts", region, replica)
}

// addStall adds a stall of the Redis of a region. A stall can keep the answers of a purchase.
func (p *regionPlan) addStall(region int, from, to time.Duration) {
	p.losesAnswers = true
	p.disturb(region, from, to+outageMemory)
	p.addEvent(from, func(w *world) { w.regions[region].redis.stall() }, "region %d: Redis stalls for %v", region, to-from)
	p.addEvent(to, func(w *world) { w.regions[region].redis.resume() }, "region %d: Redis stalls ends", region)
}

// addRegionalRestart adds a restart of the Redis of a region, empty or without the writes of lag.
func (p *regionPlan) addRegionalRestart(region int, at, down time.Duration, isEmpty bool, lag time.Duration) {
	p.losesAnswers = true
	p.disturb(region, at, at+down+outageMemory)
	if !isEmpty {
		p.addEvent(at-lag, func(w *world) { w.regions[region].redis.keepCopy() }, "region %d: the Redis replica gets no more writes", region)
	}
	p.addEvent(at, func(w *world) { w.regions[region].restartRedis(isEmpty) }, "region %d: Redis starts again (empty %v)", region, isEmpty)
	p.addEvent(at+down, func(w *world) { w.regions[region].healNetwork() }, "region %d: Redis answers again", region)
}

func (p *regionPlan) addClockStep(region int, at, step time.Duration) {
	p.disturb(region, at-step.Abs(), at+step.Abs()+outageMemory)
	if at > 0 { // the replicas notice it
		p.clockSteps = append(p.clockSteps, clockStep{region, at, step})
	}
	p.addEvent(at, func(w *world) { w.regions[region].redis.clockStep += step }, "region %d: the clock of Redis steps by %v", region, step)
}

func (p *regionPlan) addClockDrift(region int, drift float64) {
	p.addEvent(0, func(w *world) { w.regions[region].redis.clockDrift = drift }, "region %d: the clock of Redis drifts by %v", region, drift)
}

func (p *regionPlan) addReplicaClockStep(region, replica int, at, step time.Duration) {
	p.addEvent(at, func(w *world) { w.regions[region].clockSteps[replica] += step }, "region %d: the clock of replica %d steps by %v", region, replica, step)
}

func (p *regionPlan) addScriptFlush(at time.Duration) {
	p.addEvent(at, func(w *world) {
		w.global.execute("SCRIPT", "FLUSH")
		for _, s := range w.regions {
			s.redis.execute("SCRIPT", "FLUSH")
		}
	}, "all Redis servers forget their scripts")
}

// reloadTime is the time from the reload in the first region to the reload in the last region.
const reloadTime = 200 * time.Millisecond

// addReload adds a reload with another maximum and burst of a limit, first in region 0 and last in region 2.
func (p *regionPlan) addReload(l *globalLimit, at time.Duration, maxHits, burst int) {
	p.disturb(allRegions, at, at+reloadTime)
	newLimit := *l
	newLimit.max, newLimit.burst, newLimit.reloads = maxHits, burst, nil
	l.reloads = append(l.reloads, limitReload{at, newLimit})
	for i := range regionCount {
		p.addEvent(at+time.Duration(i)*reloadTime/(regionCount-1), func(w *world) {
			w.regions[i].setLimits(func(other *globalLimit) *globalLimit { return other.inForceAt(elapsed()) })
		}, "region %d: %s is loaded with %d hits, burst %d", i, l.name, maxHits, burst)
	}
}

func (p *regionPlan) addReset(region int, l *globalLimit, at time.Duration) {
	p.disturb(allRegions, at, at+buyerTime)
	p.addEvent(at, func(w *world) { w.regions[region].reset(l) }, "region %d: %s is reset", region, l.name)
}

// drawRegionPlan draws the plan of a seed.
func drawRegionPlan(seed uint64) *regionPlan {
	r := rand.New(rand.NewPCG(seed, 6000))
	p := &regionPlan{
		seed: seed, replicas: 1 + r.IntN(2), duration: between(r, 5*time.Second, 8*time.Second),
		denyCache: r.IntN(2) == 0, refundShare: pick(r, 0, 0, 0, 0.2), ownMax: pick(r, 0, 0, 0, 150),
	}
	all := []*globalLimit{
		yearly("year", "fixed_window", pick(r, 60, 300, 900)), yearly("slidingyear", "sliding_window", pick(r, 60, 300, 900)),
		every3s("fixed", "fixed_window", pick(r, 30, 150, 240)), every3s("sliding", "sliding_window", pick(r, 60, 150, 240)),
		bucket(pick(r, 90, 150)),
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p.limits = all[:2]
	for _, l := range p.limits {
		for i := range regionCount {
			d := demand{region: i, limit: l, callers: p.replicas * (1 + r.IntN(2)), pause: between(r, 25*time.Millisecond, 90*time.Millisecond), to: p.duration, mostHits: pick[int64](r, 1, 1, 1, 4)}
			switch r.IntN(4) {
			case 0:
				d.from = between(r, 0, p.duration)
			case 1:
				d.to = between(r, 0, p.duration)
			}
			p.demands = append(p.demands, d)
		}
	}
	for range r.IntN(5) {
		p.drawFault(r, between(r, 500*time.Millisecond, p.duration-500*time.Millisecond))
	}
	p.sortEvents()
	return p
}

func (p *regionPlan) drawFault(r *rand.Rand, at time.Duration) {
	i := r.IntN(regionCount)
	to := at + between(r, 50*time.Millisecond, 3*time.Second)
	switch r.IntN(14) {
	case 0:
		p.addCut(i, at, to, false, (*netmodel.Link).Cut, "the global Redis is cut off")
	case 1:
		p.addCut(i, at, to, r.IntN(2) == 0, (*netmodel.Link).CutToServer, "orders are held")
	case 2:
		p.addCut(i, at, to, r.IntN(2) == 0, (*netmodel.Link).CutToClient, "answers to orders are held")
	case 3:
		delay := between(r, 20*time.Millisecond, 700*time.Millisecond)
		p.addCut(i, at, to, false, func(l *netmodel.Link) { l.Slow(delay) }, "the global Redis is further away by %v", delay)
	case 4:
		p.addClockStep(i, at, between(r, -20*time.Millisecond, 20*time.Millisecond))
	case 5:
		p.addReplicaClockStep(i, r.IntN(p.replicas), at, between(r, -3*time.Second, 3*time.Second))
	case 6:
		p.addGlobalRestart(at, between(r, 10*time.Millisecond, time.Second), true, 0)
	case 7, 8:
		p.addGlobalRestart(at, between(r, 10*time.Millisecond, time.Second), false, between(r, time.Millisecond, 90*time.Millisecond))
	case 9:
		p.addKill(i, r.IntN(p.replicas), at, between(r, 0, time.Second))
	case 10:
		for range 20 {
			end := at + between(r, 10*time.Millisecond, 90*time.Millisecond)
			p.addStall(i, at, end)
			at = end + between(r, 5*time.Millisecond, 80*time.Millisecond)
		}
	case 11:
		p.addScriptFlush(at)
	case 12:
		if l := p.limits[r.IntN(len(p.limits))]; !l.isTokenBucket() && len(l.reloads) == 0 {
			p.addReload(l, at, pick(r, l.max/2, l.max*2), 0)
		}
	case 13:
		p.addClockDrift(i, pick(r, -0.001, 0.001))
	}
}
