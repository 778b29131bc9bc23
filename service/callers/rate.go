package callers

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// RateBound bounds the calls of each caller in a second. A caller is known by the name that it sends, or else by the name
// in its client certificate, or else by its address. RateBound is safe for concurrent use.
type RateBound struct {
	maxCallsPerSecond int
	header            string // has the name that a caller sends
	refusal           error  // does not name the caller, because the decision log can have only hashes of callers
	onRefusal         func(caller string)
	seed              maphash.Seed
	stripes           [callerStripes]callerStripe
}

// These constants bound the memory of a RateBound to about a megabyte.
const (
	callerStripes       = 64
	maxCallersPerStripe = 64
)

type callerStripe struct {
	mu       sync.Mutex
	limiters map[uint64]*rate.Limiter // the key is the hash of the caller
}

// NewRateBound returns a RateBound that admits maxCallsPerSecond calls of a caller in a second. A caller that paused can send the
// calls of one second at once. header is as in AppendCaller. The RateBound calls onRefusal for each refused call.
func NewRateBound(maxCallsPerSecond int, header string, onRefusal func(caller string)) *RateBound {
	refusal := status.Errorf(codes.ResourceExhausted, "calls of this caller: got more than %d in a second, want at most %[1]d (MAX_CALLER_CALLS_PER_SECOND)", maxCallsPerSecond)
	b := &RateBound{maxCallsPerSecond: maxCallsPerSecond, header: header, refusal: refusal, onRefusal: onRefusal, seed: maphash.MakeSeed()}
	for i := range b.stripes {
		b.stripes[i].limiters = map[uint64]*rate.Limiter{}
	}
	return b
}

// Admit counts a call that starts at now. If the caller of ctx has sent too many calls, Admit returns RESOURCE_EXHAUSTED.
func (b *RateBound) Admit(ctx context.Context, now time.Time) error {
	var memory [maxSentNameBytes]byte
	name := appendCallerName(memory[:0], ctx, b.header)
	if b.limiterOf(maphash.Bytes(b.seed, name), now).AllowN(now, 1) {
		return nil
	}
	b.onRefusal(string(AppendCaller(nil, ctx, b.header)))
	return b.refusal
}

func (b *RateBound) limiterOf(caller uint64, now time.Time) *rate.Limiter {
	stripe := &b.stripes[caller%callerStripes]
	stripe.mu.Lock()
	defer stripe.mu.Unlock()
	limiter := stripe.limiters[caller]
	if limiter == nil {
		if len(stripe.limiters) >= maxCallersPerStripe {
			stripe.removeCallers(now)
		}
		limiter = rate.NewLimiter(rate.Limit(b.maxCallsPerSecond), b.maxCallsPerSecond)
		stripe.limiters[caller] = limiter
	}
	return limiter
}

// removeCallers removes the callers that paused long enough to send the calls of a second at once. A new limiter of such a
// caller would admit the same calls. If there is no such caller, removeCallers removes a random caller.
func (s *callerStripe) removeCallers(now time.Time) {
	var busyCaller uint64
	for caller, limiter := range s.limiters {
		busyCaller = caller
		if limiter.TokensAt(now) >= float64(limiter.Burst()) {
			delete(s.limiters, caller)
		}
	}
	if len(s.limiters) >= maxCallersPerStripe {
		delete(s.limiters, busyCaller)
	}
}
