package limit

import (
	"fmt"
	"math"
	"strconv"
)

// Regions says how regions divide the limits of scope Global. All regions must have equal Regions.
type Regions struct {
	Count int // the number of regions; at least 1

	// Floor is the share of a limit that all regions together may admit without a purchase. Each region has an equal part.
	// It is at least 0 and at most 0.5.
	Floor float64

	// Waste is the share of a limit that all regions together may have bought and not used: above 0 and at most 1.
	Waste float64
}

// The bounds of limits that regions can divide. Times are in microseconds.
const (
	minBucketWindow = 100_000
	maxBucketWindow = 10 * second
	minGlobalBurst  = 10
)

// GlobalProblem returns why regions can't divide a limit of this spec, or an empty text.
func (s *Spec) GlobalProblem() string {
	switch {
	case !s.Algorithm.AllowsRegions():
		return fmt.Sprintf("regions can divide only limits with algorithm %s, %s or %s, not %s", FixedWindow, SlidingWindow, TokenBucket, s.Algorithm)
	case s.Lease:
		return "a limit can't have lease: true as well, because regions already buy hits in advance"
	case s.ChargeDenied && !s.Algorithm.DefaultChargeDenied():
		return "a limit can't have charge_denied: true as well, because regions buy no hits for denied requests"
	}
	l, err := New(*s)
	if err != nil || !s.Algorithm.UsesBurst() || s.Requests == 0 {
		return "" // the caller reports the error
	}
	if l.capacity < minGlobalBurst || l.regionalBucketWindow() < minBucketWindow {
		return fmt.Sprintf("regions can divide a bucket only if its burst is at least %d, and at least the hits of 0.4 s; got burst %d with %d per %s", minGlobalBurst, l.capacity, s.Requests, l.Window())
	}
	return ""
}

// regionalBucketWindow returns the length of the regional windows of a token bucket. The bucket gets at most a quarter of its burst
// in such a window.
func (l *Limit) regionalBucketWindow() int64 {
	micros, _ := mulAddDiv(l.capacity, l.period, 0, 4*max(l.max, 1))
	return min(micros/1000*1000, maxBucketWindow)
}

// RegionShare says how each region counts a limit of scope Global. A region counts hits in aligned windows. In each window,
// it admits Floor hits, and the hits that it has bought for this window.
//
// All regions together admit no more than the limit, because the ledger sells no more than:
//
//   - fixed_window: the limit minus all floors, in each window;
//   - sliding_window: the same in each sliding window, and each floor is half as large, because a sliding window covers the
//     floors of two windows. A hit is used in the window for which it was bought, so the used hits weigh at most as much as
//     the bought hits;
//   - token_bucket: a bucket with a smaller burst and rate. A region uses a hit at most two windows after its purchase, so
//     the burst of the bucket is smaller by the tokens of two windows.
type RegionShare struct {
	Floor     int64 // the hits that a region admits in each window without a purchase
	MaxUnused int64 // the most hits of a window that all regions together may have bought and not used
	Pool      int64 // the hits of a window that regions can buy, or the burst of the bucket that sells hits

	// The bucket that sells hits gets RateTokens in RateMicros microseconds. Both are 0 for other algorithms.
	RateTokens, RateMicros int64

	IsSliding bool // the hits that were sold for the window before count, too

	Purchases *Limit // the counter of the hits that a region has bought for a window
	Buyer     *Limit // the hold of the replica that buys; other replicas of the region wait

	stock Spec
	tag   string
}

// buyerHold is the hold of Buyer, in microseconds. A replica that was killed delays the purchases of its region for so long.
const buyerHold = 2 * second

type regionShare struct {
	regions Regions
	share   *RegionShare
}

// RegionShare returns how each of r's regions counts l. l must have scope Global, and no GlobalProblem. l keeps the last
// result, so a call with the same regions allocates nothing.
func (l *Limit) RegionShare(r Regions) *RegionShare {
	if s := l.lastRegionShare.Load(); s != nil && s.regions == r {
		return s.share
	}
	s := &RegionShare{Pool: l.max, stock: l.Spec, tag: l.tag}
	s.stock.Algorithm, s.stock.Burst, s.stock.ChargeDenied, s.stock.Scope = FixedWindow, 0, false, Region
	windowHits, floorsInWindow := l.max, int64(r.Count) // the floors that regions can use in the time of one window
	switch {
	case l.Algorithm.UsesBurst() && l.max > 0:
		s.RateMicros = l.regionalBucketWindow()
		s.stock.Unit, s.stock.Multiplier = Millisecond, uint32(s.RateMicros/1000)
		s.tag += "w" + strconv.FormatInt(s.RateMicros/1000, 10)
		windowHits, _ = mulAddDiv(s.RateMicros, l.max, 0, l.period)
	case l.Algorithm == SlidingWindow:
		s.IsSliding = true
		floorsInWindow *= 2
	}
	s.Floor = int64(float64(windowHits)*r.Floor/float64(floorsInWindow) + rounding)
	if s.Floor == 0 && r.Floor > 0 && 2*floorsInWindow <= windowHits {
		s.Floor = 1
	}
	if s.RateMicros > 0 {
		s.Pool = l.capacity - 2*(windowHits+1)
		s.RateTokens, s.MaxUnused = windowHits-floorsInWindow*s.Floor, windowHits
	} else {
		s.Pool -= floorsInWindow * s.Floor
		s.MaxUnused = int64(float64(l.max)*r.Waste + rounding)
	}
	s.Purchases = s.newStock(math.MaxUint32)
	s.Purchases.tag += "p"
	s.Buyer, _ = New(Spec{Algorithm: Concurrency, Requests: 1, Hold: buyerHold})
	s.Buyer.tag = s.tag + "b"
	l.lastRegionShare.Store(&regionShare{r, s})
	return s
}

// Stock returns the limit with which a region counts in a window for which it has bought these hits.
func (s *RegionShare) Stock(bought int64) *Limit { return s.newStock(s.Floor + bought) }

func (s *RegionShare) newStock(hits int64) *Limit {
	spec := s.stock
	spec.Requests = uint32(min(hits, math.MaxUint32))
	stock, _ := New(spec) // New can't fail, because the window is that of a valid limit
	stock.tag = s.tag
	return stock
}
