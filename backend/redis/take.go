package redis

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// Take implements backend.Limiter. It returns as soon as ctx ends or the budget is used up. In both cases, the caller
// does not know whether Redis charges the hits that were already sent.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if len(hits) == 0 {
		return
	}
	if ctx.Err() != nil {
		failAll(results, fmt.Errorf("redis: not sent: %w", context.Cause(ctx)))
		return
	}
	start := time.Now()
	r := l.newRequest(now, start, l.budget(ctx, start))
	r.ctx = ctx
	for i := range hits {
		r.add(l.queues[l.ShardOf(&hits[i])], i, &hits[i], hits[i].N)
	}
	r.send()
	switch err := r.wait(ctx); {
	case err == nil:
		for _, p := range r.parts {
			p.copyResults(results)
		}
		if backend.IsGroupDenied(hits, results) {
			l.refund(ctx, now, r, hits, results)
		}
		l.recycle(r)
	case backend.ReasonOf(err) != backend.ReasonNone:
		r.setLateResults(results, err)
		r.abandon(l)
	default:
		failAll(results, err)
		r.abandon(l)
	}
}

// canDivideGroups reports whether the hits of a group can be in several partitions. rls then charges them in several steps.
func (l *Limiter) canDivideGroups() bool { return len(l.queues) > 1 }

// refundMillis returns the time from a charge until Redis can have executed its refund, in milliseconds. A slow Redis can
// execute the refund after the end of the Take. If groups are never divided, there are no refunds, and the time is 0.
func (l *Limiter) refundMillis() int64 {
	if !l.canDivideGroups() {
		return 0
	}
	return (2*l.options.Timeout + lateAnswerTime).Milliseconds()
}

// budget returns how long a Take may last: at most the timeout, and at most three quarters of the time until the
// caller's deadline, so that the fallback can still decide. Envoy's default deadline is 20 ms, of which a Take gets 15.
func (l *Limiter) budget(ctx context.Context, now time.Time) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(l.Timeout(), deadline.Sub(now)*3/4)
	}
	return l.Timeout()
}

// refund refunds the charges of chargedRequest after a hit has denied the group. Other callers see the charges until
// the refund arrives. refund skips a charge that may have expired, because the refund would lower a new count.
func (l *Limiter) refund(ctx context.Context, now time.Time, chargedRequest *request, hits []backend.Hit, results []backend.Result) {
	var r *request
	for _, p := range chargedRequest.parts {
		for i := range p.hits {
			h := &p.hits[i]
			chargeLife, anonymousHoldExpiry := h.answer.ResetAfter, int64(0)
			if h.Limit.Algorithm.HasHolds() {
				chargeLife = h.Limit.Period()
				if h.HoldID == "" {
					anonymousHoldExpiry = h.answer.decidedAt + chargeLife
				}
			}
			if !h.answer.isCharged || time.Since(chargedRequest.start).Microseconds() >= chargeLife {
				continue
			}
			if r == nil {
				start := time.Now()
				r = l.newRequest(now, start, chargedRequest.deadline.Sub(start))
				r.ctx = ctx
			}
			refund := r.add(p.queue, h.index, &hits[h.index], -h.N)
			refund.refundedHoldExpiry, refund.WindowStart = anonymousHoldExpiry, h.windowStart
		}
	}
	if r == nil {
		return
	}
	r.send()
	if r.wait(ctx) != nil {
		r.abandon(l) // the hits stay charged, and the results still show the charges
		return
	}
	for _, p := range r.parts {
		for i := range p.hits {
			if h := &p.hits[i]; h.answer.Err == nil {
				results[h.index] = h.answer.Result
			}
		}
	}
	l.recycle(r)
}

func failAll(results []backend.Result, err error) {
	for i := range results {
		results[i] = backend.Result{Err: err}
	}
}
