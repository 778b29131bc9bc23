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
	maxStripes   = 64
	stripeEvents = 32      // events of a stripe that wait for the sketches
	stripeBytes  = 4 << 10 // keys of these events
	sketchKeys   = 2560    // keys of each sketch
)

// maxEventsPerSecond bounds what the sketches cost. If there are more decisions, a random
// sample of the calls is used, and each call of the sample counts for several calls.
const maxEventsPerSecond = 4000

// Recorder counts calls and finds the busiest keys. It is a service.Observer.
type Recorder struct {
	fallbackRatio float64
	keepKeys      bool
	seed          maphash.Seed
	stripes       []stripe // their number is a power of two

	sampleInterval atomic.Uint32 // one call of sampleInterval calls is in the sketches

	redisMu    sync.Mutex
	redisTrips histogram // since the last collect

	mu         sync.Mutex // guards the fields below
	hotKeys    *sketch
	deniedKeys *sketch
	ruleUses   map[string]float64 // highest use of each rule since the last collect, by path
}

// stripe is a part of a Recorder. A call uses any stripe that is free, so that calls don't
// wait for each other.
type stripe struct {
	mu sync.Mutex
	callCounts
	events []event
	keys   []byte // of events
	_      [64]byte
}

// callCounts are the calls of some time.
type callCounts struct {
	calls, denied, errors uint64
	decisions             uint64
	withoutRedis          uint64 // decisions of the fallback
	latency               histogram
}

func (c *callCounts) add(other *callCounts) {
	c.calls += other.calls
	c.denied += other.denied
	c.errors += other.errors
	c.decisions += other.decisions
	c.withoutRedis += other.withoutRedis
	c.latency.add(&other.latency)
}

// event is what a call does to one key.
type event struct {
	hash     uint64
	rule     *descriptors.Rule
	limit    *descriptors.RateLimit // the limit that is spent most
	weight   float64                // hits that the event stands for
	spent    int64
	capacity int64 // 0 if spent is unknown
	keyEnd   int   // in the keys of the stripe
	denied   bool
}

// NewRecorder returns a Recorder. fallbackRatio is the share of a limit that the fallback grants
// if the limit has no ratio. If keepKeys is false, the Recorder forgets the keys.
func NewRecorder(fallbackRatio float64, keepKeys bool) *Recorder {
	stripes := min(1<<bits.Len(uint(4*runtime.GOMAXPROCS(0)-1)), maxStripes)
	r := &Recorder{
		fallbackRatio: fallbackRatio, keepKeys: keepKeys, seed: maphash.MakeSeed(), stripes: newStripes(stripes),
		hotKeys: newSketch(sketchKeys), deniedKeys: newSketch(sketchKeys), ruleUses: map[string]float64{},
	}
	r.sampleInterval.Store(1)
	return r
}

func newStripes(n int) []stripe {
	stripes := make([]stripe, n)
	for i := range stripes {
		stripes[i].events = make([]event, 0, stripeEvents)
		stripes[i].keys = make([]byte, 0, stripeBytes)
	}
	return stripes
}

// Answered implements service.Observer.
func (r *Recorder) Answered(_ context.Context, c *service.Call) {
	random := rand.Uint64()
	bucket := bucketOf(time.Since(c.Start))
	s := r.lockStripe(int(random))
	defer s.mu.Unlock()
	s.calls++
	s.latency[bucket]++
	switch {
	case c.Err != nil:
		s.errors++
	case c.Response.GetOverallCode() != rlsv3.RateLimitResponse_OK:
		s.denied++
	}
	interval := r.sampleInterval.Load()
	if interval > 1 && uint32(random>>32)%interval != 0 {
		s.countDecisions(c)
		return
	}
	for i := 0; i < c.Decisions(); {
		i = r.recordDescriptor(s, c, i, float64(interval))
	}
}

// countDecisions counts the decisions of a call that is not in the sample.
func (s *stripe) countDecisions(c *service.Call) {
	for i := range c.Decisions() {
		if d := c.Decision(i); d.Result.Err == nil {
			s.decisions++
			if d.Result.Degraded() {
				s.withoutRedis++
			}
		}
	}
}

// RedisAnswered records the time of a round trip to Redis.
func (r *Recorder) RedisAnswered(took time.Duration) {
	r.redisMu.Lock()
	defer r.redisMu.Unlock()
	r.redisTrips[bucketOf(took)]++
}

// lockStripe returns a locked stripe. It waits only if all stripes are in use.
func (r *Recorder) lockStripe(random int) *stripe {
	for i := range r.stripes {
		if s := &r.stripes[(random+i)&(len(r.stripes)-1)]; s.mu.TryLock() {
			return s
		}
	}
	s := &r.stripes[random&(len(r.stripes)-1)]
	s.mu.Lock()
	return s
}

