package live

import (
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Bounds of the memory of a Recorder. docs/observability.md has the resulting memory.
const (
	maxStripes  = 64   // stripes of call counts
	sketchKeys  = 2560 // keys with the most hits, and as many keys with the most denied hits
	exampleKeys = 100  // descriptors without a rule
	callerKeys  = 500  // callers
)

// maxEventsPerSecond bounds the CPU time of the sketches. If there are more decisions, the sketches get only a random
// sample of the calls. A refused call is an event too.
const maxEventsPerSecond = 4000

// Recorder counts calls and finds the busiest keys. It is a service.Observer.
type Recorder struct {
	overHits func(service.Decision) int64 // returns how many hits of a denied decision are beyond its limit
	keepKeys bool                         // false means that the sketches stay empty
	seed     maphash.Seed
	stripes  []stripe // their number is a power of two, so that a bit mask can choose a stripe

	sampleInterval atomic.Uint32 // 10 means that the sketches get one of ten calls

	givenUp, redisStalls atomic.Uint64 // the counts since the last collect

	redisMu    sync.Mutex
	redisTrips histogram // round trips to Redis since the last collect

	mu       sync.Mutex         // guards the fields below
	hottest  *sketch            // the keys with the most hits
	denied   *sketch            // the keys with the most denied hits
	examples *sketch            // the most frequent descriptors without a rule
	callers  *sketch            // the callers with the most calls
	ruleUses map[string]float64 // the highest use of each rule since the last collect; the key is the path of the rule
}

// stripe is a part of a Recorder. A call uses a random stripe, so that calls hardly wait for each other.
type stripe struct {
	mu sync.Mutex
	callCounts
	_ [64]byte
}

// callCounts has the numbers of calls and decisions in a span of time.
type callCounts struct {
	calls, denied, errors uint64 // all calls, denied calls, and calls that failed for other reasons than refused and givenUp
	refused               uint64 // calls of callers that had sent too many calls
	givenUp               uint64 // calls that the callers gave up; rls may have answered too late
	redisStalls           uint64 // batches that waited because Redis stood still
	decisions             uint64
	fallbackDecisions     uint64 // decisions of the fallback
	unmatched             uint64 // descriptors that no rule limits
	latency               histogram
}

func (c *callCounts) add(other *callCounts) {
	c.calls += other.calls
	c.denied += other.denied
	c.errors += other.errors
	c.refused += other.refused
	c.givenUp += other.givenUp
	c.redisStalls += other.redisStalls
	c.decisions += other.decisions
	c.fallbackDecisions += other.fallbackDecisions
	c.unmatched += other.unmatched
	c.latency.add(&other.latency)
}

// event describes the hits of one call on one key.
type event struct {
	hash         uint64
	rule         *descriptors.Rule      // nil if no rule limits the descriptor
	limit        *descriptors.RateLimit // the limit with the highest use
	hits, denied float64                // include the hits of calls that are not in the sample; denied hits are also in hits
	spent        int64                  // hits that limit counts now
	capacity     int64                  // hits that limit can count; 0 if spent is unknown

	time     int64 // the start of the call, as Unix time in microseconds
	passesAt int64 // when the denied hits pass, as Unix time in microseconds; 0 if no hit is denied

	isDomainUnknown bool // the domain has no limits
}

// NewRecorder returns a Recorder. overHits returns how many hits of a denied decision are beyond its limit. Without
// keepKeys, the Recorder keeps no keys of requests and no callers.
func NewRecorder(overHits func(service.Decision) int64, keepKeys bool) *Recorder {
	stripes := min(1<<bits.Len(uint(4*runtime.GOMAXPROCS(0)-1)), maxStripes)
	r := &Recorder{
		overHits: overHits, keepKeys: keepKeys, seed: maphash.MakeSeed(), stripes: make([]stripe, stripes),
		hottest: newSketch(sketchKeys), denied: newSketch(sketchKeys), examples: newSketch(exampleKeys), callers: newSketch(callerKeys),
		ruleUses: map[string]float64{},
	}
	r.sampleInterval.Store(1)
	return r
}

// Answered implements service.Observer.
func (r *Recorder) Answered(ctx context.Context, c *service.Call) {
	random := rand.Uint64()
	r.count(c, int(random))
	interval := r.sampleInterval.Load()
	if interval > 1 && uint32(random>>32)%interval != 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepKeys {
		r.addCaller(ctx, c, float64(interval))
		for i, rule := range c.Rules {
			if rule == nil && c.IsUnmatched(i) {
				r.addExample(c, i, float64(interval))
			}
		}
	}
	for i := 0; i < c.DecisionCount(); {
		i = r.addDescriptor(c, i, float64(interval))
	}
}

// addCaller counts weight calls of the caller of c: c itself, and the calls that are not in the sample.
func (r *Recorder) addCaller(ctx context.Context, c *service.Call, weight float64) {
	var memory [maxKeyBytes]byte
	key := c.AppendCaller(memory[:0], ctx)
	if len(key) == 0 {
		return
	}
	ev := event{hash: maphash.Bytes(r.seed, key), hits: weight}
	if c.IsRefused() || c.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		ev.denied = weight
	}
	r.callers.add(&ev, key[:min(len(key), maxKeyBytes)], weight)
}

// count counts c in the stripe that random chooses.
func (r *Recorder) count(c *service.Call, random int) {
	bucket := bucketOf(time.Since(c.Start))
	s := r.lockStripe(random)
	defer s.mu.Unlock()
	s.calls++
	s.latency[bucket]++
	switch {
	case c.IsGivenUp(): // CallGivenUp counts the call
	case c.IsRefused():
		s.refused++
	case c.Err != nil:
		s.errors++
	case c.Response.GetOverallCode() != rlsv3.RateLimitResponse_OK:
		s.denied++
	}
	for i, rule := range c.Rules {
		if rule == nil && c.IsUnmatched(i) {
			s.unmatched++
		}
	}
	for i := range c.DecisionCount() {
		if d := c.Decision(i); d.Result.Err == nil {
			s.decisions++
			if d.Result.IsDegraded() {
				s.fallbackDecisions++
			}
		}
	}
}

