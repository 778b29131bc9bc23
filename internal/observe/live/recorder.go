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
	maxStripes     = 64   // stripes of call counts
	maxSketchKeys  = 2560 // keys with the most hits, and as many keys with the most denied hits
	maxExampleKeys = 100  // descriptors without a rule
	maxCallerKeys  = 500  // callers
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

	givenUpCalls, redisStalls atomic.Uint64 // the counts since the last collect
	lastLoss                  atomic.Int64  // the time when Redis last lost counters, in Unix nanoseconds, or 0
	lastReset                 atomic.Int64  // the time of the last reset of counters, in Unix nanoseconds, or 0
	lastRefusal               atomic.Pointer[connectionRefusal]

	redisMu    sync.Mutex
	redisTrips histogram // round trips to Redis since the last collect

	mu          sync.Mutex         // guards the fields below
	hottestKeys *sketch            // the keys with the most hits
	deniedKeys  *sketch            // the keys with the most denied hits
	examples    *sketch            // the most frequent descriptors without a rule
	callers     *sketch            // the callers with the most calls
	ruleUses    map[string]float64 // the highest use of each rule since the last collect; the key is the path of the rule
}

// stripe is a part of a Recorder. A call uses a random stripe, so that calls hardly wait for each other.
type stripe struct {
	mu sync.Mutex
	callCounts
	_ [64]byte // keeps two stripes out of one cache line
}

type callCounts struct {
	calls, deniedCalls, failedCalls uint64 // all calls, denied calls, and calls that failed for other reasons than refusedCalls and givenUpCalls
	refusedCalls                    uint64 // calls of callers that had sent too many calls
	givenUpCalls                    uint64 // calls that the callers gave up; rls may have answered too late
	redisStalls                     uint64 // batches that waited because Redis stood still
	decisions                       uint64
	fallbackDecisions               uint64 // decisions of the fallback
	unmatchedDescriptors            uint64 // descriptors that no rule limits
	latency                         histogram
}

func (c *callCounts) add(other *callCounts) {
	c.calls += other.calls
	c.deniedCalls += other.deniedCalls
	c.failedCalls += other.failedCalls
	c.refusedCalls += other.refusedCalls
	c.givenUpCalls += other.givenUpCalls
	c.redisStalls += other.redisStalls
	c.decisions += other.decisions
	c.fallbackDecisions += other.fallbackDecisions
	c.unmatchedDescriptors += other.unmatchedDescriptors
	c.latency.add(&other.latency)
}

// event describes the hits of one call on one key.
type event struct {
	hash             uint64
	rule             *descriptors.Rule      // nil if no rule limits the descriptor
	limit            *descriptors.RateLimit // the limit with the highest use
	hits, deniedHits float64                // include the hits of calls that are not in the sample; denied hits are also in hits
	isShadow         bool                   // the denied hits passed because of shadow mode
	spent            int64                  // hits that limit counts now
	capacity         int64                  // hits that limit can count; 0 if spent is unknown

	time      int64 // the start of the call, as Unix time in microseconds
	retryTime int64 // the time at which the denied hits pass, as Unix time in microseconds; 0 if all hits pass now

	isDomainUnknown bool // the domain has no limits
}

// NewRecorder returns a Recorder. overHits returns how many hits of a denied decision are beyond its limit. Without
// keepKeys, the Recorder keeps no keys of requests and no callers.
func NewRecorder(overHits func(service.Decision) int64, keepKeys bool) *Recorder {
	stripes := min(1<<bits.Len(uint(4*runtime.GOMAXPROCS(0)-1)), maxStripes) // four stripes for each core, or more
	r := &Recorder{
		overHits: overHits, keepKeys: keepKeys, seed: maphash.MakeSeed(), stripes: make([]stripe, stripes),
		hottestKeys: newSketch(maxSketchKeys), deniedKeys: newSketch(maxSketchKeys), examples: newSketch(maxExampleKeys), callers: newSketch(maxCallerKeys),
		ruleUses: map[string]float64{},
	}
	r.sampleInterval.Store(1)
	return r
}

