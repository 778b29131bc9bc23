// Package region divides the limits of scope global among regions. A region buys hits of a limit from a ledger in the global
// Redis, and its replicas count the bought hits in the Redis of the region. So a call never waits for another region, and all
// regions together admit no more than the limit. limit.RegionShare says why.
//
// Everything that the replicas of a region must agree on is in the Redis of the region, for each counter and window:
//
//   - the hits that the region has bought: a counter which only grows, so a replica with an old number denies too early,
//     but never admits too much;
//   - the hits that the region has used: a counter with the limit Floor + bought;
//   - the hold of the replica that buys.
package region

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

// Options configure a Limiter. All are required.
type Options struct {
	// Next decides the hits, with limits that the Limiter replaces.
	Next backend.Layer

	// Counters are the counters of this region, without a fallback.
	Counters backend.Limiter

	// ServerTime returns the time of the server that counts h. If the time is not known, ok is false.
	ServerTime func(ctx context.Context, h *backend.Hit, callersNow time.Time) (now time.Time, ok bool)

	Ledger  backend.Ledger
	Regions limit.Regions
	Region  string // the name of this region

	OnTrip func(error) // is called after each trip to the ledger
}

// Limiter is a backend.Layer that decides hits of scope global with the hits that this region has bought. Other hits go to
// Options.Next.
type Limiter struct {
	options   Options
	replicaID string
	seeds     fingerprint.Seeds
	stripes   [stripeCount]stripe
	orders    chan *stock

	roundTrip         atomic.Int64 // the time of the last purchase in microseconds
	trips, boughtHits atomic.Int64
}

var _ backend.Layer = (*Limiter)(nil)

// New returns a Limiter. Without Run, it buys nothing.
func New(o Options) *Limiter {
	var id [8]byte
	_, _ = rand.Read(id[:])
	l := &Limiter{options: o, replicaID: hex.EncodeToString(id[:]), seeds: fingerprint.NewSeeds(), orders: make(chan *stock, maxOrders)}
	l.roundTrip.Store(firstRoundTrip)
	for i := range l.stripes {
		l.stripes[i].stocks = map[fingerprint.ID]*stock{}
	}
	return l
}

// call is a Take in progress.
type call struct {
	backend.SubBatch            // the hits with replaced limits, and then the peeks of bought hits
	plans            []hitPlan  // one for each hit of the Take
	peeked           []*hitPlan // the part of each peek
}

// hitPlan is how the region counts one hit.
type hitPlan struct {
	stock            *stock       // nil if the hit has another scope
	window           *limit.Limit // the limit of the window
	windowStart      int64        // 0 means the window of the Redis
	shouldReadBought bool         // the call should look for bought hits
	isRetried        bool
}

var calls = sync.Pool{New: func() any { return new(call) }}

func (c *call) release() {
	clear(c.Hits)
	clear(c.plans)
	clear(c.peeked)
	c.Hits, c.Index, c.Results, c.plans, c.peeked = c.Hits[:0], c.Index[:0], c.Results[:0], c.plans[:0], c.peeked[:0]
	calls.Put(c)
}

func hasGlobalHit(hits []backend.Hit) bool {
	for i := range hits {
		if hits[i].Limit.Scope == limit.Global {
			return true
		}
	}
	return false
}

// Take implements backend.Limiter. If the region has bought hits since this replica last looked, Take asks once more about
// the hits that were denied.
func (l *Limiter) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	if !hasGlobalHit(hits) {
		l.options.Next.Take(ctx, now, hits, results)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	for i := range hits {
		if h := &hits[i]; h.Limit.Scope == limit.Global && h.N <= -limit.MaxHits {
			if err := l.resetLimit(ctx, now, h); err != nil {
				results[i] = backend.Result{Err: err}
				continue
			}
		}
		results[i].Err = nil
	}
	l.addRegionalHits(ctx, now, c, hits, true)
	c.SubBatch.Take(ctx, now, l.options.Next)
	l.readBoughtHits(c, len(hits))
	if l.markRetries(ctx, now, c, hits) {
		backend.TakePart(ctx, now, l.options.Next, c.Hits[:len(hits)], c.Results[:len(hits)], func(i int) bool { return c.plans[i].isRetried })
	}
	isGroupDenied := backend.IsGroupDenied(c.Hits[:len(hits)], c.Results[:len(hits)])
	for i := range hits {
		if results[i].Err != nil {
			continue
		}
		results[i] = c.Results[i]
		if p := &c.plans[i]; p.stock != nil && results[i].Err == nil {
			l.handleAnswer(&hits[i], &results[i], p, isGroupDenied && hits[i].IsInGroup())
		}
	}
}

