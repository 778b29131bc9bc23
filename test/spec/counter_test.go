package spec

import (
	"slices"
	"sort"
)

// Times and spans are microseconds.
const second = 1_000_000

// neverPasses is the wait of hits that can't pass at any time.
const neverPasses = -1

// limit is a limit of a rule.
type limit struct {
	name         string
	replaces     []string
	algorithm    string
	requests     int64
	burst        int64 // 0 if the limit has none
	unit         string
	multiplier   int64
	period       int64 // length of the window, or the time of a hold
	chargeDenied bool
	instance     bool
	unlimited    bool
	disabled     bool
	lease        bool
	leaseWaste   float64
}

// resetsAtOnce reports whether all hits of a window are forgotten when the window ends.
func (l *limit) resetsAtOnce() bool {
	return l.algorithm == "fixed_window" || l.algorithm == "first_hit_window"
}

// waste returns the most permits that the replicas may hold.
func (l *limit) waste() int64 {
	if w := int64(float64(l.capacity())*l.leaseWaste + 1e-6); l.lease && w >= 2 {
		return w
	}
	return 0
}

// capacity returns the most hits that can be spent at once.
func (l *limit) capacity() int64 {
	if l.burst > 0 && l.requests > 0 {
		return l.burst
	}
	return l.requests
}

// charge is n hits that were charged at a time. With concurrency it is a hold of n slots.
type charge struct {
	at, n int64
	end   int64  // of a hold
	id    string // of a hold
}

// counter is the counter of one key. A token bucket has a level, and the other algorithms have a list
// of charges, oldest first.
type counter struct {
	charges []charge

	level   int64 // spent tokens × period of the limit, at levelAt
	levelAt int64
	rate    int64 // requests of the limit that has set level
}

func (c *counter) clone() *counter {
	clone := *c
	clone.charges = slices.Clone(c.charges)
	return &clone
}

// verdict is the decision of one limit about hits.
type verdict struct {
	allowed   bool
	remaining int64 // negative if there is debt
	reset     int64 // until nothing is spent, or until the window ends
	retry     int64 // until the same hits pass; 0 if they pass
	renewed   bool  // a hold existed
	next      int64 // of admitted hits: until the same hits pass again
}

// wait returns the duration_until_reset before it is rounded.
func (v verdict) wait(l *limit) int64 {
	switch {
	case v.allowed || v.retry == neverPasses && l.algorithm == "fixed_window":
		return v.reset
	case v.retry == neverPasses:
		return l.period
	}
	return v.retry
}

// spent returns the hits that are spent at a time, if nothing more is charged.
func (c *counter) spent(l *limit, at int64) (sum int64) {
	if l.algorithm == "token_bucket" {
		if l.requests == 0 {
			return 0
		}
		return ceilDiv(max(c.level-(at-c.levelAt)*c.rate, 0), l.period)
	}
	window := at / l.period
	if l.algorithm == "sliding_window" {
		previousHits := int64(0)
		for _, h := range c.charges {
			switch h.at / l.period {
			case window:
				sum += h.n
			case window - 1:
				previousHits += h.n
			}
		}
		// The share of the previous window is counted in ticks.
		tick := ceilDiv(l.period, 1<<19)
		ticks := ceilDiv(l.period, tick)
		return sum + ceilDiv(previousHits*(ticks-at%l.period/tick), ticks)
	}
	for _, h := range c.charges {
		counts := false
		switch l.algorithm {
		case "fixed_window":
			counts = h.at/l.period == window
		case "first_hit_window":
			counts = at < c.charges[0].at+l.period
		case "sliding_log":
			counts = at < h.at+l.period
		case "concurrency":
			counts = at < h.end
		}
		if counts {
			sum += h.n
		}
	}
	return sum
}

// take decides n hits at now, and charges them. A positive n charges, 0 peeks, and a negative n refunds.
// id names a hold.
func (c *counter) take(l *limit, now, n int64, id string) verdict {
	c.forget(l, now)
	if l.algorithm == "concurrency" {
		return c.hold(l, now, n, id)
	}
	var v verdict
	neededHits := max(n, 1)
	if l.resetsAtOnce() {
		neededHits = n
	}
	switch {
	case n < 0:
		v.allowed = true
		c.refund(l, -n)
	case c.spent(l, now)+neededHits <= l.capacity():
		v.allowed = true
		c.charge(l, now, n)
	case l.chargeDenied:
		c.charge(l, now, n)
	}
	v.remaining = l.capacity() - c.spent(l, now)
	switch {
	case l.algorithm == "fixed_window":
		v.reset = l.period - now%l.period
	case l.algorithm == "first_hit_window" && len(c.charges) > 0:
		v.reset = c.charges[0].at + l.period - now
	default:
		v.reset = c.waitUntilSpent(l, now, 0)
	}
	switch {
	case v.allowed && n > v.remaining:
		v.next = c.waitUntilSpent(l, now, l.capacity()-n)
	case v.allowed:
	case neededHits > l.capacity():
		v.retry = neverPasses
	default:
		v.retry = c.waitUntilSpent(l, now, l.capacity()-neededHits)
	}
	return v
}

// waitUntilSpent returns the time until at most n hits are spent.
func (c *counter) waitUntilSpent(l *limit, now, n int64) int64 {
	horizon := 2 * l.period
	switch {
	case l.algorithm == "token_bucket" && c.rate > 0:
		horizon = ceilDiv(c.level, c.rate)
	case l.algorithm == "concurrency": // holds keep their end when the limit changes
		for _, h := range c.charges {
			horizon = max(horizon, h.end-now)
		}
	}
	return int64(sort.Search(int(horizon), func(t int) bool { return c.spent(l, now+int64(t)) <= n }))
}