// addExample counts descriptor i of c, which no rule limits, weight times.
func (r *Recorder) addExample(c *service.Call, i int, weight float64) {
	var memory [maxKeyBytes]byte
	key := descriptors.AppendBoundedKey(memory[:0], c.Request.GetDomain(), c.Request.GetDescriptors()[i].GetEntries())
	r.examples.add(&event{hash: maphash.Bytes(r.seed, key), hits: weight, isDomainUnknown: !c.HasDomain}, key, weight)
}

// CallGivenUp records that a caller has given up a call.
func (r *Recorder) CallGivenUp() { r.givenUp.Add(1) }

// RedisStalled records a batch that waited because Redis stood still.
func (r *Recorder) RedisStalled() { r.redisStalls.Add(1) }

// RedisAnswered records the time of a round trip to Redis.
func (r *Recorder) RedisAnswered(duration time.Duration) {
	r.redisMu.Lock()
	defer r.redisMu.Unlock()
	r.redisTrips[bucketOf(duration)]++
}

func (r *Recorder) lockStripe(random int) *stripe {
	s := &r.stripes[random&(len(r.stripes)-1)]
	s.mu.Lock()
	return s
}

// addDescriptor adds the decisions of c on one descriptor. The first of these decisions has the index i. addDescriptor
// returns the index of the first decision on the next descriptor.
func (r *Recorder) addDescriptor(c *service.Call, i int, weight float64) int {
	first := c.Decision(i)
	ev := event{rule: first.Rule, limit: first.Limit, hits: weight * float64(max(first.N, 0)), time: c.Start.UnixMicro()}
	use, isDecided := -1.0, false
	for ; i < c.DecisionCount(); i++ {
		d := c.Decision(i)
		if d.Descriptor != first.Descriptor {
			break
		}
		if d.Result.Err != nil {
			continue
		}
		isDecided = true
		if !d.Result.Allowed && !d.Shadow && d.N > 0 {
			ev.denied = max(ev.denied, weight*float64(r.overHits(d)))
			ev.passesAt = max(ev.passesAt, passesAt(&d, ev.time))
		}
		spent, capacity := spentAndCapacity(&d)
		if u := useOf(spent, capacity); u > use {
			use, ev.limit, ev.spent, ev.capacity = u, d.Limit, spent, capacity
		}
	}
	if isDecided {
		r.addEvent(&ev, first.Key)
	}
	return i
}

// addEvent adds an event of a key that a rule limits. The caller holds r.mu.
func (r *Recorder) addEvent(ev *event, key []byte) {
	if use := useOf(ev.spent, ev.capacity); use > r.ruleUses[ev.rule.Path] {
		r.ruleUses[ev.rule.Path] = use
	}
	if !r.keepKeys || ev.hits == 0 {
		return
	}
	ev.hash = maphash.Bytes(r.seed, key)
	key = key[:min(len(key), maxKeyBytes)]
	r.hottest.add(ev, key, ev.hits)
	r.denied.add(ev, key, ev.denied)
}

// passesAt returns when the denied hits of d pass, as Unix time in microseconds.
func passesAt(d *service.Decision, now int64) int64 {
	if d.Result.RetryAfter == limit.Never {
		return neverPasses
	}
	return now + d.Result.RetryAfter
}

// useOf returns spent / capacity, or -1 if the capacity is 0.
func useOf(spent, capacity int64) float64 {
	if capacity <= 0 {
		return -1
	}
	return float64(spent) / float64(capacity)
}

// spentAndCapacity returns the spent hits and the capacity of the limit of d. If the fallback decided, these are the
// hits and the capacity of the share of this replica, or 0 and 0 if the fallback counts nothing.
func spentAndCapacity(d *service.Decision) (spent, capacity int64) {
	l := d.Limit.Limit
	if d.Result.IsDegraded() {
		if l = d.Result.Share; l == nil {
			return 0, 0
		}
	}
	return max(l.Spent(d.Result.Result), 0), l.Capacity()
}

// collect returns the counts, the round trips to Redis and the highest use of each rule since the last call of collect.
// The last call was this number of seconds ago.
func (r *Recorder) collect(seconds float64) (counts callCounts, redisTrips histogram, uses map[string]float64) {
	for i := range r.stripes {
		s := &r.stripes[i]
		s.mu.Lock()
		counts.add(&s.callCounts)
		s.callCounts = callCounts{}
		s.mu.Unlock()
	}
	counts.givenUp, counts.redisStalls = r.givenUp.Swap(0), r.redisStalls.Swap(0)
	r.redisMu.Lock()
	redisTrips, r.redisTrips = r.redisTrips, histogram{}
	r.redisMu.Unlock()
	eventsPerSecond := float64(counts.decisions+counts.unmatched+counts.refused) / max(seconds, 1)
	r.sampleInterval.Store(uint32(max(math.Ceil(eventsPerSecond/maxEventsPerSecond), 1)))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range []*sketch{r.hottest, r.denied, r.examples, r.callers} {
		s.advance(seconds)
	}
	uses, r.ruleUses = r.ruleUses, make(map[string]float64, len(r.ruleUses))
	return counts, redisTrips, uses
}

// sampledShare returns the share of the calls that is in the sketches.
func (r *Recorder) sampledShare() float64 { return 1 / float64(r.sampleInterval.Load()) }
