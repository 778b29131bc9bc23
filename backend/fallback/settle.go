package fallback

import (
	"errors"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/limit"
)

// lateDecision is a decision about a hit whose answer from the primary may still come.
type lateDecision struct {
	hit     backend.Hit // with a Key of its own
	result  backend.Result
	decided time.Time
	tally   *limitTally
}

// settleLater waits for the late answer to h, without blocking. lt has the price of h's limit.
func (l *Limiter) settleLater(late *backend.LateError, now time.Time, h *backend.Hit, r *backend.Result, lt *limitTally) {
	d := &lateDecision{hit: *h, result: *r, decided: now, tally: lt}
	d.hit.Key = slices.Clone(h.Key)
	late.OnArrival(func(answer backend.Result) { l.settle(d, answer) })
}

// settle compares a decision with the late answer of the primary. After settle, each admitted
// hit is charged once: in the primary or in the secondary.
func (l *Limiter) settle(d *lateDecision, answer backend.Result) {
	h, b := &d.hit, l.breakerOf(&d.hit)
	isSameWindow := time.Since(d.decided).Microseconds() < d.result.ResetAfter
	switch {
	case errors.Is(answer.Err, backend.ErrNotSent):
		if d.result.Allowed && d.result.Mode == limit.FailLocal {
			b.chargeLater(h, d.tally)
		}
	case answer.Err != nil || !answer.Allowed:
		// Nobody knows what the primary has charged, or the hit is beyond the limit.
	case d.result.Allowed:
		d.tally.addExcess(-excessOf(h))
		if d.result.Mode == limit.FailLocal && isSameWindow {
			l.refundSecondary(h)
		}
	case !h.Shadow && time.Duration(answer.ResetAfter) > 0:
		b.log.add(h.Key, pendingCharge{limit: h.Limit, n: -h.N, refundUntil: time.Now().Add(time.Duration(answer.ResetAfter) * time.Microsecond)})
		b.settleSoon()
	}
}

// refundSecondary takes h off the secondary's counter.
func (l *Limiter) refundSecondary(h *backend.Hit) {
	refund := backend.NewSubBatch()
	defer refund.Release()
	refund.AddWithPrefix(Namespace, 0, backend.Hit{Key: h.Key, Limit: l.share(h.Limit), N: -h.N})
	refund.Take(l.ctx, time.Now(), l.o.Secondary)
}

// chargeLater charges the primary with an admitted hit that it has certainly not charged.
func (b *breaker) chargeLater(h *backend.Hit, lt *limitTally) {
	b.log.add(h.Key, pendingCharge{limit: h.Limit, n: h.N, tally: lt, excess: excessOf(h)})
	b.settleSoon()
}

// firstSettlePause is the pause before the log of a closed breaker is replayed.
const firstSettlePause = 20 * time.Millisecond

// settleSoon replays the log of b in the background, as soon as the primary answers.
func (b *breaker) settleSoon() {
	if b.isSettling.Load() || !b.isSettling.CompareAndSwap(false, true) {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.probes.Go(b.settleLog)
	}
}

// settleLog replays the log of b until it is empty. An open breaker has to close before.
func (b *breaker) settleLog() {
	l := b.limiter
	for pause := firstSettlePause; ; pause = min(2*pause, maxProbePause) {
		if !wait.Sleep(l.ctx, withJitter(pause)) {
			return
		}
		if b.isOpen() || l.o.Probe(l.ctx, b.shard) != nil {
			continue
		}
		b.replay(l.o.KeepsCounters != nil && l.o.KeepsCounters(b.shard))
		b.isSettling.Store(false)
		if b.log.isEmpty() || !b.isSettling.CompareAndSwap(false, true) {
			return
		}
	}
}
