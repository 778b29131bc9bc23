package fallback

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// replayLog collects what one shard must be charged with, or gets back. All logs of a Limiter
// share one bound of memory. A log drops hits that exceed the bound.
type replayLog struct {
	bytes *atomic.Int64 // memory of all logs of the Limiter

	// parts have a lock each, because every hit admitted in an outage takes one.
	parts [16]logPart
}

type logPart struct {
	mu      sync.Mutex
	pending map[counterName]*pendingCharge
}

var partSeed = maphash.MakeSeed()

type counterName struct{ key, tag string }

// pendingCharge is the sum of the logged hits of one counter.
type pendingCharge struct {
	key    string
	limit  *limit.Limit
	n      int64       // negative if the primary gets hits back
	tally  *limitTally // of the outage
	excess int64       // hits of n that tally.excessHits contains

	// refundUntil is the time after which the primary gets no hits back.
	refundUntil time.Time
}

const (
	// maxLogBytes bounds the memory of a Limiter's logs: about 100,000 counters.
	maxLogBytes = 32 << 20

	// entryOverhead is the memory of an entry besides its key, in bytes.
	entryOverhead = 200
)

// add adds c to the entry of key. c.key is not used.
func (g *replayLog) add(key []byte, c pendingCharge) {
	p := &g.parts[maphash.Bytes(partSeed, key)%uint64(len(g.parts))]
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.pending[counterName{string(key), c.limit.Tag()}]
	if e == nil {
		size := int64(len(key) + entryOverhead)
		if g.bytes.Add(size) > maxLogBytes {
			g.bytes.Add(-size)
			return
		}
		if p.pending == nil {
			p.pending = map[counterName]*pendingCharge{}
		}
		e = &pendingCharge{key: string(key)}
		p.pending[counterName{e.key, c.limit.Tag()}] = e
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

// isEmpty reports whether the log has no entries.
func (g *replayLog) isEmpty() bool {
	for i := range g.parts {
		p := &g.parts[i]
		p.mu.Lock()
		n := len(p.pending)
		p.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// drain empties the log and returns its entries.
func (g *replayLog) drain() (entries []*pendingCharge) {
	for i := range g.parts {
		p := &g.parts[i]
		p.mu.Lock()
		pending := p.pending
		p.pending = nil
		p.mu.Unlock()
		for name := range pending {
			g.bytes.Add(-int64(len(name.key) + entryOverhead))
		}
		entries = slices.AppendSeq(entries, maps.Values(pending))
	}
	return entries
}