// addRegionalHits adds to c the hits as the region counts them. mayPeek adds peeks of the bought hits, for counters that have few
// hits left.
func (l *Limiter) addRegionalHits(ctx context.Context, now time.Time, c *call, hits []backend.Hit, mayPeek bool) {
	for i, h := range hits {
		p := hitPlan{}
		if h.Limit.Scope == limit.Global {
			p = l.planHit(ctx, now, &hits[i], mayPeek)
			h.Limit = p.window
			if h.WindowStart == 0 {
				h.WindowStart = p.windowStart
			}
		}
		c.Add(i, h)
		c.plans = append(c.plans, p)
	}
	for i := range c.plans {
		if p := &c.plans[i]; p.shouldReadBought {
			c.Add(len(c.Hits), backend.Hit{Key: hits[i].Key, Limit: p.stock.share.Purchases, WindowStart: p.windowStart, Shadow: true})
			c.peeked = append(c.peeked, p)
		}
	}
}

// readBoughtHits reads the answers to the peeks of bought hits, which follow the answers to the hits.
func (l *Limiter) readBoughtHits(c *call, hitCount int) {
	for i, p := range c.peeked {
		if r := &c.Results[hitCount+i]; r.Err == nil && r.Source == backend.SourceRedis {
			p.stock.setBoughtHits(p.windowStart, p.stock.share.Purchases.Spent(r.Result))
		}
	}
}

// markRetries marks the denied hits that can pass now, because the region has meanwhile bought hits. If a group was denied,
// the whole group passes or none, so it is asked again only if all its denied hits can pass.
func (l *Limiter) markRetries(ctx context.Context, now time.Time, c *call, hits []backend.Hit) (hasRetries bool) {
	isGroupDenied, retriesGroup := false, true
	for i := range hits {
		p, r := &c.plans[i], &c.Results[i]
		if r.Err != nil || r.Allowed || hits[i].N <= 0 {
			continue
		}
		canPass := false
		if p.stock != nil && !r.IsDegraded() {
			if current := l.planHit(ctx, now, &hits[i], false); current.windowStart == p.windowStart && current.window.Max() > p.window.Max() || p.windowStart == 0 && current.windowStart != 0 {
				*p, canPass = current, true
				c.Hits[i].Limit, c.Hits[i].WindowStart = p.window, p.windowStart
			}
		}
		if c.Hits[i].DeniesGroup(r) {
			isGroupDenied, retriesGroup = true, retriesGroup && canPass
		} else if canPass {
			p.isRetried, hasRetries = true, true
		}
	}
	if isGroupDenied && retriesGroup {
		for i := range hits {
			if hits[i].IsInGroup() {
				c.plans[i].isRetried, hasRetries = true, true
			}
		}
	}
	return hasRetries
}

// Peek implements backend.Layer. It asks the ledger what can still be bought.
func (l *Limiter) Peek(ctx context.Context, now time.Time, hits []backend.Hit, peeks []backend.Peek) {
	if !hasGlobalHit(hits) {
		l.options.Next.Peek(ctx, now, hits, peeks)
		return
	}
	c := calls.Get().(*call)
	defer c.release()
	l.readHeldHits(ctx, now, hits)
	l.addRegionalHits(ctx, now, c, hits, false)
	l.options.Next.Peek(ctx, now, c.Hits, peeks)
	for i := range peeks {
		if p := &c.plans[i]; p.stock != nil && peeks[i].Err == nil {
			p.stock.mu.Lock()
			if peeks[i].Source == backend.SourceRedis && p.stock.windows[0].start == p.windowStart {
				p.stock.left = peeks[i].Remaining
			}
			p.stock.answerForAllRegions(&hits[i], &peeks[i].Result)
			p.stock.mu.Unlock()
		}
	}
}

