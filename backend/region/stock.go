package region

import (
	"bytes"
	"context"
	"math"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/fingerprint"
	"github.com/seed-81f232ab/rls/limit"
)

const stripeCount = 64

type stripe struct {
	mu     sync.Mutex // guards stocks
	stocks map[fingerprint.ID]*stock
	_      [40]byte // keeps the mutexes in separate cache lines
}

// maxStocks bounds the counters that this replica remembers. If it is exceeded, the replica forgets a random counter of the
// stripe, and reads its bought hits again at the next call.
const maxStocks = 1 << 16

// manyHits is a number of hits that is not used up before this replica gets the next answer.
const manyHits = 128

// Times in microseconds.
const (
	refresh        = 1_000_000 // a purchase covers the demand for this time, and two round trips
	measureTime    = 250_000   // the least time over which a rate is measured
	peekPause      = 20_000    // the least time between two peeks of the bought hits, except for the first in a window
	retryPause     = 250_000   // the pause after a purchase that failed
	firstRoundTrip = 100_000   // the assumed round trip until the first purchase
)

// stock is what this replica knows of the hits of one counter in its region.
type stock struct {
	key   []byte
	limit *limit.Limit // the limit of scope global
	share *limit.RegionShare

	mu       sync.Mutex // guards the fields below
	windows  [2]window  // the current window and the next window
	now      int64      // the last time of a hit by the clock of Redis, in microseconds since 1970
	left     int64      // the hits that the region has left in the current window, by the last answer
	nextPeek int64      // the time of the next peek of the bought hits
	free     int64      // the hits that the ledger had left after the last purchase
	isCutOff bool       // the ledger did not answer the last time

	// The demand of the region is the hits that its replicas use, and the hits that this replica denies.
	measureStart     int64   // when the measurement of the demand began
	usedBefore       int64   // the used hits in the current window at measureStart; negative if hits were used in the window before
	measuredDenied   int64   // the denied hits since measureStart
	rate, rateBefore float64 // the demand in hits per microsecond, in the last two measurements

	mostDenied    int64 // the largest denied hit since the last purchase
	isBuying      bool
	retryAt       int64 // the time of the next purchase at the earliest, after a failed purchase
	soldOutUntil  int64 // until this time, the region buys nothing for the current window, because all hits are sold
	preboughtFrom int64 // the start of the window for which this replica has already bought before its start
}

// window is a regional window. Its limit is Floor + bought.
type window struct {
	start, end int64 // in microseconds since 1970
	bought     int64 // the hits that the region has bought, as far as this replica knows
	isKnown    bool  // this replica has read bought
	limit      *limit.Limit
}

