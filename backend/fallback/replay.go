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
	replayBatchSize  = 64                    // the most counters in one Take of a replay
	firstReplayPause = 20 * time.Millisecond // the pause before startReplay replays a log
)

func (b *breaker) startReplay() {
	if b.isReplaying.Load() || !b.isReplaying.CompareAndSwap(false, true) {
		return
	}
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil {
		l.workers.Go(b.replayUntilEmpty)
	}
}

// replayUntilEmpty replays the log of b until the log is empty. It replays only while the shard answers probes.
func (b *breaker) replayUntilEmpty() {
	l := b.limiter
	for pause := firstReplayPause; ; pause = min(2*pause, maxProbePause) {
		if !wait.Sleep(l.ctx, withJitter(pause)) {
			return
		}
		if b.isOpen() || l.options.Probe(l.ctx, b.shard) != nil {
			continue
		}
		b.replay(l.options.KeepsCounters(b.shard))
		b.isReplaying.Store(false)
		if b.log.isEmpty() || !b.isReplaying.CompareAndSwap(false, true) {
			return
		}
	}
}

// replay removes all entries from the log, and charges the primary with them. If the breaker opens meanwhile, replay puts
// the unsent entries back into the log. keepsCounters means that the primary has kept its counters in the outage.
func (b *breaker) replay(keepsCounters bool) {
	ctx := b.limiter.ctx
	for batch := range slices.Chunk(b.log.takeAll(), replayBatchSize) {
		if !b.isOpen() && ctx.Err() == nil {
			b.limiter.replayBatch(ctx, batch, keepsCounters)
			continue
		}
		for _, e := range batch {
			b.log.add([]byte(e.key), *e)
		}
	}
}

// replayBatch charges each counter in the primary with the logged hits, but at most with the spent hits of the secondary,
// because older hits no longer count. The secondary keeps its counters, so that the fallback does not admit its share
// twice in two outages. A refund is sent only before its refundUntil. Unsent hits go back into the log.
func (l *Limiter) replayBatch(ctx context.Context, entries []*loggedCharge, keepsCounters bool) {
	peeks, charges := backend.NewSubBatch(), backend.NewSubBatch()
	defer peeks.Release()
	defer charges.Release()
	for i, e := range entries {
		peeks.AddWithPrefix(Namespace, i, backend.Hit{Key: []byte(e.key), Limit: l.shareOf(e.limit)})
	}
	peeks.Take(ctx, time.Now(), l.options.Secondary)

	for i, e := range entries {
		capacity := peeks.Hits[i].Limit.Capacity()
		spentHits := capacity - peeks.Results[i].Remaining
		n := min(e.n, spentHits, capacity) // spentHits exceeds the capacity if denied hits are charged
		isCharge := n > 0 && peeks.Results[i].Err == nil
		isRefund := n < 0 && time.Now().Before(e.refundUntil)
		if isCharge || isRefund {
			charges.Add(i, backend.Hit{Key: []byte(e.key), Limit: e.limit.WithChargeDenied(true), N: n, Shadow: true})
		}
	}
	charges.Take(ctx, time.Now(), l.options.Primary)
	for chargeIndex, h := range charges.Hits {
		i, r := charges.Index[chargeIndex], &charges.Results[chargeIndex]
		switch {
		case backend.IsNotSent(r.Err):
			b := l.breakerOf(&h)
			b.log.add(h.Key, *entries[i])
			b.startReplay()
		case r.Err != nil || h.N < 0:
		default:
			if c := l.counts.Load(); c != nil { // nil if the outage or blip has ended and was reported
				c.replayedHits.Add(h.N)
			}
			l.options.Observer.HitsReplayed(h.N)
			if keepsCounters {
				entries[i].lowerPrice(h.N, r.Result, peeks.Results[i].Result)
			}
		}
	}
}

// lowerPrice subtracts the hits that are certainly within the limit from the excess of the outage. charge is the answer of
// the primary to n hits, and peek is the earlier answer of the secondary. If windows are aligned, the count of the primary
// has all hits of the window, so its answer tells how many hits are beyond the limit. The n hits can include all
// unpricedHits, and the excess of an earlier window stays. With other algorithms, the count has become smaller during the
// outage, and the excess stays.
func (e *loggedCharge) lowerPrice(n int64, charge, peek limit.Result) {
	isSameWindow := max(charge.ResetAfter-peek.ResetAfter, peek.ResetAfter-charge.ResetAfter) < e.limit.Period()/2
	if !e.limit.Algorithm.AlignsWindows() || !isSameWindow {
		return
	}
	excess := min(max(-charge.Remaining, 0), n)
	pricedHits := min(max(n-e.unpricedHits, 0), e.excess)
	e.counts.addExcess(-min(n-excess, pricedHits))
}

// lateHit is a hit that the fallback has decided, while the late answer of the primary may still come.
type lateHit struct {
	hit        backend.Hit // the Key is a copy, because a Key is valid only during Take
	mode       limit.FailureMode
	isAdmitted bool         // the fallback has admitted the hit
	excess     int64        // the part of counts.excessHits that the hit has added
	chargeEnd  time.Time    // the time at which the secondary forgets the charge of the hit
	counts     *limitCounts // the counts of the hit's limit
}

