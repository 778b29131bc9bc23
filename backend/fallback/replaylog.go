package fallback

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/limit"
)

// replayLog collects hits that a shard admitted behind its open breaker. All logs of a
// Limiter share one bound of memory. A log drops hits that exceed the bound.
type replayLog struct {
	seed    maphash.Seed
	bytes   *atomic.Int64 // memory of all logs of the Limiter
	stripes [16]stripe
}

// stripe is the part of a log behind one mutex.
type stripe struct {
	mu      sync.Mutex
	pending map[string]*pendingCharge // by key and Tag
}

// pendingCharge is the sum of the logged hits of one counter.
type pendingCharge struct {
	key   string
	limit *limit.Limit
	n     int64
}

const (
	// maxLogBytes bounds the memory of a Limiter's logs: about 100,000 counters.
	maxLogBytes = 32 << 20

	// entryOverhead is the memory of an entry besides its name, in bytes.
	entryOverhead = 160

	// maxLoggedKey is the length of the longest key that is logged, in bytes.
	maxLoggedKey = 1024
)

func newReplayLog(bytes *atomic.Int64) *replayLog {
	g := &replayLog{seed: maphash.MakeSeed(), bytes: bytes}
	for i := range g.stripes {
		g.stripes[i].pending = map[string]*pendingCharge{}
	}
	return g
}

// add records that n hits of key were admitted.
func (g *replayLog) add(key []byte, l *limit.Limit, n int64) {
	if len(key) > maxLoggedKey {
		return
	}
	n = min(n, limit.MaxHits)
	var space [maxLoggedKey + 64]byte
	name := append(append(append(space[:0], key...), 0), l.Tag()...)
	s := &g.stripes[maphash.Bytes(g.seed, name)%uint64(len(g.stripes))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.pending[string(name)]; e != nil {
		e.n = min(e.n+n, limit.MaxHits)
		e.limit = l
		return
	}
	size := int64(len(name) + entryOverhead)
	if g.bytes.Add(size) > maxLogBytes {
		g.bytes.Add(-size)
		return
	}
	ownName := string(name)
	s.pending[ownName] = &pendingCharge{key: ownName[:len(key)], limit: l, n: n}
}

// drain empties the log and returns its entries.
func (g *replayLog) drain() []*pendingCharge {
	var entries []*pendingCharge
	for i := range g.stripes {
		s := &g.stripes[i]
		s.mu.Lock()
		pending := s.pending
		s.pending = map[string]*pendingCharge{}
		s.mu.Unlock()
		for name, e := range pending {
			g.bytes.Add(-int64(len(name) + entryOverhead))
			entries = append(entries, e)
		}
	}
	return entries
}

// restore adds entries of drain that were not replayed.
func (g *replayLog) restore(entries []*pendingCharge) {
	for _, e := range entries {
		g.add([]byte(e.key), e.limit, e.n)
	}
}
