package fallback

import (
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// lateHit is a hit that was decided here while the answer of the primary may still come.
type lateHit struct {
	hit        backend.Hit // with a Key of its own
	mode       limit.FailureMode
	isAdmitted bool
	chargeEnd  time.Time // until when the secondary has charged the hit
	tally      *limitTally
}

// chargeEnd returns the time until which the secondary has charged h, with the answer r.
func chargeEnd(h *backend.Hit, r *backend.Result) time.Time {
	switch now := time.Now(); {
	case r.Held: // a renewal charges nothing
		return now
	case h.Limit.Algorithm.HasHolds():
		return now.Add(time.Duration(h.Limit.Period()) * time.Microsecond)
	default:
		return now.Add(time.Duration(r.ResetAfter) * time.Microsecond)
	}
}

// awaitLateAnswer settles h once the late answer of the primary comes. It does not block.
func (l *Limiter) awaitLateAnswer(late *backend.LateError, h *lateHit) {
	h.hit.Key = slices.Clone(h.hit.Key)
	late.OnArrival(func(answer backend.Result) { l.settle(h, answer) })
}

// settle compares the decision about a late hit with the answer of the primary. After settle,
// each admitted hit is charged once: in the primary or in the secondary. A hold that the primary has
// given to a denied hit stays until it expires. The answer does not say whether the hold is new or
// renewed, and settle must not end a renewed hold.
func (l *Limiter) settle(h *lateHit, answer backend.Result) {
	b, hasHolds := l.breakerOf(&h.hit), h.hit.Limit.Algorithm.HasHolds()
	switch {
	case backend.IsNotSent(answer.Err):
		if h.isAdmitted && h.mode == limit.FailLocal && !hasHolds {
			b.replayLater(&h.hit, h.tally)
		}
	case answer.Err != nil || !answer.Allowed:
		// Nobody knows what the primary has charged, or the hit is beyond the limit.
	case h.isAdmitted:
		h.tally.addExcess(-excessOf(&h.hit))
		if h.mode == limit.FailLocal && time.Now().Before(h.chargeEnd) {
			l.refundSecondary(&h.hit)
		}
	case !h.hit.Shadow && !hasHolds && answer.ResetAfter > 0:
		b.refundLater(&h.hit, time.Now().Add(time.Duration(answer.ResetAfter)*time.Microsecond))
	}
}

// refundSecondary takes h off the secondary's counter.
func (l *Limiter) refundSecondary(h *backend.Hit) {
	refund := backend.NewSubBatch()
	defer refund.Release()
	refund.AddWithPrefix(Namespace, 0, backend.Hit{Key: h.Key, Limit: l.share(h.Limit), N: -h.N, HoldID: h.HoldID})
	refund.Take(l.ctx, time.Now(), l.o.Secondary)
}

// replayLater charges the primary with an admitted hit that the primary has certainly not
// charged.
func (b *breaker) replayLater(h *backend.Hit, lt *limitTally) {
	b.log.add(h.Key, pendingCharge{limit: h.Limit, n: h.N, tally: lt, excess: excessOf(h)})
	b.startReplay()
}

// refundLater takes a denied hit off the primary's counter, unless the time is after end.
func (b *breaker) refundLater(h *backend.Hit, end time.Time) {
	b.log.add(h.Key, pendingCharge{limit: h.Limit, n: -h.N, refundUntil: end})
	b.startReplay()
}
