package fallback

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// replayBatchSize is the number of counters in one Take of a replay.
const replayBatchSize = 64

// replay empties the log, charges the primary with the entries, and returns the number
// of hits charged. It never repeats a batch that failed, because the primary may have
// charged it. If the breaker opens again, the remaining entries go back to the log.
func (b *breaker) replay(ctx context.Context) (replayed int64) {
	for entries := b.log.drain(); len(entries) > 0; {
		if b.isOpen() || ctx.Err() != nil {
			b.log.restore(entries)
			return replayed
		}
		n := min(replayBatchSize, len(entries))
		replayed += b.limiter.replayBatch(ctx, entries[:n])
		entries = entries[n:]
	}
	return replayed
}

// replayBatch charges the primary with the entries' hits that still count under their
// algorithm. An entry's hits count at most as far as the secondary's counter is spent
// now. That counter keeps its value, so that the secondary doesn't grant its share again
// after each outage of a primary that flaps.
func (l *Limiter) replayBatch(ctx context.Context, entries []*pendingCharge) (replayed int64) {
	local, shared := l.newBatch(), l.newBatch()
	defer l.releaseBatch(local)
	defer l.releaseBatch(shared)
	for i, e := range entries {
		local.AddIn(Namespace, i, backend.Hit{Key: []byte(e.key), Limit: l.share(e.limit)}) // a peek
	}
	local.Take(ctx, time.Now(), l.o.Secondary)

	for i, e := range entries {
		capacity := local.Hits[i].Limit.Capacity()
		spent := capacity - local.Results[i].Remaining
		n := min(e.n, spent, capacity) // spent exceeds the capacity if denied hits are charged
		if n > 0 && local.Results[i].Err == nil {
			shared.Add(i, backend.Hit{Key: []byte(e.key), Limit: e.limit.Charging(), N: n, Shadow: true})
		}
	}
	shared.Take(ctx, time.Now(), l.o.Primary)
	for i := range shared.Hits {
		if shared.Results[i].Err == nil {
			replayed += shared.Hits[i].N
		}
	}
	if replayed > 0 {
		l.o.Observer.Replayed(replayed)
	}
	return replayed
}
