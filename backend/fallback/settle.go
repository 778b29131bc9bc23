package fallback

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
)

// batch is how many counters are settled in one Take.
const batch = 64

// settle charges to the primary what its counters have missed, once, batch by
// batch, and returns how many hits that were. A batch that fails is not tried
// again, as it may have been charged; if the part opens again, the rest waits.
func (p *part) settle(ctx context.Context) (carried int64) {
	for rest := p.ledger.take(); len(rest) > 0; {
		if p.isOpen() || ctx.Err() != nil {
			p.ledger.putBack(rest)
			return carried
		}
		some := rest[:min(batch, len(rest))]
		rest = rest[len(some):]
		carried += p.limiter.carry(ctx, some)
	}
	return carried
}

// carry charges some of a ledger: of each counter what still counts under its
// algorithm, which is at most what the secondary's counter has spent by now. That
// counter stays as it is, so that a primary that flaps doesn't make the secondary
// grant its share over and over.
func (l *Limiter) carry(ctx context.Context, entries []*owed) (carried int64) {
	local, shared := l.calls.Get().(*backend.SubBatch), l.calls.Get().(*backend.SubBatch)
	defer l.release(local)
	defer l.release(shared)
	for i, o := range entries {
		local.AddIn(Namespace, i, backend.Hit{Key: []byte(o.key), Limit: l.shares.Of(o.limit)}) // a peek
	}
	local.Take(ctx, time.Now(), l.o.Secondary)

	for i, o := range entries {
		most := local.Hits[i].Limit.Capacity()
		n := min(o.n, most-local.Results[i].Remaining, most) // Remaining is negative in debt
		if n > 0 && local.Results[i].Err == nil {
			shared.Add(i, backend.Hit{Key: []byte(o.key), Limit: o.limit.Charging(), N: n, Shadow: true})
		}
	}
	shared.Take(ctx, time.Now(), l.o.Primary)
	for i := range shared.Hits {
		if shared.Results[i].Err == nil {
			carried += shared.Hits[i].N
		}
	}
	return carried
}