// planHit returns how the region counts h now. mayPeek means that the call can look for bought hits.
func (l *Limiter) planHit(ctx context.Context, now time.Time, h *backend.Hit, mayPeek bool) hitPlan {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	share := h.Limit.RegionShare(l.options.Regions)
	s := &l.stripes[id.Hi%stripeCount]
	s.mu.Lock()
	e := s.stocks[id]
	if e == nil || e.limit != h.Limit && e.limit.Spec != h.Limit.Spec {
		if e == nil && len(s.stocks) >= maxStocks/stripeCount {
			for other := range s.stocks {
				delete(s.stocks, other)
				break
			}
		}
		e = &stock{key: bytes.Clone(h.Key), limit: h.Limit, share: share, free: share.Pool}
		s.stocks[id] = e
	}
	s.mu.Unlock()

	serverNow, ok := l.options.ServerTime(ctx, &backend.Hit{Key: h.Key, Limit: share.Purchases}, now)
	if !ok {
		return hitPlan{stock: e, window: share.Stock(0)}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moveToWindowOf(serverNow.UnixMicro())
	w := &e.windows[0]
	// A limit without charge_denied needs a script in Redis. If many hits are left, a denial is so unlikely that a cheaper
	// command decides. The hits of such a denial are lost.
	hasMany := e.left-h.N >= max(l.buyThreshold(e), manyHits)
	shouldReadBought := mayPeek && h.N >= 0 && l.shouldReadBoughtHits(e, h.N)
	return hitPlan{stock: e, window: w.limit.WithChargeDenied(hasMany), windowStart: w.start, shouldReadBought: shouldReadBought}
}

func (l *Limiter) forgetStock(h *backend.Hit) {
	id := l.seeds.ID(h.Key, h.Limit.Tag())
	s := &l.stripes[id.Hi%stripeCount]
	s.mu.Lock()
	delete(s.stocks, id)
	s.mu.Unlock()
}

// moveToWindowOf makes the window that contains now the current window.
func (e *stock) moveToWindowOf(now int64) {
	e.now = now
	if w := &e.windows[0]; w.limit != nil && w.start <= now && now < w.end {
		return
	}
	if w := &e.windows[0]; w.limit != nil {
		e.usedBefore -= w.limit.Max() - e.left
		e.free = e.share.Pool
	}
	start, end := e.share.Purchases.WindowAt(now)
	if next := e.windows[1]; next.start == start && next.limit != nil {
		e.windows[0] = next
	} else {
		e.windows[0] = window{start: start, end: end, limit: e.share.Stock(0)}
	}
	_, nextEnd := e.share.Purchases.WindowAt(end)
	e.windows[1] = window{start: end, end: nextEnd, limit: e.share.Stock(0)}
	e.left, e.nextPeek, e.mostDenied, e.soldOutUntil = e.share.Floor, 0, 0, 0
}

// shouldReadBoughtHits reports whether a call with n hits should look for bought hits: at least each refresh. The caller locks e.
func (l *Limiter) shouldReadBoughtHits(e *stock, n int64) bool {
	if e.windows[0].isKnown && (e.now < e.nextPeek || e.now < e.nextPeek+refresh && e.left-n >= l.buyThreshold(e)) {
		return false
	}
	e.nextPeek = e.now + peekPause
	return true
}

// setBoughtHits sets the bought hits of a window. They are fewer than before if the Redis has lost its counters. An old number
// makes this replica deny too early, until its next peek.
func (e *stock) setBoughtHits(windowStart, bought int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.windows {
		w := &e.windows[i]
		if w.start != windowStart {
			continue
		}
		w.isKnown = true
		if bought != w.bought {
			if i == 0 {
				e.left += bought - w.bought
			}
			w.bought, w.limit = bought, e.share.Stock(bought)
		}
	}
}

// peakDemand returns the demand in hits per microsecond: the peak of the last two measurements.
func (e *stock) peakDemand() float64 { return max(e.rate, e.rateBefore) }

// targetStock returns the hits that the region should have in stock for the time that is left of a window.
func (e *stock) targetStock(roundTrip, timeLeft int64) int64 {
	return int64(e.peakDemand() * float64(min(refresh+2*roundTrip, timeLeft)))
}

// buyThreshold returns the number of hits below which the region buys further hits. The region has enough for the time of a
// purchase then. It is less than targetStock, because many small purchases would delay the purchase for the next window.
func (l *Limiter) buyThreshold(e *stock) int64 {
	roundTrip := l.roundTrip.Load()
	return max(min(e.targetStock(roundTrip, math.MaxInt64)/2, e.targetStock(roundTrip, e.windows[0].end-e.now)*7/8), 1)
}

// shouldBuyNow reports whether the region should buy for the current window if it has this many hits left.
func (l *Limiter) shouldBuyNow(e *stock, left int64) bool {
	arrivesInTime := e.windows[0].end-e.now > l.roundTrip.Load()
	return arrivesInTime && e.now >= e.soldOutUntil && (left < l.buyThreshold(e) || e.mostDenied > 0)
}

// handleAnswer learns from the answer r to h, and starts a purchase if the region has few hits left. r gets the numbers of the
// limit of all regions.
func (l *Limiter) handleAnswer(h *backend.Hit, r *backend.Result, p *hitPlan, isInDeniedGroup bool) {
	p.stock.mu.Lock()
	defer p.stock.mu.Unlock()
	if r.Source.IsBackend() || r.Source == backend.SourceDenyCache {
		l.learnFromAnswer(h, r, p, isInDeniedGroup)
	}
	p.stock.answerForAllRegions(h, r)
}

// learnFromAnswer does the first part of handleAnswer.
func (l *Limiter) learnFromAnswer(h *backend.Hit, r *backend.Result, p *hitPlan, isInDeniedGroup bool) {
	e := p.stock
	if p.windowStart == 0 || e.windows[0].start != p.windowStart || h.N <= 0 || h.N > e.limit.Capacity() {
		return
	}
	w := &e.windows[0]
	if r.Source == backend.SourceRedis {
		left := w.limit.Max() - (p.window.Max() - r.Remaining)
		w.isKnown = w.isKnown && (left <= e.left || e.now < e.nextPeek) // the Redis may have lost its counters
		e.left = left
	}
	if !r.Allowed && !isInDeniedGroup || isInDeniedGroup && h.N > e.left {
		e.measuredDenied += h.N
		e.mostDenied = max(e.mostDenied, h.N)
	}
	e.measureDemand(w.limit.Max() - e.left)
	if e.isBuying || e.now < e.retryAt || !l.shouldBuyNow(e, e.left) && !l.shouldBuyForNextWindow(e) {
		return
	}
	select {
	case l.orders <- e:
		e.isBuying = true
	default: // the queue is full; a later hit asks again
	}
}

// shouldBuyForNextWindow reports whether the current window ends so soon that the region should buy for the next window, and the
// floor is less than the demand.
func (l *Limiter) shouldBuyForNextWindow(e *stock) bool {
	next, roundTrip := &e.windows[1], l.roundTrip.Load()
	isSoon := e.windows[0].end-e.now < 2*roundTrip+100_000
	return isSoon && e.preboughtFrom != next.start && e.targetStock(roundTrip, next.end-next.start) > e.share.Floor+next.bought
}

// measureDemand measures the demand of the region. used is the number of used hits in the current window.
func (e *stock) measureDemand(used int64) {
	elapsed := e.now - e.measureStart
	rate := float64(max(used-e.usedBefore, 0)+e.measuredDenied) / float64(max(elapsed, measureTime))
	if elapsed < measureTime {
		e.rate = max(e.rate, rate)
		return
	}
	if elapsed > refresh+measureTime { // the last measurement is too old
		e.rate = 0
	}
	e.rate, e.rateBefore = rate, e.rate
	e.measureStart, e.usedBefore, e.measuredDenied = e.now, used, 0
}

// answerForAllRegions gives r the numbers of the limit of all regions. The caller locks e.
func (e *stock) answerForAllRegions(h *backend.Hit, r *backend.Result) {
	free := e.free
	if r.IsDegraded() || e.isCutOff {
		free = 0
	}
	if h.N <= -limit.MaxHits { // a reset
		free = e.limit.Capacity()
	}
	r.Remaining = min(r.Remaining+free, e.limit.Capacity())
	switch {
	case r.Allowed:
	case h.N > e.limit.Capacity():
		r.RetryAfter = limit.Never
	case free > 0:
		r.RetryAfter, r.DenialMayEndEarly = min(r.ResetAfter, firstRoundTrip), true
	case r.RetryAfter == limit.Never:
		r.RetryAfter = r.ResetAfter
	}
}
