package fallback

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/limit"
)

// replayLog collects hits that a shard admitted behind its open breaker. All logs of a
// Limiter share one bound of memory. A log drops hits that exceed the bound.
type replayLog struct {
	bytes *atomic.Int64 // memory of all logs of the Limiter

	mu      sync.Mutex
	pending map[counterName]*pendingCharge
}

type counterName struct{ key, tag string }

// pendingCharge is the sum of the logged hits of one counter.
type pendingCharge struct {
	key   string
	limit *limit.Limit
	n     int64
}

const (
	// maxLogBytes bounds the memory of a Limiter's logs: about 100,000 counters.
	maxLogBytes = 32 << 20

	// entryOverhead is the memory of an entry besides its key, in bytes.
	entryOverhead = 180
)

// add records that n hits of key were admitted.
func (g *replayLog) add(key []byte, l *limit.Limit, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.pending[counterName{string(key), l.Tag()}]
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
		g.pending[counterName{e.key, l.Tag()}] = e
	}
	e.limit, e.n = l, min(e.n+min(n, limit.MaxHits), limit.MaxHits)
}

// drain empties the log and returns its entries.
func (g *replayLog) drain() []*pendingCharge {
	g.mu.Lock()
	pending := g.pending
	g.pending = nil
	g.mu.Unlock()
	for name := range pending {
		g.bytes.Add(-int64(len(name.key) + entryOverhead))
	}
	return slices.Collect(maps.Values(pending))
}
