package limit

import (
	"math"
	"math/bits"
)

// tokenBucket is a bucket of Capacity tokens that refills at Max per period. It uses the generic cell rate algorithm
// (GCRA, ITU-T I.371): the state is the time at which the bucket is full again. A hit moves this time by period/Max.
//
// Bound: at most Capacity + Max × t / period hits in any span of t. The state is an exact fraction.
//
// State: the bucket is full at a + b/c microseconds. c is the Max of the limit that charged last.
func tokenBucket(s *State, l *Limit, now, n int64, chargeDenied bool) Result {
	if l.max == 0 {
		if n < 0 {
			if n == -MaxHits { // a reset also forgets hits that a limit with another Max has charged
				*s = State{}
			}
			return Result{Allowed: true}
		}
		return Result{RetryAfter: Never}
	}
	spentTime := l.timeToFull(s, now) // the time in which the spent tokens refill

	var r Result
	switch {
	case n < 0:
		r.Allowed = true
		spentTime = spentTime.sub(l.refillTime(min(-n, l.capacity+l.max)), l.max)
		if spentTime.us < 0 {
			spentTime = span{}
		}
	default:
		newSpentTime := spentTime.add(l.refillTime(min(max(n, 1), l.capacity+l.max)), l.max)
		r.Allowed = n <= l.capacity && !l.fillTime.isShorterThan(newSpentTime)
		if n > 0 && (r.Allowed || chargeDenied) {
			spentTime = minSpan(newSpentTime, l.maxSpentTime())
		}
	}
	spentTokens, remainder := mulAddDiv(spentTime.us, l.max, spentTime.frac, l.period)
	if remainder > 0 {
		spentTokens++
	}
	r.Remaining = l.capacity - spentTokens
	r.ResetAfter = spentTime.ceil()
	if !r.Allowed {
		r.RetryAfter = Never
		if n <= l.capacity {
			r.RetryAfter = spentTime.sub(l.refillTime(l.capacity-max(n, 1)), l.max).ceil()
		}
	}
	if spentTime == (span{}) {
		*s = State{}
		return r
	}
	s.a, s.b, s.c = now+spentTime.us, spentTime.frac, l.max
	return r
}

// timeToFull returns the time until the bucket is full. It is at most maxSpentTime, even if the clock was set back.
func (l *Limit) timeToFull(s *State, now int64) span {
	fullTime := span{s.a, s.b}
	hasNewRate := s.c != l.max
	if hasNewRate && fullTime.frac > 0 && !l.HasBurst() { // frac counts parts 1/s.c of a microsecond
		fullTime = fullTime.withParts(s.c, l.max)
	}
	if fullTime.us < now {
		return span{}
	}
	spentTime := span{fullTime.us - now, fullTime.frac}
	switch {
	case !hasNewRate:
		return minSpan(spentTime, l.maxSpentTime())
	case l.HasBurst():
		spentTime.us, spentTime.frac = mulAddDiv(spentTime.us, s.c, spentTime.frac, l.max) // l refills the same tokens in another time
	}
	return minSpan(spentTime, l.fillTime)
}

// HasBurst reports whether the Spec of l states a Burst. If the rate of a limit changes, a bucket with HasBurst keeps its
// spent tokens, and a bucket without HasBurst keeps the time until it is full.
func (l *Limit) HasBurst() bool { return l.Burst > 0 }

// maxSpentTime returns the largest spent time: an empty bucket and a debt of one window.
func (l *Limit) maxSpentTime() span { return span{l.fillTime.us + l.period, l.fillTime.frac} }

// refillTime returns the time that n ≥ 0 tokens take to refill.
func (l *Limit) refillTime(n int64) span {
	us, frac := mulAddDiv(n, l.period, 0, l.max)
	return span{us, frac}
}

// mulAddDiv returns the quotient, at most 2^63 - 1, and the remainder of (a × b + c) / d. No number is negative.
func mulAddDiv(a, b, c, d int64) (quotient, remainder int64) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	low, carry := bits.Add64(low, uint64(c), 0)
	high += carry
	if high >= uint64(d) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(high, low, uint64(d))
	return int64(min(q, math.MaxInt64)), int64(r)
}

// MulDiv returns the quotient, at most 2^63 - 1, and the remainder of a × b / d. No number is negative.
func MulDiv(a, b, d int64) (quotient, remainder int64) { return mulAddDiv(a, b, 0, d) }

// span is an exact span of time: us + frac/parts microseconds with 0 ≤ frac < parts. parts is the Max of the limit.
type span struct{ us, frac int64 }

// add returns a + b, in fractions of 1/parts.
func (a span) add(b span, parts int64) span {
	c := span{a.us + b.us, a.frac + b.frac}
	switch {
	case c.frac >= parts:
		return span{c.us + 1, c.frac - parts}
	case c.frac < 0:
		return span{c.us - 1, c.frac + parts}
	}
	return c
}

// sub returns a - b. If a < b, the us of the result is negative.
func (a span) sub(b span, parts int64) span { return a.add(span{-b.us, -b.frac}, parts) }

func (a span) isShorterThan(b span) bool {
	return a.us < b.us || a.us == b.us && a.frac < b.frac
}

func minSpan(a, b span) span {
	if b.isShorterThan(a) {
		return b
	}
	return a
}

// withParts converts a, which has fractions of 1/oldParts, to fractions of 1/newParts. It rounds up.
func (a span) withParts(oldParts, newParts int64) span {
	frac, remainder := mulAddDiv(a.frac, newParts, 0, oldParts)
	if remainder > 0 {
		frac++
	}
	return span{a.us, 0}.add(span{0, frac}, newParts)
}

func (a span) ceil() int64 {
	if a.frac > 0 {
		return a.us + 1
	}
	return a.us
}