// recordDescriptor records the decisions about one descriptor, from decision i on. It
// returns the place of the next descriptor's decisions.
func (r *Recorder) recordDescriptor(s *stripe, c *service.Call, i int, weight float64) int {
	first := c.Decision(i)
	ev := event{rule: first.Rule, limit: first.Limit, weight: weight * float64(max(first.N, 0))}
	use, isDecided := -1.0, false
	for ; i < c.Decisions(); i++ {
		d := c.Decision(i)
		if d.Descriptor != first.Descriptor {
			break
		}
		if d.Result.Err != nil {
			continue
		}
		isDecided = true
		s.decisions++
		if d.Result.Degraded() {
			s.withoutRedis++
		}
		ev.denied = ev.denied || !d.Result.Allowed
		spent, capacity := r.spentAndCapacity(&d)
		if u := useOf(spent, capacity); u > use {
			use, ev.limit, ev.spent, ev.capacity = u, d.Limit, spent, capacity
		}
	}
	if !isDecided {
		return i
	}
	r.addEvent(s, ev, first.Key)
	return i
}

// useOf returns spent / capacity, or -1 if the capacity is 0.
func useOf(spent, capacity int64) float64 {
	if capacity <= 0 {
		return -1
	}
	return float64(spent) / float64(capacity)
}

// spentAndCapacity returns the spent hits and the capacity of the limit of d. The capacity is 0 if the
// spent hits are unknown. The fallback counts a share of the limit.
func (r *Recorder) spentAndCapacity(d *service.Decision) (spent, capacity int64) {
	l := d.Limit.Limit
	if d.Result.Degraded() {
		if d.Result.Mode != limit.FailLocal {
			return 0, 0
		}
		ratio := l.FallbackRatio
		if ratio == 0 {
			ratio = r.fallbackRatio
		}
		l = l.Scaled(ratio)
	}
	return max(l.Spent(d.Result.Result), 0), l.Capacity()
}

// addEvent appends an event to a stripe. If the stripe is full, push moves its events first.
func (r *Recorder) addEvent(s *stripe, ev event, key []byte) {
	ev.hash = maphash.Bytes(r.seed, key)
	key = key[:min(len(key), maxKeyBytes)]
	if len(s.events) == cap(s.events) || len(s.keys)+len(key) > cap(s.keys) {
		r.mu.Lock()
		r.moveEvents(s)
		r.mu.Unlock()
	}
	if r.keepKeys {
		s.keys = append(s.keys, key...)
	}
	ev.keyEnd = len(s.keys)
	s.events = append(s.events, ev)
}

// moveEvents moves the events of s to the sketches. The caller holds r.mu and s.mu.
func (r *Recorder) moveEvents(s *stripe) {
	start := 0
	for i := range s.events {
		ev := &s.events[i]
		key := s.keys[start:ev.keyEnd]
		start = ev.keyEnd
		if u := useOf(ev.spent, ev.capacity); u > r.ruleUses[ev.rule.Path] {
			r.ruleUses[ev.rule.Path] = u
		}
		if !r.keepKeys || ev.weight == 0 {
			continue
		}
		r.hotKeys.add(ev, key, ev.weight)
		if ev.denied {
			r.deniedKeys.add(ev, key, ev.weight)
		}
	}
	clear(s.events) // limits that are no longer in force can be freed
	s.events, s.keys = s.events[:0], s.keys[:0]
}

// collect returns the calls, the round trips to Redis and the highest use of each rule since
// the last call of collect. seconds is the time since this call. collect moves all events to
// the sketches.
func (r *Recorder) collect(seconds float64) (counts callCounts, redis histogram, uses map[string]float64) {
	for i := range r.stripes {
		s := &r.stripes[i]
		s.mu.Lock()
		counts.add(&s.callCounts)
		s.callCounts = callCounts{}
		r.mu.Lock()
		r.moveEvents(s)
		r.mu.Unlock()
		s.mu.Unlock()
	}
	r.redisMu.Lock()
	redis, r.redisTrips = r.redisTrips, histogram{}
	r.redisMu.Unlock()
	if seconds > 0 {
		r.sampleInterval.Store(uint32(max(math.Ceil(float64(counts.decisions)/seconds/maxEventsPerSecond), 1)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hotKeys.advance(seconds)
	r.deniedKeys.advance(seconds)
	uses, r.ruleUses = r.ruleUses, make(map[string]float64, len(r.ruleUses))
	return counts, redis, uses
}

// sampledShare returns the share of the calls that is in the sketches.
func (r *Recorder) sampledShare() float64 { return 1 / float64(r.sampleInterval.Load()) }
