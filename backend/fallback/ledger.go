package fallback

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// ledger holds what was admitted without the primary, to be charged to it when it
// is back. It is bounded: what doesn't fit is forgotten, as if it had not come.
type ledger struct {
	seed   maphash.Seed
	shards [16]ledgerShard
}

type ledgerShard struct {
	mu   sync.Mutex
	owed map[string]*owed // by key and tag
}

type owed struct {
	key   []byte
	limit *limit.Limit
	n     int64
}

const (
	// maxOwed bounds the counters of a shard of the ledger.
	maxOwed = 8192

	// maxOwedKey bounds the keys remembered, in bytes.
	maxOwedKey = 1024

	// batch is how many counters are settled in one Take.
	batch = 64
)

func newLedger() *ledger {
	g := &ledger{seed: maphash.MakeSeed()}
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
	if len(s.owed) < maxOwed {
		s.owed[string(name)] = &owed{key: append([]byte(nil), key...), limit: l, n: min(n, limit.MaxHits)}
	}
}

// take empties the ledger.
func (g *ledger) take() []*owed {
	var all []*owed
	for i := range g.shards {
		s := &g.shards[i]
		s.mu.Lock()
		for _, o := range s.owed {
			all = append(all, o)
		}
		s.owed = map[string]*owed{}
		s.mu.Unlock()
	}
	return all
}

// settle charges to the primary what its counters missed, once, and takes it off
// the secondary's, so that the next time it isn't charged again. Only what still
// counts under a limit's algorithm is charged: what the secondary's counter has
// spent by now. A batch that fails is not tried again, as it may have been
// charged.
func (p *part) settle(ctx context.Context) (carried int64) {
	all := p.ledger.take()
	for len(all) > 0 && ctx.Err() == nil {
		some := all[:min(batch, len(all))]
		all = all[len(some):]
		carried += p.limiter.carry(ctx, some)
	}
	return carried
}

// carry settles some of the ledger.
func (l *Limiter) carry(ctx context.Context, some []*owed) (carried int64) {
	now := time.Now()
	local := l.calls.Get().(*standIn)
	defer l.release(local)
	for i, o := range some {
		local.add(i, backend.Hit{Key: o.key, Limit: l.scaled.of(o.limit, l.ratio(o.limit))})
	}
	local.nameLocally()
	l.o.Secondary.Take(ctx, now, local.hits, local.results) // peeks

	shared := l.calls.Get().(*standIn)
	defer l.release(shared)
	for i, o := range some {
		spent := local.hits[i].Limit.Capacity() - local.results[i].Remaining
		n := min(o.n, spent)
		local.hits[i].N = -max(n, 0)
		if n > 0 && local.results[i].Err == nil {
			shared.add(i, backend.Hit{Key: o.key, Limit: o.limit.Charging(), N: n, Shadow: true})
		}
	}
	if len(shared.hits) == 0 {
		return 0
	}
	l.o.Primary.Take(ctx, now, shared.hits, shared.results)
	l.o.Secondary.Take(ctx, now, local.hits, local.results)
	for i := range shared.hits {
		if shared.results[i].Err == nil {
			carried += shared.hits[i].N
		}
	}
	return carried
}
