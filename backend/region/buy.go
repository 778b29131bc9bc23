package region

import (
	"cmp"
	"context"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// The bounds of purchases.
const (
	maxOrders      = 4096 // the counters that wait for a purchase
	maxTripOrders  = 256  // the counters in one trip
	maxTrips       = 8    // the trips at the same time
	maxTripSeconds = 2    // a trip over all steps ends after this time
)

// Run buys hits until ctx is done. It returns when no trip is in flight.
func (l *Limiter) Run(ctx context.Context) {
	trips := make(chan struct{}, maxTrips)
	for {
		select {
		case <-ctx.Done():
			for range maxTrips {
				trips <- struct{}{}
			}
			return
		case first := <-l.orders:
			batch := []*stock{first}
			for len(batch) < maxTripOrders && len(l.orders) > 0 {
				batch = append(batch, <-l.orders)
			}
			trips <- struct{}{}
			go func() {
				defer func() { <-trips }()
				l.buyHits(ctx, batch)
			}()
		}
	}
}

// purchase is the purchase of the hits of one counter.
type purchase struct {
	*stock
	counter  *limit.Limit     // the counter of used hits
	orders   [2]backend.Order // for the windows of the stock; the purchase makes no order with a Want of 0
	isBuyer  bool             // this replica has the hold of the buyer
	isPrebuy bool             // the purchase also buys for the next window
}

// buyHits buys hits for the counters of batch:
//
//  1. a trip to the Redis of the region, which makes this replica the buyer, and reads the bought and the used hits;
//  2. a trip to the ledger;
//  3. a trip to the Redis of the region, which adds the bought hits and ends the hold.
//
// If the second or third step fails, hits may be sold that no region can use. Nobody can use them until the window ends.
func (l *Limiter) buyHits(ctx context.Context, batch []*stock) {
	ctx, cancel := context.WithTimeout(ctx, maxTripSeconds*time.Second)
	defer cancel()
	purchases := make([]*purchase, len(batch))
	for i, e := range batch {
		purchases[i] = l.newPurchase(e)
	}
	l.startPurchases(ctx, purchases)
	var orders []*backend.Order
	for _, p := range purchases {
		for i := range p.orders {
			if o := &p.orders[i]; p.isBuyer && o.Want > 0 {
				orders = append(orders, o)
			}
		}
	}
	if len(orders) > 0 {
		start := time.Now()
		l.options.Ledger.Buy(ctx, orders)
		l.recordTrip(orders, time.Since(start))
	}
	l.storePurchases(ctx, purchases)
}

func (l *Limiter) newPurchase(e *stock) *purchase {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &purchase{stock: e, counter: e.windows[0].limit, isPrebuy: l.shouldBuyForNextWindow(e)}
	for i, w := range e.windows {
		p.orders[i] = backend.Order{Key: e.key, Limit: e.limit, Share: e.share, Region: l.options.Region, WindowStart: w.start, WindowEnd: w.end}
	}
	return p
}

// startPurchases tries to become the buyer of each counter, and sets what the orders want.
func (l *Limiter) startPurchases(ctx context.Context, purchases []*purchase) {
	var hits []backend.Hit
	for _, p := range purchases {
		hits = append(hits, backend.Hit{Key: p.key, Limit: p.share.Buyer, N: 1, HoldID: l.replicaID, Shadow: true})
		for i := range p.orders {
			start := p.orders[i].WindowStart
			hits = append(hits,
				backend.Hit{Key: p.key, Limit: p.share.Purchases, WindowStart: start, Shadow: true},
				backend.Hit{Key: p.key, Limit: p.counter, WindowStart: start, Shadow: true},
			)
		}
	}
	const hitsOfPurchase = 5
	results := make([]backend.Result, len(hits))
	l.options.Counters.Take(ctx, time.Now(), hits, results)
	for i, p := range purchases {
		answers := results[i*hitsOfPurchase:][:hitsOfPurchase]
		p.isBuyer = answers[0].Err == nil && answers[0].Allowed
		for w := range p.orders {
			bought, used := &answers[1+2*w], &answers[2+2*w]
			if p.orders[w].Err = cmp.Or(bought.Err, used.Err); p.orders[w].Err != nil {
				continue
			}
			usedHits, boughtHits := p.counter.Spent(used.Result), p.share.Purchases.Spent(bought.Result)
			p.setBoughtHits(p.orders[w].WindowStart, boughtHits)
			l.setOrderSize(p, w, boughtHits, p.share.Floor+boughtHits-usedHits)
		}
	}
}

// setOrderSize sets what the order for a window wants. left is what the region has left for the window.
func (l *Limiter) setOrderSize(p *purchase, index int, bought, left int64) {
	e, o := p.stock, &p.orders[index]
	e.mu.Lock()
	defer e.mu.Unlock()
	roundTrip := l.roundTrip.Load()
	o.Unused, o.Rate = max(min(left, bought), 0), max(e.peakDemand()*1e6, 1)
	if index == 0 {
		e.left = left
		if l.shouldBuyNow(e, left) {
			o.Want, o.Least = max(e.targetStock(roundTrip, o.WindowEnd-e.now), e.mostDenied, 1)-max(left, 0), e.mostDenied-max(left, 0)
		}
	} else if p.isPrebuy {
		e.preboughtFrom = o.WindowStart
		o.Want = e.targetStock(roundTrip, o.WindowEnd-o.WindowStart) - left
	}
	o.Want, o.Least = max(o.Want, 0), max(o.Least, 0)
}

// storePurchases adds the bought hits to the counters of the region, and ends the holds.
func (l *Limiter) storePurchases(ctx context.Context, purchases []*purchase) {
	var hits []backend.Hit
	var owners []*purchase // the purchase of each hit
	for _, p := range purchases {
		if !p.isBuyer {
			continue
		}
		for _, o := range p.orders {
			if o.Err == nil && o.Granted > 0 {
				hits = append(hits, backend.Hit{Key: p.key, Limit: p.share.Purchases, N: o.Granted, WindowStart: o.WindowStart, Shadow: true})
				owners = append(owners, p)
			}
		}
		hits = append(hits, backend.Hit{Key: p.key, Limit: p.share.Buyer, N: -1, HoldID: l.replicaID, Shadow: true})
		owners = append(owners, p)
	}
	results := make([]backend.Result, len(hits))
	l.options.Counters.Take(ctx, time.Now(), hits, results)
	for i, h := range hits {
		if h.Limit == owners[i].share.Purchases && results[i].Err == nil {
			owners[i].setBoughtHits(h.WindowStart, h.Limit.Spent(results[i].Result))
		}
	}
	for _, p := range purchases {
		p.end()
	}
}

// end lets the next purchase of the counter begin.
func (p *purchase) end() {
	e := p.stock
	e.mu.Lock()
	defer e.mu.Unlock()
	e.isBuying = false
	switch o := &p.orders[0]; {
	case !p.isBuyer: // another replica buys
		e.retryAt, e.nextPeek = e.now+peekPause, 0
	case o.Err != nil:
		e.retryAt = e.now + retryPause
		e.isCutOff = true
	case o.Want > 0:
		e.free, e.mostDenied, e.isCutOff = o.Free, 0, false
		if o.Free == 0 {
			e.soldOutUntil = e.now + min(refresh, (o.WindowEnd-o.WindowStart)/8)
		}
	}
}

// Stats counts what this replica did.
type Stats struct {
	Trips      int64         // trips to the ledger
	BoughtHits int64         // the hits that this replica has bought for its region
	RoundTrip  time.Duration // the time of the last trip that did not fail
	UnusedHits int64         // the hits that the region has bought and not used, of the counters that this replica knows
}

// Stats returns the sums since New, and what the region has now.
func (l *Limiter) Stats() Stats {
	stats := Stats{Trips: l.trips.Load(), BoughtHits: l.boughtHits.Load(), RoundTrip: time.Duration(l.roundTrip.Load()) * time.Microsecond}
	now := time.Now().UnixMicro()
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		for _, e := range s.stocks {
			e.mu.Lock()
			if w := &e.windows[0]; w.end > now {
				stats.UnusedHits += min(max(e.left, 0), w.bought)
			}
			e.mu.Unlock()
		}
		s.mu.Unlock()
	}
	return stats
}

func (l *Limiter) recordTrip(orders []*backend.Order, duration time.Duration) {
	var err error
	for _, o := range orders {
		l.boughtHits.Add(o.Granted)
		err = cmp.Or(err, o.Err)
	}
	l.trips.Add(1)
	if err == nil {
		l.roundTrip.Store(duration.Microseconds())
	}
	l.options.OnTrip(err)
}
