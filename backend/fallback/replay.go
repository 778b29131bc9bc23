package fallback

import (
	"context"
	"slices"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/limit"
)

// replayBatchSize is the number of counters in one Take of a replay.
const replayBatchSize = 64

// firstReplayPause is the pause before the log of a closed breaker is replayed.
const firstReplayPause = 20 * time.Millisecond

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

// replayUntilEmpty replays the log of b until the log is empty. While the breaker is open, it
// waits.
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

// replay empties the log and charges the primary with the entries. It never repeats a batch that
// was sent and has failed, because the primary may have charged the hits. Entries that were not sent
// go back to the log, also if the breaker opens again. countersKept reports that the primary has
// kept its counters in the outage.
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

// replayBatch charges the primary with the entries' hits that still count under their
// algorithm. An entry's hits count at most as far as the secondary's counter is spent
// now. The secondary's counter keeps its value, so that the secondary doesn't grant its
// share again after each outage of a primary that flaps.
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
			shared.Add(i, backend.Hit{Key: []byte(e.key), Limit: e.limit.Charging(), N: n, Shadow: true})
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

// lowerPrice takes hits off the price of the outage that are within the limit for certain.
// charge is the answer of the primary to n hits, and peek the answer of the secondary before.
//
// The count of an aligned window has all hits that were admitted in this window. If the count
// is within the limit after the charge, so are the hits. Otherwise, at most the hits beyond
// the limit are too many. Counts of other algorithms fall during the outage, so they prove
// nothing.
func (e *pendingCharge) lowerPrice(n int64, charge, peek limit.Result) {
	isSameWindow := max(charge.ResetAfter-peek.ResetAfter, peek.ResetAfter-charge.ResetAfter) < e.limit.Period()/2
	if !e.limit.Algorithm.Aligned() || !isSameWindow {
		return
	}
	excess := min(max(-charge.Remaining, 0), n)
	e.tally.addExcess(-min(n-excess, e.excess))
}
