package fallback

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/seed-81f232ab/rls/limit"
)

// ledger holds what a part has admitted without the primary, to be charged to it
// when it is back. It is bounded: what doesn't fit is forgotten, as if it had not
// come.
type ledger struct {
	seed   maphash.Seed
	room   *atomic.Int64 // bytes taken, of all parts
	shards [16]ledgerShard
}

type ledgerShard struct {
	mu   sync.Mutex
	owed map[string]*owed // by key and tag
}

// owed is what one counter of the primary has missed.
type owed struct {
	key   string
	limit *limit.Limit
	n     int64
}

const (
	// maxRoom bounds the ledgers of a Limiter, in bytes: some 100,000 counters.
	maxRoom = 32 << 20

	// overhead is what a counter takes besides its name.
	overhead = 160

	// maxOwedKey bounds the keys remembered, in bytes.
	maxOwedKey = 1024
)

func newLedger(room *atomic.Int64) *ledger {
	g := &ledger{seed: maphash.MakeSeed(), room: room}
	for i := range g.shards {
		g.shards[i].owed = map[string]*owed{}
	}
	return g
}

// add writes down that n hits of key were admitted.
func (g *ledger) add(key []byte, l *limit.Limit, n int64) {
	if len(key) > maxOwedKey {
		return
	}
	n = min(n, limit.MaxHits)
	var space [maxOwedKey + 64]byte
	name := append(append(append(space[:0], key...), 0), l.Tag()...)
	s := &g.shards[maphash.Bytes(g.seed, name)%uint64(len(g.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.owed[string(name)]; o != nil {
		o.n = min(o.n+n, limit.MaxHits)
		o.limit = l
		return
	}
	size := int64(len(name) + overhead)
	if g.room.Add(size) > maxRoom {
		g.room.Add(-size)
		return
	}
	kept := string(name)
	s.owed[kept] = &owed{key: kept[:len(key)], limit: l, n: n}
}

// take empties the ledger.
func (g *ledger) take() []*owed {
	var all []*owed
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		taken := s.owed
		s.owed = map[string]*owed{}
		s.mu.Unlock()
		for name, o := range taken {
			g.room.Add(-int64(len(name) + overhead))
			all = append(all, o)
		}
	}
	return all
}

// putBack adds what take returned and nobody has been charged.
func (g *ledger) putBack(some []*owed) {
	for _, o := range some {
		g.add([]byte(o.key), o.limit, o.n)
	}
}
