package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// regionChecks collects the broken promises of a run with regions. It computes floors and pools without code of rls.
type regionChecks struct {
	*world
	problems []string
}

func newRegionChecks(w *world) *regionChecks {
	c := &regionChecks{world: w}
	c.checkAnswers()
	for _, l := range w.plan.limits {
		switch {
		case l.isTokenBucket():
			c.checkTokenBucket(l)
		case l.isSlidingWindow():
			c.checkSlidingWindows(l)
		default:
			c.checkFixedWindows(l)
		}
		c.checkStocksOfRegions(l)
		c.checkShareOfFallback(l)
		c.checkUnusedHits(l)
		c.checkDenials(l)
		c.checkSoldHits(l)
	}
	c.checkOneBuyerAtATime()
	c.checkTimesToLive()
	return c
}

func (c *regionChecks) addProblem(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// checkAnswers checks that each call is answered in time and once, and that Redis decides again after the faults. A call
// asks Redis a second time if its region has bought hits meanwhile.
func (c *regionChecks) checkAnswers() {
	for _, r := range c.calls {
		if took, most := r.end-r.start, 2*c.regions[r.region].plan.timeout+computeTime; took > most {
			c.addProblem("call %d: took %v, want at most %v", r.id, took, most)
		}
		if r.err != nil || r.reportCount != 1 {
			c.addProblem("call %d: failed with %v, and was reported %d times", r.id, r.err, r.reportCount)
		}
		if r.isAfterRecovery && r.result.IsDegraded() {
			c.addProblem("call %d: decided without Redis after the recovery", r.id)
		}
		if r.result.IsDegraded() && !c.plan.isDisturbed(r.region, r.start, r.end) && !r.replica.isKilled {
			c.addProblem("call %d: decided without Redis (%s) without a fault", r.id, r.result.Reason)
		}
	}
}

// admittedHitsByWindow returns the hits of the calls on l that Redis has admitted, by window.
func (c *regionChecks) admittedHitsByWindow(l *globalLimit, isIncluded func(*globalCall) bool) map[int64]int64 {
	hits := map[int64]int64{}
	for _, r := range c.calls {
		if r.limit == l && r.isAdmittedByRedis() && isIncluded(r) {
			hits[r.result.WindowStart] += r.hits
		}
	}
	return hits
}

// isRefundOf reports whether the call takes back hits of l.
func (c *globalCall) isRefundOf(l *globalLimit) bool {
	return c.limit == l && c.refundOf != nil && c.err == nil && c.result.Err == nil
}

// hitsBeyondLimit returns the hits that regions can admit beyond the limit in a window: those that the global Redis has sold and
// lost, those that callers took back, and those that the Redis of a region has lost. A Redis that is empty gives the region
// its floor again.
func (c *regionChecks) hitsBeyondLimit(l *globalLimit, start int64) (n int64) {
	for _, s := range c.sales {
		if s.limit == l.name && (s.start == start || l.isTokenBucket()) && s.lostAt != endless {
			n += s.granted
		}
	}
	for _, r := range c.calls {
		if r.isRefundOf(l) && (r.result.WindowStart == start || l.isTokenBucket() || r.result.IsDegraded()) {
			n += r.hits
		}
	}
	for _, loss := range c.regionals {
		for id, used := range loss.used {
			if id.limit == l.name && (id.start == start || l.isTokenBucket()) {
				n += min(used, l.inForceAt(loss.at).floorHits())
			}
		}
	}
	for _, step := range c.plan.clockSteps {
		n += c.hitsCountedAgain(l, step, start)
	}
	return n
}

// clockMemory is the time for which a replica has an old time of its Redis.
const clockMemory = 2200 * time.Millisecond

// hitsCountedAgain returns the hits of a region that can count again after a step of the clock of its Redis. Until the replicas
// notice the step, the Redis forgets the counters of windows too early.
func (c *regionChecks) hitsCountedAgain(l *globalLimit, step clockStep, start int64) (n int64) {
	s := c.regions[step.region]
	for id := range s.counters {
		end := timeOf(id.start + l.window())
		isNear := end >= step.at-step.by.Abs() && end <= step.at+step.by.Abs()+clockMemory
		if id.limit == l.name && !id.isPurchases && (id.start == start || l.isTokenBucket()) && isNear {
			n += l.floorHits() + s.storedHits(l.name, id.start, endless)
		}
	}
	return n
}

// timeOf returns a time in microseconds since 1970 as a time since the start of the program.
func timeOf(micros int64) time.Duration { return time.UnixMicro(micros).Sub(startTime) }

// maxClockStep is the most by which the clock of a Redis server can be wrong in a plan.
const maxClockStep = 3500 * time.Millisecond

// checkFixedWindows checks that regions admit at most the limit in each window by their clocks.
func (c *regionChecks) checkFixedWindows(l *globalLimit) {
	resetTime := endless
	for _, reset := range c.resets {
		if reset.limit == l.name && reset.isSucceeded {
			resetTime = reset.start
			after := c.admittedHitsByWindow(l, func(r *globalCall) bool { return r.start >= reset.end })
			for start, n := range after {
				if most := int64(l.max) + reset.othersHeld + c.hitsBeyondLimit(l, start); n > most {
					c.addProblem("%s after the reset: admitted %d hits, want at most %d", l.name, n, most)
				}
			}
		}
	}
	for start, n := range c.admittedHitsByWindow(l, func(r *globalCall) bool { return r.end <= resetTime }) {
		highest := l.highestBetween(timeOf(start)-maxClockStep, timeOf(start+l.period())+maxClockStep)
		if most := int64(highest.max) + c.hitsBeyondLimit(l, start); n > most {
			c.addProblem("%s, window at %v: admitted %d hits, want at most %d", l.name, timeOf(start).Round(time.Millisecond), n, most)
		}
	}
}

// maxClockDifference returns the difference of the clocks of all Redis servers, plus the longest call.
func (c *regionChecks) maxClockDifference() time.Duration {
	now := time.Now()
	clocks := []time.Duration{c.global.timeAt(now).Sub(now)}
	for _, s := range c.regions {
		clocks = append(clocks, s.redis.timeAt(now).Sub(now))
	}
	spread := slices.Max(clocks) - slices.Min(clocks)
	longest := time.Duration(0)
	for _, r := range c.calls {
		if !r.result.IsDegraded() {
			longest = max(longest, r.end-r.start)
		}
	}
	return spread + longest
}

// admittedCalls returns the calls on l that Redis has admitted, in the order of their answers.
func (c *regionChecks) admittedCalls(l *globalLimit) (admitted []*globalCall) {
	for _, r := range c.calls {
		if r.limit == l && r.isAdmittedByRedis() {
			admitted = append(admitted, r)
		}
	}
	slices.SortFunc(admitted, func(a, b *globalCall) int { return cmp.Compare(a.end, b.end) })
	return admitted
}

// checkSlidingWindows checks that regions admit at most the limit in each sliding window.
func (c *regionChecks) checkSlidingWindows(l *globalLimit) {
	spread, period := c.maxClockDifference(), time.Duration(l.period())*time.Microsecond
	inWindow := map[int64]int64{}
	for _, r := range c.admittedCalls(l) {
		start := r.result.WindowStart
		inWindow[start] += r.hits
		covered := min(max(1-float64(r.end-timeOf(start)+spread)/float64(period), 0), 1)
		before := inWindow[start-l.period()]
		weight := inWindow[start] + int64(math.Ceil(float64(before)*covered-1e-6))
		highest := l.highestBetween(timeOf(start-l.period())-maxClockStep, r.end)
		if most := int64(highest.max) + c.hitsBeyondLimit(l, start) + c.hitsBeyondLimit(l, start-l.period()); weight > most {
			c.addProblem("%s at %v: %d hits count in the sliding window, want at most %d", l.name, r.end, weight, most)
			return
		}
	}
}

// checkTokenBucket checks that regions admit at most the burst and the refill in each time.
func (c *regionChecks) checkTokenBucket(l *globalLimit) {
	rate := float64(l.max) / float64(l.period()) * 1e6 // hits in a second
	most := float64(l.highestBetween(longAgo, endOfRun).burst) + float64(c.hitsBeyondLimit(l, 0)) + rate*c.maxClockDifference().Seconds() + 1
	level, last := 0.0, time.Duration(0)
	for _, r := range c.admittedCalls(l) {
		level = max(level-rate*(r.end-last).Seconds(), 0) + float64(r.hits)
		if last = r.end; level > most {
			c.addProblem("%s at %v: admitted %.0f hits more than the refill, want at most %.0f", l.name, r.end, level, most)
			return
		}
	}
}

// checkStocksOfRegions checks the stock of each region in each window: the region has stored no hits that it has not bought, and all
// that it has bought if no answer was lost. It has admitted at most its floor and its stock.
func (c *regionChecks) checkStocksOfRegions(l *globalLimit) {
	type stockID struct {
		region int
		start  int64
	}
	granted, admitted, refunds := map[stockID]int64{}, map[stockID]int64{}, map[stockID]int64{}
	late := map[stockID]int64{} // granted so late that the window ends before the answer comes
	for _, s := range c.sales {
		if s.limit != l.name {
			continue
		}
		id := stockID{s.region, s.start}
		granted[id] += s.granted
		if s.at > timeOf(s.end)-roundTrips[s.region]-100*time.Millisecond {
			late[id] += s.granted
		}
	}
	for _, r := range c.calls {
		if id := (stockID{r.region, r.result.WindowStart}); r.isRefundOf(l) {
			refunds[id] += r.hits
		}
	}
	for id, n := range granted {
		stored := c.regions[id.region].storedHits(l.name, id.start, endless)
		isKept := !c.plan.losesAnswers && len(l.reloads) == 0 && len(c.resets) == 0
		if stored > n || stored < n-late[id] && isKept {
			c.addProblem("%s, region %d, window at %v: stored %d bought hits, but has bought %d", l.name, id.region, timeOf(id.start).Round(time.Millisecond), stored, n)
		}
	}
	for _, r := range c.admittedCalls(l) {
		id := stockID{r.region, r.result.WindowStart}
		admitted[id] += r.hits
		highest := l.highestBetween(timeOf(id.start)-maxClockStep, timeOf(id.start+l.window())+maxClockStep)
		stored := c.regions[id.region].storedHits(l.name, id.start, r.end)
		most := highest.floorHits() + stored + refunds[id]
		for _, loss := range c.regionals {
			if loss.region == id.region {
				most += min(loss.used[counterID{l.name, false, id.start}], highest.floorHits())
			}
		}
		for _, step := range c.plan.clockSteps {
			if step.region == id.region {
				most += c.hitsCountedAgain(l, step, id.start)
			}
		}
		if admitted[id] > most && len(c.resets) == 0 {
			c.addProblem("%s, region %d at %v, window at %v: admitted %d hits, want at most the floor and %d bought hits, together %d", l.name, id.region, r.end, timeOf(id.start).Round(time.Millisecond), admitted[id], stored, most)
			return
		}
	}
}

// checkShareOfFallback checks that a replica without Redis admits at most its share of what its region has had.
func (c *regionChecks) checkShareOfFallback(l *globalLimit) {
	type id struct {
		replica *replica
		window  int64
	}
	admitted := map[id]int64{}
	for _, r := range c.calls {
		if r.limit == l && r.isAdmitted() && r.result.IsDegraded() {
			window := r.localWindow
			if l.isTokenBucket() {
				window = r.replica.now().UnixMicro() / l.window()
			}
			admitted[id{r.replica, window}] += r.hits
		}
	}
	for id, n := range admitted {
		highest := l.highestBetween(longAgo, endOfRun)
		held, window := int64(0), highest.floorHits()
		for counter, states := range c.regionOfReplica(id.replica).counters {
			if counter.limit == l.name && counter.isPurchases {
				for _, s := range states {
					held = max(held, s.count)
				}
			}
		}
		if most := id.replica.shareOf(held+window) + 1; n > most && !l.isTokenBucket() {
			c.addProblem("%s: %s admitted %d hits without Redis in a window, want at most %d", l.name, id.replica.name, n, most)
		}
	}
}

// shareOf returns the share of hits that the fallback of a replica admits.
func (r *replica) shareOf(hits int64) int64 {
	return int64(newNamedPlan(0).fallbackRatio * float64(hits))
}

func (c *regionChecks) regionOfReplica(r *replica) *simRegion {
	for _, s := range c.regions {
		if slices.Contains(s.replicas, r) {
			return s
		}
	}
	return nil
}

// checkUnusedHits checks that after each sale, the hits that the region has bought and not used are at most the waste. A call with
// many hits may need more.
func (c *regionChecks) checkUnusedHits(l *globalLimit) {
	for _, s := range c.sales {
		if s.limit != l.name || s.granted == 0 {
			continue
		}
		r := c.regions[s.region]
		unusedAt := func(at time.Duration) int64 { // the replica has looked some time before the sale
			stored := r.countAt(counterID{l.name, true, s.start}, at)
			return max(stored-max(r.countAt(counterID{l.name, false, s.start}, at)-l.inForceAt(at).floorHits(), 0), 0)
		}
		unused := s.granted + min(unusedAt(s.at), unusedAt(s.at-roundTrips[s.region]/2-2*time.Millisecond))
		highest := l.highestBetween(longAgo, endOfRun)
		if most := highest.maxUnused() + s.least + 1; unused > most {
			c.addProblem("%s at %v, window at %v: %d hits are bought and not used, want at most %d", l.name, s.at, timeOf(s.start).Round(time.Millisecond), unused, most)
			return
		}
	}
}

// The bounds of the time for which a region can deny hits.
const (
	stockDelay = 40 * time.Millisecond   // in which a replica learns what another replica has bought
	buyDelay   = 1050 * time.Millisecond // in which a region orders hits, without the round trip
	rateMemory = 4 * time.Second         // in which the global Redis forgets the demand of a region

	lateArrival = 5 * time.Millisecond    // the difference of two round trips
	dialTime    = 1500 * time.Millisecond // in which a replica opens its connections to the global Redis
)

// checkDenials checks that a region denies a hit only if its stock and its floor are used up. While the global Redis has hits, the
// region must order, and gets some of them unless other regions need them. Faults can keep a region from its purchases.
func (c *regionChecks) checkDenials(l *globalLimit) {
	var denials [regionCount][]time.Duration
	lastOf := map[*replica]*globalCall{}
	for _, r := range c.calls {
		if r.limit != l || r.refundOf != nil || r.err != nil || r.result.Err != nil || r.isAfterRecovery {
			continue
		}
		before := lastOf[r.replica]
		lastOf[r.replica] = r
		if r.result.Allowed || r.result.IsDegraded() || r.isGroup && !r.own.Allowed {
			continue
		}
		denials[r.region] = append(denials[r.region], r.start)
		// A replica looks for bought hits when it knows that its region has few hits left.
		knowsOfShortage := before != nil && !before.result.Allowed && before.result.WindowStart == r.result.WindowStart && before.end < r.start-stockDelay/2
		if knowsOfShortage && c.stockHadRoom(l, r) {
			c.addProblem("call %d on %s in region %d at %v: denied by %s, though the region had room", r.id, l.name, r.region, r.start, r.result.Source)
			return
		}
		from := r.start - buyDelay - 2*roundTrips[r.region]
		if l.isTokenBucket() { // an order can come too late for its window
			from -= time.Duration(l.window()) * time.Microsecond
		}
		isShortSinceFrom := slices.ContainsFunc(denials[r.region], func(at time.Duration) bool { return at <= from && at >= from-300*time.Millisecond })
		if !isShortSinceFrom || c.plan.isDisturbed(r.region, from, r.end) || !c.hadEnoughFreeHits(l, r, from) {
			continue
		}
		hasOrdered, hasBought := false, false
		for _, s := range c.sales {
			if s.limit == l.name && s.region == r.region && s.at >= from && s.at <= r.end {
				hasOrdered, hasBought = true, hasBought || s.granted > 0
			}
		}
		switch {
		case !hasOrdered:
			c.addProblem("call %d on %s in region %d at %v: denied, and the region has not tried to buy", r.id, l.name, r.region, r.start)
			return
		case !hasBought && !c.otherRegionsHadDemand(l, r.region, from, r.end):
			c.addProblem("call %d on %s in region %d at %v: denied, though hits are free and no other region needs them", r.id, l.name, r.region, r.start)
			return
		}
	}
}

// checkSoldHits checks that a bucket sells no more than its pool and the refill, and that a region whose hits no other region needs
// gets all that it wants, up to the waste.
func (c *regionChecks) checkSoldHits(l *globalLimit) {
	level, last := 0.0, time.Duration(0)
	refill := float64(l.windowHits()-regionCount*l.floorHits()) / float64(l.window()) * 1e6 // in a second
	for _, s := range c.sales {
		if s.limit == l.name && l.isTokenBucket() && s.lostAt == endless {
			level = max(level-refill*(s.at-last).Seconds(), 0) + float64(s.granted)
			if last = s.at; level > float64(l.pool())+1 {
				c.addProblem("%s at %v: the bucket has sold %.1f hits more than the refill, want at most %d", l.name, s.at, level, l.pool())
				return
			}
		}
		if s.limit != l.name || c.plan.isDisturbed(s.region, s.at-buyerTime, s.at) || c.otherRegionsHadDemand(l, s.region, s.at, s.at) {
			continue
		}
		waste := max(l.inForceAt(s.at).maxUnused()-s.unused, s.least, 1)
		if least := min(s.want, s.granted+s.free, waste) - 1; s.granted < least { // the script rounds
			c.addProblem("%s, region %d at %v: bought %d hits, want at least %d, as no other region needs them", s.limit, s.region, s.at, s.granted, least)
			return
		}
	}
}

// stockHadRoom reports whether the stock of the region had room for the call, without what it has bought in the last stockDelay.
func (c *regionChecks) stockHadRoom(l *globalLimit, r *globalCall) bool {
	s, start := c.regions[r.region], r.result.WindowStart
	from := r.start - stockDelay
	if r.result.Source != backend.SourceRedis || c.plan.isDisturbed(r.region, from-outageMemory, r.end) || timeOf(start) > from {
		return false
	}
	room := l.inForceAt(r.start).floorHits() + s.countAt(counterID{l.name, true, start}, from)
	used := counterID{l.name, false, start}
	mostUsed := s.countAt(used, r.start)
	for _, state := range s.counters[used] {
		if state.at >= r.start && state.at <= r.end {
			mostUsed = max(mostUsed, state.count)
		}
	}
	return room-mostUsed >= r.hits
}

// hadEnoughFreeHits reports whether the global Redis had enough hits for the call all the time since from.
func (c *regionChecks) hadEnoughFreeHits(l *globalLimit, r *globalCall, from time.Duration) bool {
	start := r.result.WindowStart
	if r.result.Source != backend.SourceRedis { // the deny cache sets no window
		now := c.regions[r.region].redis.timeAt(startTime.Add(r.start)).UnixMicro()
		start = now - now%l.window()
	}
	if !l.isTokenBucket() && timeOf(start) > from {
		return false
	}
	times := []time.Duration{from, r.start}
	for _, s := range c.sales {
		if s.limit == l.name && s.at >= from && s.at <= r.end {
			times = append(times, s.at)
		}
	}
	return !slices.ContainsFunc(times, func(at time.Duration) bool { return c.freeHitsAt(l, start, at) < r.hits })
}

// freeHitsAt returns the hits that the global Redis can sell at a time.
func (c *regionChecks) freeHitsAt(l *globalLimit, start int64, at time.Duration) int64 {
	current := l.inForceAt(at)
	if l.isTokenBucket() {
		level, last := float64(current.pool()), time.Duration(0)
		rate := float64(current.windowHits()-regionCount*current.floorHits()) / float64(current.window()) * 1e6
		for _, s := range c.sales {
			if s.limit == l.name && s.at <= at {
				level = min(level+rate*(s.at-last).Seconds(), float64(current.pool())) - float64(s.granted)
				last = s.at
			}
		}
		return int64(min(level+rate*(at-last).Seconds(), float64(current.pool())))
	}
	var sold, soldBefore, soldAfter int64
	for _, s := range c.sales {
		switch {
		case s.at > at || s.lostAt <= at || s.limit != l.name:
		case s.start == start:
			sold += s.granted
		case s.start == start-l.period():
			soldBefore += s.granted
		case s.start == start+l.period():
			soldAfter += s.granted
		}
	}
	free := current.pool() - sold
	if l.isSlidingWindow() {
		covered := min(max(float64(timeOf(start+l.period())-at)/float64(l.period()*1000), 0), 1)
		free -= max(int64(math.Ceil(float64(soldBefore)*covered)), soldAfter)
	}
	return free
}

// otherRegionsHadDemand reports whether the global Redis may keep hits for another region at some time between from and to.
func (c *regionChecks) otherRegionsHadDemand(l *globalLimit, region int, from, to time.Duration) bool {
	return slices.ContainsFunc(c.calls, func(other *globalCall) bool {
		return other.limit == l && other.region != region && other.end >= from-rateMemory && other.start <= to
	})
}

// checkOneBuyerAtATime checks that in each region one replica at a time buys hits of a counter, and that it can use them.
func (c *regionChecks) checkOneBuyerAtATime() {
	type counter struct {
		region int
		limit  string
	}
	last, firstSale := map[counter]*sale{}, map[string]time.Duration{} // by link
	spread := c.maxClockDifference()
	for _, s := range c.sales {
		id := counter{s.region, s.limit}
		before := last[id]
		last[id] = s
		if _, ok := firstSale[s.link]; !ok {
			firstSale[s.link] = s.at
		}
		arrival, end := s.at+roundTrips[s.region]/2, timeOf(s.end)-c.regions[s.region].redis.clockStep
		knowsRoundTrip := s.at-firstSale[s.link] > dialTime // and has opened its connections
		if knowsRoundTrip && s.granted > 0 && arrival > end+lateArrival+spread && !c.plan.isDisturbed(s.region, s.at-buyerTime, s.at) {
			c.addProblem("%s, region %d at %v: the bought hits arrive at %v, after their window, which ends at %v", s.limit, s.region, s.at, arrival, end)
			return
		}
		if before == nil || before.link == s.link || c.plan.isDisturbed(s.region, before.at-buyerTime, s.at) {
			continue
		}
		if pause := s.at - before.at; pause < roundTrips[s.region] {
			c.addProblem("%s, region %d at %v: two replicas buy at once, %v apart", s.limit, s.region, s.at, pause)
			return
		}
	}
}

// checkTimesToLive checks that each key of all Redis servers has a time to live.
func (c *regionChecks) checkTimesToLive() {
	servers := []*redisServer{c.global}
	for _, s := range c.regions {
		servers = append(servers, s.redis)
	}
	for _, server := range servers {
		server.eachCounter(func(name, _ string, hasExpiry bool) {
			if !hasExpiry {
				c.addProblem("server %d, key %s: has no time to live", server.number, name)
			}
		})
	}
}