// forget removes the charges that have no effect any more, and adapts a token bucket to a new limit.
func (c *counter) forget(l *limit, now int64) {
	if l.algorithm == "token_bucket" {
		c.changeRate(l, now)
		return
	}
	if l.algorithm == "first_hit_window" {
		if c.spent(l, now) == 0 {
			c.charges = nil
		}
		return
	}
	c.charges = slices.DeleteFunc(c.charges, func(h charge) bool {
		switch l.algorithm {
		case "fixed_window":
			return h.at/l.period != now/l.period
		case "sliding_window":
			return h.at/l.period < now/l.period-1
		case "sliding_log":
			return h.at+l.period <= now
		}
		return h.end <= now
	})
}

// changeRate drains a token bucket until now. If the rate or the burst has changed, the bucket
// keeps the number of spent tokens. Without burst, it keeps the share that is spent. It has no debt then.
func (c *counter) changeRate(l *limit, now int64) {
	c.level = max(c.level-(now-c.levelAt)*c.rate, 0)
	if c.rate != l.requests && c.rate > 0 && c.level > 0 && l.requests > 0 {
		if l.burst == 0 {
			c.level = ceilDiv(c.level*l.requests, c.rate)
		}
		c.level = min(c.level, l.capacity()*l.period)
	}
	c.level = min(c.level, (l.capacity()+l.requests)*l.period)
	c.levelAt, c.rate = now, l.requests
}

// charge charges n hits. Debt of fixed_window and first_hit_window has no bound, and other debt is at most
// the hits of one window.
func (c *counter) charge(l *limit, now, n int64) {
	switch l.algorithm {
	case "token_bucket":
		if l.requests == 0 {
			return
		}
		c.level = min(c.level+n*l.period, (l.capacity()+l.requests)*l.period)
		return
	case "sliding_window":
		n = min(n, max(2*l.requests-c.spent(l, now), 0))
	case "sliding_log":
		n = min(n, l.requests)
	}
	if n == 0 {
		return
	}
	if lastIndex := len(c.charges) - 1; lastIndex >= 0 && c.charges[lastIndex].at == now {
		c.charges[lastIndex].n += n
	} else {
		c.charges = append(c.charges, charge{at: now, n: n})
	}
	if l.algorithm == "sliding_log" { // newer hits than the limit allows replace older hits
		lastCharge := &c.charges[len(c.charges)-1]
		lastCharge.n = min(lastCharge.n, l.requests)
		for len(c.charges) > 1 && c.spent(l, now)-c.charges[0].n >= l.requests {
			c.charges = c.charges[1:]
		}
	}
}

// refund takes n hits off the counter, the newest first.
func (c *counter) refund(l *limit, n int64) {
	if l.algorithm == "token_bucket" {
		c.level = max(c.level-n*l.period, 0)
		return
	}
	for n > 0 && len(c.charges) > 0 {
		lastCharge := &c.charges[len(c.charges)-1]
		takenHits := min(n, lastCharge.n)
		lastCharge.n -= takenHits
		n -= takenHits
		if lastCharge.n == 0 {
			c.charges = c.charges[:len(c.charges)-1]
		}
	}
}

// hold is take for a limit of concurrency, whose expired holds are forgotten.
func (c *counter) hold(l *limit, now, n int64, id string) verdict {
	var v verdict
	indexOfID := slices.IndexFunc(c.charges, func(h charge) bool { return id != "" && h.id == id })
	spentHits := c.spent(l, now)
	switch {
	case n < 0 && id != "":
		v.allowed = true
		if indexOfID >= 0 {
			c.charges = slices.Delete(c.charges, indexOfID, indexOfID+1)
		}
	case n < 0:
		v.allowed = true
		c.releaseAnonymous(-n)
	case indexOfID >= 0:
		v.allowed, v.renewed = true, true
		if n > 0 {
			c.charges[indexOfID].end = now + l.period
		}
	case spentHits+max(n, 1) <= l.requests:
		v.allowed = true
		if n > 0 {
			c.charges = append(c.charges, charge{now, n, now + l.period, id})
		}
		if id == "" && n > l.requests-spentHits-n {
			v.next = c.waitUntilSpent(l, now, l.requests-n)
		}
	case max(n, 1) > l.requests:
		v.retry = neverPasses
	default:
		v.retry = c.waitUntilSpent(l, now, l.requests-max(n, 1))
	}
	slices.SortStableFunc(c.charges, func(a, b charge) int { return int(a.end - b.end) })
	v.remaining = l.requests - c.spent(l, now)
	if len(c.charges) > 0 {
		v.reset = c.charges[0].end - now
	}
	for _, h := range c.charges {
		if id != "" && h.id == id {
			v.reset = h.end - now
		}
	}
	return v
}

// releaseAnonymous frees n slots of anonymous holds. The hold that expires first ends first.
func (c *counter) releaseAnonymous(n int64) {
	for i := 0; i < len(c.charges) && n > 0; {
		h := &c.charges[i]
		if h.id != "" {
			i++
			continue
		}
		freedHits := min(n, h.n)
		h.n -= freedHits
		n -= freedHits
		if h.n == 0 {
			c.charges = slices.Delete(c.charges, i, i+1)
		}
	}
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