// chargeEnd returns the time at which the secondary forgets the charge of h. r is the answer of the secondary.
func chargeEnd(h *backend.Hit, r *backend.Result) time.Time {
	switch now := time.Now(); {
	case r.HoldExists: // a renewal charges nothing
		return now
	case h.Limit.Algorithm.HasHolds():
		return now.Add(time.Duration(h.Limit.Period()) * time.Microsecond)
	default:
		return now.Add(time.Duration(r.ResetAfter) * time.Microsecond)
	}
}

// settle compares the decision about a late hit with the answer of the primary. It ensures that each admitted hit is
// charged only once, in the primary or in the secondary. If the primary has given a hold to a denied hit, settle keeps
// the hold, because the hit can have renewed an older hold.
func (l *Limiter) settle(h *lateHit, answer backend.Result) {
	b, hasHolds := l.breakerOf(&h.hit), h.hit.Limit.Algorithm.HasHolds()
	switch {
	case backend.IsNotSent(answer.Err):
		if h.isAdmitted && h.mode == limit.FailLocal && !hasHolds {
			b.chargeLater(&h.hit, h.counts, h.excess)
		}
	case answer.Err != nil || !answer.Allowed:
		// The hit stays in the excess. After an error, it may be uncharged. After a denial, it is beyond the limit.
	case h.isAdmitted:
		h.counts.addExcess(-h.excess)
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
	refund.AddWithPrefix(Namespace, 0, backend.Hit{Key: h.Key, Limit: l.shareOf(h.Limit), N: -h.N, HoldID: h.HoldID})
	refund.Take(l.ctx, time.Now(), l.options.Secondary)
}

// keepForReplay adds an admitted hit to the log, for the replay after the outage. The primary has certainly not charged
// the hit. excess is the part of counts.excessHits that the hit has added.
func (b *breaker) keepForReplay(h *backend.Hit, counts *limitCounts, excess int64) {
	b.log.add(h.Key, loggedCharge{limit: h.Limit, n: h.N, counts: counts, excess: excess, unpricedHits: h.N - excess})
}

// chargeLater does what keepForReplay does, and starts the replay, which charges the primary with the hit.
func (b *breaker) chargeLater(h *backend.Hit, counts *limitCounts, excess int64) {
	b.keepForReplay(h, counts, excess)
	b.startReplay()
}

// refundLater lets the replay refund a denied hit in the primary, but not after end.
func (b *breaker) refundLater(h *backend.Hit, end time.Time) {
	b.log.add(h.Key, loggedCharge{limit: h.Limit, n: -h.N, refundUntil: end})
	b.startReplay()
}

// replayLog collects the charges and refunds that one shard must still get. It drops the hits on new counters if its
// memory would exceed maxLogBytes.
type replayLog struct {
	bytes *atomic.Int64 // the memory of the logs of all shards

	mu      sync.Mutex
	charges map[counterName]*loggedCharge
}

type counterName struct{ key, tag string }

// loggedCharge is the sum of the logged hits of one counter.
type loggedCharge struct {
	key    string
	limit  *limit.Limit
	n      int64        // the number of hits; negative for a refund
	counts *limitCounts // the counts of the limit in the last outage
	excess int64        // the part of n that counts.excessHits includes

	unpricedHits int64     // the charged hits that counts.excessHits never included, such as those of denied calls
	refundUntil  time.Time // the last time at which the replay sends the refund
}

const (
	maxLogBytes   = 32 << 20 // the largest memory of the logs of all shards; enough for about 100,000 counters
	entryOverhead = 200      // the bytes of an entry without its key
)

// add adds c to the entry of key. It does not use c.key.
func (l *replayLog) add(key []byte, c loggedCharge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.charges[counterName{string(key), c.limit.Tag()}]
	if e == nil {
		size := int64(len(key) + entryOverhead)
		if l.bytes.Add(size) > maxLogBytes {
			l.bytes.Add(-size)
			return
		}
		if l.charges == nil {
			l.charges = map[counterName]*loggedCharge{}
		}
		e = &loggedCharge{key: string(key)}
		l.charges[counterName{e.key, c.limit.Tag()}] = e
	}
	e.limit, e.n = c.limit, min(e.n+min(c.n, limit.MaxHits), limit.MaxHits)
	if e.counts != c.counts && c.counts != nil {
		e.counts, e.excess = c.counts, 0
	}
	if c.refundUntil.After(e.refundUntil) {
		e.refundUntil = c.refundUntil
	}
	e.excess += c.excess
	e.unpricedHits += c.unpricedHits
}

func (l *replayLog) isEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.charges) == 0
}

func (l *replayLog) takeAll() []*loggedCharge {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.charges {
		l.bytes.Add(-int64(len(name.key) + entryOverhead))
	}
	entries := slices.Collect(maps.Values(l.charges))
	l.charges = nil
	return entries
}
