// Package limit is the domain of rls: what a limit is, what a key has spent of
// it, and whether the next hits may pass. It is pure arithmetic: no clock, no
// I/O, no wire format. The scripts in lua/ do the same arithmetic inside Redis.
//
// Terms:
//
//   - hit: one unit of what is limited, mostly one request;
//   - window: the span a limit speaks of, Multiplier × Unit;
//   - capacity: the most a key can spend at once: Burst for a token bucket,
//     Requests for the others;
//   - charge: to add hits to what a key has spent; give back: to take them off;
//   - peek: to ask with 0 hits, which changes nothing;
//   - debt: what a key has spent beyond its capacity, because denied hits were
//     charged.
//
// All times and spans are integers in microseconds; times count from the Unix
// epoch. Microseconds, because the same numbers must be exact in Lua, whose
// numbers are whole only up to 2^53.
package limit

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
)

const (
	// MaxHits bounds the hits of one Take; more are treated as this many. No
	// counter holds more, so that giving back as many leaves nothing spent.
	MaxHits = 1 << 34

	// MaxPeriod bounds a window, and the time an empty token bucket takes to
	// fill, in microseconds: ten years of 365 days.
	MaxPeriod = 10 * 365 * 86_400 * second

	// Never is the RetryAfter of hits that can't pass however long one waits.
	Never = -1

	second = 1_000_000
)

// Spec is a limit as its author states it.
type Spec struct {
	Algorithm Algorithm

	// Requests is how many hits a window admits (requests_per_unit). 0 admits
	// none.
	Requests uint32

	// The window is Multiplier × Unit. A Multiplier of 0 means 1.
	Unit       Unit
	Multiplier uint32

	// Burst is the capacity of a token bucket; 0 means Requests. Only for
	// TokenBucket.
	Burst uint32

	// ChargeDenied charges denied hits as well. The debt it makes is bounded:
	// under FixedWindow by the end of the window, under the others it is at most
	// one window's Requests. See DefaultChargeDenied.
	ChargeDenied bool

	Scope            Scope
	OnBackendFailure FailureMode

	// FallbackRatio is the share of the limit that each replica grants while
	// the backend is away, over 0 up to 1; 0 leaves it to the service's default.
	FallbackRatio float64
}

// Limit is a checked Spec with what follows from it. It is immutable and safe
// for concurrent use.
type Limit struct {
	Spec

	period   int64 // window, microseconds
	max      int64 // Requests
	capacity int64
	tag      string

	full  span  // tokenBucket: the time an empty bucket takes to fill
	ticks int64 // slidingWindow: ticks in a window
	tick  int64 // slidingWindow: microseconds in a tick
}