// CallAnswered implements service.Observer.
func (r *Recorder) CallAnswered(ctx context.Context, call *service.Call) {
	randomNumber := rand.Uint64()
	r.count(call, int(randomNumber))
	interval := r.sampleInterval.Load()
	if interval > 1 && uint32(randomNumber>>32)%interval != 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keepKeys {
		r.addCaller(ctx, call, float64(interval))
		for i, rule := range call.Rules {
			if rule == nil && call.IsUnmatched(i) {
				r.addExample(call, i, float64(interval))
			}
		}
	}
	for i := 0; i < call.DecisionCount(); {
		i = r.addDescriptor(call, i, float64(interval))
	}
}

// addCaller adds weight calls to the count of the caller of call: the call itself, and the calls that are not in the sample.
func (r *Recorder) addCaller(ctx context.Context, call *service.Call, weight float64) {
	var memory [maxKeyBytes]byte
	key := call.AppendCaller(memory[:0], ctx)
	if len(key) == 0 {
		return
	}
	newEvent := event{hash: maphash.Bytes(r.seed, key), hits: weight}
	if call.IsRefused() || call.Response.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		newEvent.deniedHits = weight
	}
	r.callers.add(&newEvent, key[:min(len(key), maxKeyBytes)], weight)
}

func (r *Recorder) count(call *service.Call, randomNumber int) {
	bucket := bucketOf(time.Since(call.Start))
	stripe := r.lockStripe(randomNumber)
	defer stripe.mu.Unlock()
	stripe.calls++
	stripe.latency[bucket]++
	switch {
	case call.IsGivenUp(): // CallGivenUp counts the call
	case call.IsRefused():
		stripe.refusedCalls++
	case call.Err != nil:
		stripe.failedCalls++
	case call.Response.GetOverallCode() != rlsv3.RateLimitResponse_OK:
		stripe.deniedCalls++
	}
	for i, rule := range call.Rules {
		if rule == nil && call.IsUnmatched(i) {
			stripe.unmatchedDescriptors++
		}
	}
	for i := range call.DecisionCount() {
		if d := call.Decision(i); d.Result.Err == nil {
			stripe.decisions++
			if d.Result.IsDegraded() {
				stripe.fallbackDecisions++
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
func (r *Recorder) CallGivenUp() { r.givenUpCalls.Add(1) }

// RedisStalled records a batch that waited because Redis stood still.
func (r *Recorder) RedisStalled() { r.redisStalls.Add(1) }

// connectionRefusal is the last refusal of a connection because of the bound of a setting.
type connectionRefusal struct {
	time    time.Time
	setting string
}

// ConnectionRefused records that a listener refused a connection because of the bound of setting, such as
// MAX_CONNECTIONS.
func (r *Recorder) ConnectionRefused(setting string) {
	r.lastRefusal.Store(&connectionRefusal{time.Now(), setting})
}

// RedisLostCounters records that Redis lost counters or charges without an error.
func (r *Recorder) RedisLostCounters() { r.lastLoss.Store(time.Now().UnixNano()) }

// CountersReset records a reset of counters, after which earlier denials may be over.
func (r *Recorder) CountersReset() { r.lastReset.Store(time.Now().UnixNano()) }

// RedisAnswered records the time of a round trip to Redis.
func (r *Recorder) RedisAnswered(duration time.Duration) {
	r.redisMu.Lock()
	defer r.redisMu.Unlock()
	r.redisTrips[bucketOf(duration)]++
}

func (r *Recorder) lockStripe(randomNumber int) *stripe {
	stripe := &r.stripes[randomNumber&(len(r.stripes)-1)]
	stripe.mu.Lock()
	return stripe
}

// addDescriptor adds the decisions of call on one descriptor. The first of these decisions has the index i. addDescriptor
// returns the index of the first decision on the next descriptor.
func (r *Recorder) addDescriptor(call *service.Call, i int, weight float64) int {
	firstDecision := call.Decision(i)
	newEvent := event{rule: firstDecision.Rule, limit: firstDecision.Limit, hits: weight * float64(max(firstDecision.N, 0)), time: call.Start.UnixMicro()}
	use, isDecided := -1.0, false
	for ; i < call.DecisionCount(); i++ {
		decision := call.Decision(i)
		if decision.Descriptor != firstDecision.Descriptor {
			break
		}
		if decision.Result.Err != nil {
			continue
		}
		isDecided = true
		if !decision.Result.Allowed && decision.N > 0 {
			newEvent.deniedHits = max(newEvent.deniedHits, weight*float64(r.overHits(decision)))
			if newEvent.isShadow = decision.Shadow || call.GlobalShadow; !newEvent.isShadow {
				newEvent.retryTime = max(newEvent.retryTime, retryTimeOf(&decision, newEvent.time))
			}
		}
		spent, capacity := spentAndCapacity(&decision)
		if decisionUse := useOf(spent, capacity); decisionUse > use {
			use, newEvent.limit, newEvent.spent, newEvent.capacity = decisionUse, decision.Limit, spent, capacity
		}
	}
	if isDecided {
		r.addEvent(&newEvent, firstDecision.Key)
	}
	return i
}

// addEvent adds an event of a key that a rule limits. The caller holds r.mu.
func (r *Recorder) addEvent(event *event, key []byte) {
	if use := useOf(event.spent, event.capacity); use > r.ruleUses[event.rule.Path] {
		r.ruleUses[event.rule.Path] = use
	}
	if !r.keepKeys || event.hits == 0 {
		return
	}
	event.hash = maphash.Bytes(r.seed, key)
	key = key[:min(len(key), maxKeyBytes)]
	r.hottestKeys.add(event, key, event.hits)
	r.deniedKeys.add(event, key, event.deniedHits)
}

// retryTimeOf returns the time at which the denied hits of d pass, as Unix time in microseconds.
func retryTimeOf(d *service.Decision, now int64) int64 {
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

// spentAndCapacity returns the spent hits and the capacity of the limit of decision. If the fallback decided, they are the
// hits and the capacity of the share of this replica, or 0 and 0 if the fallback counts nothing.
func spentAndCapacity(decision *service.Decision) (spent, capacity int64) {
	limit := decision.Limit.Limit
	if decision.Result.IsDegraded() {
		if limit = decision.Result.Share; limit == nil {
			return 0, 0
		}
	}
	return max(limit.Spent(decision.Result.Result), 0), limit.Capacity()
}

// collect returns the counts, the round trips to Redis and the highest use of each rule since the last call of collect.
// seconds is the time since this last call.
func (r *Recorder) collect(seconds float64) (counts callCounts, redisTrips histogram, uses map[string]float64) {
	for i := range r.stripes {
		stripe := &r.stripes[i]
		stripe.mu.Lock()
		counts.add(&stripe.callCounts)
		stripe.callCounts = callCounts{}
		stripe.mu.Unlock()
	}
	counts.givenUpCalls, counts.redisStalls = r.givenUpCalls.Swap(0), r.redisStalls.Swap(0)
	r.redisMu.Lock()
	redisTrips, r.redisTrips = r.redisTrips, histogram{}
	r.redisMu.Unlock()
	eventsPerSecond := float64(counts.decisions+counts.unmatchedDescriptors+counts.refusedCalls) / max(seconds, 1)
	r.sampleInterval.Store(uint32(max(math.Ceil(eventsPerSecond/maxEventsPerSecond), 1)))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sketch := range []*sketch{r.hottestKeys, r.deniedKeys, r.examples, r.callers} {
		sketch.advance(seconds)
	}
	uses, r.ruleUses = r.ruleUses, make(map[string]float64, len(r.ruleUses))
	return counts, redisTrips, uses
}
