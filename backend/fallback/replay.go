package fallback

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	replayBatchSize  = 64                    // counters in one Take of a replay
	firstReplayPause = 20 * time.Millisecond // before the log of a closed breaker is replayed
)

// startReplay replays the log of b in the background, once the primary answers.
func (b *breaker) startReplay() {
	if b.isReplaying.Load() || !b.isReplaying.CompareAndSwap(false, true) {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.probes.Go(b.replayUntilEmpty)
	}
}

// replayUntilEmpty replays the log of b until the log is empty. While the breaker is open, it waits.
func (b *breaker) replayUntilEmpty() {
	l := b.limiter
	for pause := firstReplayPause; ; pause = min(2*pause, maxProbePause) {
		if !wait.Sleep(l.ctx, withJitter(pause)) {
			return
		}
		if b.isOpen() || l.o.Probe(l.ctx, b.shard) != nil {
			continue
		}
		b.replay(l.o.KeepsCounters != nil && l.o.KeepsCounters(b.shard))
		b.isReplaying.Store(false)
		if b.log.isEmpty() || !b.isReplaying.CompareAndSwap(false, true) {
			return
		}
	}
}

// replay empties the log and charges the primary with the entries. It never repeats a batch that was sent, because
// the primary may have charged the hits. Other entries go back to the log. countersKept reports that the primary
// has kept its counters in the outage.
func (b *breaker) replay(countersKept bool) {
	ctx := b.limiter.ctx
	for batch := range slices.Chunk(b.log.drain(), replayBatchSize) {
		if !b.isOpen() && ctx.Err() == nil {
			b.limiter.replayBatch(ctx, batch, countersKept)
			continue
		}
		for _, e := range batch {
			b.log.add([]byte(e.key), *e)
		}
	}
}

// replayBatch charges the primary with the entries' hits that still count: at most the hits that the secondary's
// counter has spent now. This counter keeps its value, so that an outage soon after does not grant the share again.
func (l *Limiter) replayBatch(ctx context.Context, entries []*pendingCharge, countersKept bool) {
	local, shared := backend.NewSubBatch(), backend.NewSubBatch()
	defer local.Release()
	defer shared.Release()
	for i, e := range entries {
		local.AddWithPrefix(Namespace, i, backend.Hit{Key: []byte(e.key), Limit: l.share(e.limit)}) // a peek
	}
	local.Take(ctx, time.Now(), l.o.Secondary)

	for i, e := range entries {
		capacity := local.Hits[i].Limit.Capacity()
		spent := capacity - local.Results[i].Remaining
		n := min(e.n, spent, capacity) // spent exceeds the capacity if denied hits are charged
		if n > 0 && local.Results[i].Err == nil || n < 0 && time.Now().Before(e.refundUntil) {
			shared.Add(i, backend.Hit{Key: []byte(e.key), Limit: e.limit.WithChargeDenied(true), N: n, Shadow: true})
		}
	}
	shared.Take(ctx, time.Now(), l.o.Primary)
	for j, h := range shared.Hits {
		i, r := shared.Index[j], &shared.Results[j]
		switch {
		case backend.IsNotSent(r.Err):
			b := l.breakerOf(&h)
			b.log.add(h.Key, *entries[i])
			b.startReplay()
		case r.Err != nil || h.N < 0:
		default:
			if t := l.tally.Load(); t != nil { // else the blip has been reported
				t.replayed.Add(h.N)
			}
			l.o.Observer.Replayed(h.N)
			if countersKept {
				entries[i].lowerPrice(h.N, r.Result, local.Results[i].Result)
			}
		}
	}
}

// lowerPrice takes hits off the price of the outage that are within the limit for certain. charge is the answer of
// the primary to n hits, and peek the answer of the secondary before. The count of an aligned window has all hits of
// this window, so at most the hits beyond the limit are too many. Other counts fall during the outage.
func (e *pendingCharge) lowerPrice(n int64, charge, peek limit.Result) {
	isSameWindow := max(charge.ResetAfter-peek.ResetAfter, peek.ResetAfter-charge.ResetAfter) < e.limit.Period()/2
	if !e.limit.Algorithm.AlignsWindows() || !isSameWindow {
		return
	}
	excess := min(max(-charge.Remaining, 0), n)
	e.tally.addExcess(-min(n-excess, e.excess))
}

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

// settle compares the decision about a late hit with the answer of the primary. Each admitted hit is then charged
// once: in the primary or in the secondary. A hold that the primary has given to a denied hit stays until it
// expires, because it can be a renewed hold.
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

func (l *Limiter) refundSecondary(h *backend.Hit) {
	refund := backend.NewSubBatch()
	defer refund.Release()
	refund.AddWithPrefix(Namespace, 0, backend.Hit{Key: h.Key, Limit: l.share(h.Limit), N: -h.N, HoldID: h.HoldID})
	refund.Take(l.ctx, time.Now(), l.o.Secondary)
}

// replayLater charges the primary with an admitted hit that it has certainly not charged.
func (b *breaker) replayLater(h *backend.Hit, lt *limitTally) {
	b.log.add(h.Key, pendingCharge{limit: h.Limit, n: h.N, tally: lt, excess: excessOf(h)})
	b.startReplay()
}

// refundLater takes a denied hit off the primary's counter, unless the time is after end.
func (b *breaker) refundLater(h *backend.Hit, end time.Time) {
	b.log.add(h.Key, pendingCharge{limit: h.Limit, n: -h.N, refundUntil: end})
	b.startReplay()
}

// replayLog collects what one shard must be charged with, or gets back. A log drops hits that exceed maxLogBytes.
type replayLog struct {
	bytes *atomic.Int64 // memory of all logs of the Limiter

	mu      sync.Mutex
	pending map[counterName]*pendingCharge
}

type counterName struct{ key, tag string }

// pendingCharge is the sum of the logged hits of one counter.
type pendingCharge struct {
	key    string
	limit  *limit.Limit
	n      int64       // negative if the primary gets hits back
	tally  *limitTally // of the outage
	excess int64       // hits of n that tally.excessHits contains

	refundUntil time.Time // after it, the primary gets no hits back
}

const (
	maxLogBytes   = 32 << 20 // of a Limiter's logs: about 100,000 counters
	entryOverhead = 200      // bytes of an entry besides its key
)

// add adds c to the entry of key. c.key is not used.
func (g *replayLog) add(key []byte, c pendingCharge) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.pending[counterName{string(key), c.limit.Tag()}]
	if e == nil {
		size := int64(len(key) + entryOverhead)
		if g.bytes.Add(size) > maxLogBytes {
			g.bytes.Add(-size)
			return
		}
		if g.pending == nil {
			g.pending = map[counterName]*pendingCharge{}
		}
		e = &pendingCharge{key: string(key)}
		g.pending[counterName{e.key, c.limit.Tag()}] = e
	}
	e.limit, e.n = c.limit, min(e.n+min(c.n, limit.MaxHits), limit.MaxHits)
	if e.tally != c.tally && c.tally != nil {
		e.tally, e.excess = c.tally, 0
	}
	if c.refundUntil.After(e.refundUntil) {
		e.refundUntil = c.refundUntil
	}
	e.excess += c.excess
}

func (g *replayLog) isEmpty() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.pending) == 0
}

func (g *replayLog) drain() []*pendingCharge {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.pending {
		g.bytes.Add(-int64(len(name.key) + entryOverhead))
	}
	entries := slices.Collect(maps.Values(g.pending))
	g.pending = nil
	return entries
}