// New checks s and derives a Limit. Its error joins one for each field that is
// wrong; each starts with the field's name and says what would be right, in the
// words of the limits file.
func New(s Spec) (*Limit, error) {
	if int(s.Algorithm) >= len(table) {
		return nil, fmt.Errorf("algorithm %d is not known", s.Algorithm)
	}
	unit := s.Unit.micros()
	if unit == 0 {
		return nil, fmt.Errorf("unit %d is not known", s.Unit)
	}
	s.Multiplier = max(s.Multiplier, 1)
	var errs []error
	if most := MaxPeriod / unit; int64(s.Multiplier) > most {
		errs = append(errs, fmt.Errorf("unit_multiplier %d makes the window longer than ten years; with unit %s it can be at most %d", s.Multiplier, s.Unit, most))
	}
	if s.Burst != 0 && s.Algorithm != TokenBucket {
		errs = append(errs, fmt.Errorf("burst is only for algorithm %s, not %s", TokenBucket, s.Algorithm))
	}
	if r := s.FallbackRatio; math.IsNaN(r) || r < 0 || r > 1 {
		errs = append(errs, fmt.Errorf("fallback_ratio %v is not over 0 and up to 1", r))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	l := &Limit{Spec: s, period: unit * int64(s.Multiplier), max: int64(s.Requests)}
	l.capacity = l.max
	if s.Algorithm == TokenBucket && l.max > 0 {
		if s.Burst > 0 {
			l.capacity = int64(s.Burst)
		}
		hi, lo := bits.Mul64(MaxPeriod, uint64(l.max))
		if most, _ := bits.Div64(hi, lo, uint64(l.period)); uint64(l.capacity) > most {
			return nil, fmt.Errorf("burst %d would take more than ten years to refill; at %d per %s it can be at most %d", s.Burst, s.Requests, l.Window(), most)
		}
		l.full = l.cost(l.capacity)
	}
	l.tick = (l.period + maxTicks - 1) / maxTicks
	l.ticks = (l.period + l.tick - 1) / l.tick
	l.tag = table[s.Algorithm].tag + strconv.FormatInt(l.period/second, 10)
	if s.Scope == Instance {
		l.tag += "i"
	}
	return l, nil
}

// Period is the length of the window in microseconds, from a second to
// MaxPeriod.
func (l *Limit) Period() int64 { return l.period }

// Max is how many hits a window admits.
func (l *Limit) Max() int64 { return l.max }

// Capacity is the most that can be spent at once.
func (l *Limit) Capacity() int64 { return l.capacity }

// Tag names what counters of this limit hold: algorithm, window in seconds, and
// an i for one budget per replica ("fw60", "tb1i"). Counters of two limits with
// one tag can stand in for each other. It is made of letters and digits only.
func (l *Limit) Tag() string { return l.tag }

// Window is the window in the words of the limits file: "minute", "15 minutes".
func (l *Limit) Window() string {
	if l.Multiplier == 1 {
		return l.Unit.String()
	}
	return strconv.FormatUint(uint64(l.Multiplier), 10) + " " + l.Unit.String() + "s"
}

// String is the limit in short: "10 per minute, sliding_log".
func (l *Limit) String() string {
	s := strconv.FormatUint(uint64(l.Requests), 10) + " per " + l.Window()
	if l.Algorithm != FixedWindow {
		s += ", " + l.Algorithm.String()
	}
	if l.capacity != l.max {
		s += ", burst " + strconv.FormatInt(l.capacity, 10)
	}
	if l.Scope == Instance {
		s += ", per instance"
	}
	return s
}

// State is what one key has spent under one limit. Its zero value has spent
// nothing. It must be used with limits of one Tag only, and by one goroutine at
// a time. What its numbers mean is the algorithm's business.
type State struct {
	a, b, c int64
	log     *hitLog // slidingLog only
}

// IsZero tells whether the key has spent nothing, so that s can be forgotten.
func (s *State) IsZero() bool { return *s == State{} }

// Entries is how many hits s remembers one by one: 0 but for SlidingLog, and
// then at most Max.
func (s *State) Entries() int {
	if s.log == nil {
		return 0
	}
	return s.log.len()
}

// Result is the answer to one Take.
type Result struct {
	// Allowed tells whether the hits pass. All or nothing: there are no partial
	// grants.
	Allowed bool

	// Remaining is what can still be spent after this Take: capacity less what
	// is spent. Negative while there is debt.
	Remaining int64

	// ResetAfter is the time in microseconds until what is spent now is
	// forgotten. Under FixedWindow that is always the end of the window; under
	// the others 0 if nothing is spent.
	ResetAfter int64

	// RetryAfter is the time in microseconds until the same hits would pass if
	// nobody else came: 0 if they passed, Never if they exceed the capacity.
	RetryAfter int64
}

// Spent is what a counter that answered r has spent.
func (l *Limit) Spent(r Result) int64 { return l.capacity - r.Remaining }

// Take decides whether n hits may pass at time now and charges s accordingly.
// A negative n gives hits back, never lifting s above full capacity; it is
// always allowed. An n of 0 peeks: under FixedWindow it is denied once the count
// exceeds the limit, under the others when one more hit would be. An n beyond
// ±MaxHits is treated as ±MaxHits.
//
// Where now runs backwards, the state's own time stands still until now has
// caught up; after a step back of more than a window it restarts from now with
// all that was spent.
func (l *Limit) Take(s *State, now, n int64) Result {
	return table[l.Algorithm].step(s, l, now, min(max(n, -MaxHits), MaxHits))
}

// DurationUntilReset is what to tell the caller of a Take that answered r: the time in
// microseconds until the same hits can pass, or, if they passed, until the
// budget is whole again. Hits that can never pass are told to wait out a window.
func (l *Limit) DurationUntilReset(r Result) int64 {
	switch {
	case r.Allowed || r.RetryAfter == Never && l.Algorithm == FixedWindow:
		return r.ResetAfter
	case r.RetryAfter == Never:
		return l.period
	}
	return r.RetryAfter
}