// readHeldHits reads what the region has bought for the counters of hits, and what the ledger can still sell.
func (l *Limiter) readHeldHits(ctx context.Context, now time.Time, hits []backend.Hit) {
	var peeks []backend.Hit
	var plans []hitPlan
	var orders []*backend.Order
	for i := range hits {
		h := &hits[i]
		if h.Limit.Scope != limit.Global {
			continue
		}
		p := l.planHit(ctx, now, h, false)
		start, end := p.window.WindowAt(now.UnixMicro())
		if p.windowStart != 0 {
			start, end = p.window.WindowAt(p.windowStart)
		}
		plans = append(plans, p)
		peeks = append(peeks, backend.Hit{Key: h.Key, Limit: p.stock.share.Purchases, WindowStart: start, Shadow: true})
		orders = append(orders, &backend.Order{Key: h.Key, Limit: h.Limit, Share: p.stock.share, Region: l.options.Region, WindowStart: start, WindowEnd: end})
	}
	results := make([]backend.Result, len(peeks))
	l.options.Counters.Take(ctx, now, peeks, results)
	l.options.Ledger.Buy(ctx, orders)
	for i, p := range plans {
		if results[i].Err == nil {
			p.stock.setBoughtHits(peeks[i].WindowStart, p.stock.share.Purchases.Spent(results[i].Result))
		}
		p.stock.mu.Lock()
		if p.stock.isCutOff = orders[i].Err != nil; !p.stock.isCutOff {
			p.stock.free = orders[i].Free
		}
		p.stock.mu.Unlock()
	}
}

// HeldHits says what a region has of a limit in the current window.
type HeldHits struct {
	Region string `json:"region"`
	Floor  int64  `json:"floor"`   // the hits that the region can admit without a purchase
	Bought int64  `json:"bought"`  // the hits that the region has bought
	Left   int64  `json:"left"`    // the hits that the region has left
	Free   int64  `json:"free"`    // the hits that all regions can still buy
	CutOff bool   `json:"cut_off"` // the global Redis does not answer
}

// HeldHits returns what this replica knows of the holding of its region, or nil if h has another scope.
func (l *Limiter) HeldHits(h *backend.Hit) *HeldHits {
	if h.Limit.Scope != limit.Global {
		return nil
	}
	e := l.planHit(context.Background(), time.Now(), h, false).stock
	e.mu.Lock()
	defer e.mu.Unlock()
	return &HeldHits{l.options.Region, e.share.Floor, e.windows[0].bought, max(e.left, 0), e.free, e.isCutOff}
}

// RegionalHit returns h as the region counts it.
func (l *Limiter) RegionalHit(h *backend.Hit) *backend.Hit {
	if h.Limit.Scope != limit.Global {
		return h
	}
	p, regional := l.planHit(context.Background(), time.Now(), h, false), *h
	regional.Limit, regional.WindowStart = p.window, p.windowStart
	return &regional
}

// Forget implements backend.Layer.
func (l *Limiter) Forget(h *backend.Hit) {
	if h == nil {
		for i := range l.stripes {
			s := &l.stripes[i]
			s.mu.Lock()
			clear(s.stocks)
			s.mu.Unlock()
		}
	} else if h.Limit.Scope == limit.Global {
		regional := l.RegionalHit(h)
		l.forgetStock(h)
		h = regional
	}
	l.options.Next.Forget(h)
}

// resetLimit forgets the sold hits of h's counter in the ledger, and the hits that this region has bought. The caller resets the
// counter of this region. Other regions keep the hits that they have bought and not used.
func (l *Limiter) resetLimit(ctx context.Context, now time.Time, h *backend.Hit) error {
	p := l.planHit(ctx, now, h, false)
	start, end := p.window.WindowAt(now.UnixMicro())
	o := backend.Order{Key: h.Key, Limit: h.Limit, Share: p.stock.share, WindowStart: start, WindowEnd: end}
	if err := l.options.Ledger.Reset(ctx, &o); err != nil {
		return err
	}
	refunds := []backend.Hit{
		{Key: h.Key, Limit: p.stock.share.Purchases, N: -limit.MaxHits, WindowStart: start, Shadow: true},
		{Key: h.Key, Limit: p.stock.share.Purchases, N: -limit.MaxHits, WindowStart: end, Shadow: true},
	}
	results := make([]backend.Result, len(refunds))
	l.options.Counters.Take(ctx, now, refunds, results)
	l.forgetStock(h)
	for i := range results {
		if results[i].Err != nil {
			return results[i].Err
		}
	}
	return nil
}
