package spec

import "fmt"

// check compares one outcome with the ledger of its counter.
type check struct {
	reference   *reference
	hit         *hit
	outcome     *outcome
	ledger      *ledger
	replica     int
	now         int64
	holdID      string
	groupDenied bool
	isUndo      bool // of a charge of this request
	problems    []string
}

func (c *check) problem(format string, args ...any) {
	h := c.hit
	c.problems = append(c.problems, fmt.Sprintf("descriptor %d, limit %s, %d hits, decided by %s: %s",
		h.descriptor, h.limit.yaml(), h.n, c.outcome.source, fmt.Sprintf(format, args...)))
}

// peek checks a hit that is not charged because another hit denies the request.
func (c *check) peek() {
	most := c.ledger.most[c.replica]
	most.forget(c.hit.limit, c.now)
	room := c.hit.limit.capacity() - most.spent(c.hit.limit, c.now)
	if c.hit.n > 0 && c.outcome.source != "fallback" && c.now >= c.ledger.unsureUntil && !c.outcome.allowed && c.hit.n <= room-c.reference.maxLeasedHits(c.ledger, c.hit.limit) {
		c.problem("denied, but %d hits are left", room)
	}
}

// takeUncharged checks a hit that would pass, but is not charged because its group is denied. isAlone
// reports that it is the only hit of the request on the counter.
func (c *check) takeUncharged(isAlone bool) {
	l, least := c.hit.limit, c.ledger.least
	if c.outcome.source == "fallback" {
		l, least = c.reference.share(l), c.ledger.fallbackLeast[c.replica]
	}
	verdictBefore := least.clone().take(l, c.now, 0, "")
	want := least.clone().take(l, c.now, c.hit.n, c.holdID)
	if !want.allowed {
		c.problem("answered as allowed, but %d hits are left", verdictBefore.remaining)
	}
	s := c.reference.settings
	isAlone = isAlone && want.reset > c.outcome.duration && c.now >= c.ledger.unsureUntil // see noteUnsureUndo
	if got := c.outcome.remaining; isAlone && !s.leases && !s.outage && got != verdictBefore.remaining {
		c.problem("not charged, got %d remaining, want %d", got, verdictBefore.remaining)
	}
}

// takeAdmitted checks an admitted hit and charges it.
func (c *check) takeAdmitted() {
	l, least := c.hit.limit, c.ledger.least
	if c.outcome.source == "fallback" {
		l, least = c.reference.share(l), c.ledger.fallbackLeast[c.replica]
	}
	if want := least.clone().take(l, c.now, c.hit.n, c.holdID); !want.allowed {
		c.problem("too many hits are admitted, want %+v", want)
	}
	c.charge()
}

// take checks a hit and charges it.
func (c *check) take() {
	l, got := c.hit.limit, c.outcome
	if got.err != nil {
		c.problem("error: %v", got.err)
		return
	}
	least, most := c.ledger.least, c.ledger.most[c.replica]
	waste := c.reference.maxLeasedHits(c.ledger, l)
	isUnsure := c.now < c.ledger.unsureUntil
	if got.source == "fallback" {
		l = c.reference.share(l)
		least, most, waste = c.ledger.fallbackLeast[c.replica], c.ledger.fallbackMost[c.replica], 0
		c.startFromLastCount(l)
		isUnsure = isUnsure || c.ledger.wasAsked && l.algorithm != "fixed_window" // it has the last count for up to another window
	}
	chargingLimit := *l
	chargingLimit.chargeDenied = l.chargeDenied && c.chargesDenied()
	want := least.clone().take(&chargingLimit, c.now, c.hit.n, c.holdID)
	fullest := most.clone()
	fullest.forget(l, c.now)
	room := l.capacity() - fullest.spent(l, c.now) - waste
	strictVerdict := fullest.take(&chargingLimit, c.now, c.hit.n, c.holdID)
	isEnough := !isUnsure && strictVerdict.allowed && (strictVerdict.renewed || c.hit.n < 0 || max(c.hit.n, 1) <= room || l.resetsAtOnce() && c.hit.n <= room)
	switch {
	case isUnsure && got.source == "fallback" && l.algorithm == "first_hit_window": // the window of Redis can end earlier
	case got.allowed && !want.allowed:
		c.problem("admitted, but %d hits are left, want %+v", l.capacity()-least.spent(l, c.now), want)
	case !got.allowed && isEnough:
		c.problem("denied, but %d hits are left, got %+v, want %+v", room, got.verdict, strictVerdict)
	case got.allowed == want.allowed:
		c.compareNumbers(want)
	}
	if got.allowed && c.hit.n > 0 && !c.hit.shadow && !c.groupDenied {
		got.next = want.next
	}
	c.charge()
}

// startFromLastCount charges the fallback with its share of the last count. l is the limit of the fallback.
func (c *check) startFromLastCount(l *limit) {
	known, fallback := c.ledger.known[c.replica], c.ledger.fallbackMost[c.replica]
	if l.algorithm != "fixed_window" || c.hit.limit.requests == 0 {
		return
	}
	known.forget(c.hit.limit, c.now)
	fallback.forget(l, c.now)
	spent := min(known.spent(c.hit.limit, c.now)+c.reference.waste(c.ledger, c.hit.limit), c.hit.limit.requests)
	if missingHits := spent*l.requests/c.hit.limit.requests - fallback.spent(l, c.now); missingHits > 0 {
		fallback.charge(l, c.now, missingHits)
	}
}

// compareNumbers compares the numbers of the outcome if they must be exact.
func (c *check) compareNumbers(want verdict) {
	got := c.outcome.verdict
	want.next = 0
	isExact := c.outcome.source == "redis" || c.outcome.source == "local"
	switch {
	case c.reference.settings.leases || c.reference.settings.outage || c.now < c.ledger.unsureUntil:
	case isExact && !c.hit.inGroup:
		if got != want {
			c.problem("got %+v, want %+v", got, want)
		}
	case isExact && !c.groupDenied:
		if got != want {
			c.problem("all hits of the request pass: got %+v, want %+v", got, want)
		}
	case got.allowed:
	case c.hit.inGroup:
		if (got.retry == neverPasses) != (want.retry == neverPasses) {
			c.problem("got %+v, want %+v", got, want)
		}
	default: // a remembered denial
		if got.retry > max(want.retry, want.reset) || got.retry == 0 || (got.retry == neverPasses) != (want.retry == neverPasses) {
			c.problem("a remembered denial: got %+v, want %+v", got, want)
		}
		if got.remaining > 0 && got.remaining != want.remaining {
			c.problem("a remembered denial: got %d remaining, want %d", got.remaining, want.remaining)
		}
	}
}

// chargesDenied reports whether the outcome of a denial can be a charge. A remembered denial charges
// nothing, and neither do hits that are charged together.
func (c *check) chargesDenied() bool {
	s := c.outcome.source
	return (s == "redis" || s == "local" || s == "fallback") && !c.hit.inGroup
}

// charge charges the hit as its outcome says.
func (c *check) charge() {
	h, got := c.hit, c.outcome
	if got.source == "deny_cache" && !got.allowed { // no backend sees the hit
		c.ledger.hasDenied[c.replica] = true
		return
	}
	l, counters := h.limit, append([]*counter{c.ledger.least}, c.ledger.most...)
	if got.source == "fallback" {
		l = c.reference.share(l)
		c.startFromLastCount(l)
		counters = []*counter{c.ledger.fallbackLeast[c.replica], c.ledger.fallbackMost[c.replica]}
	}
	if got.source == "redis" {
		c.ledger.wasAsked = true
	}
	if h.limit.algorithm != "concurrency" && got.source != "fallback" && h.n > 0 && (got.allowed || c.chargesDenied() && l.chargeDenied) {
		for _, knownCounter := range c.ledger.known {
			knownCounter.forget(l, c.now)
			knownCounter.charge(l, c.now, h.n)
		}
	}
	for i, counter := range counters {
		counter.forget(l, c.now)
		isHidden := h.n < 0 && i > 0 && got.source != "fallback" && i-1 != c.replica && !c.isUndo && c.remembersDenial(i-1)
		switch {
		// The refund can end the window, or make room for a debt that counts in the next window.
		case isHidden && (l.algorithm == "first_hit_window" || l.algorithm == "sliding_window" && l.chargeDenied):
			c.ledger.unsureUntil = c.now + 2*l.period
			counter.add(l, c.now, h.n, c.holdID)
		case isHidden: // a refund through another replica can take effect when the denial ends
		case got.allowed:
			counter.add(l, c.now, h.n, c.holdID)
		case l.chargeDenied && c.chargesDenied() && h.n > 0:
			n := h.n
			if waste := c.reference.waste(c.ledger, l); waste > 0 && counter == c.ledger.least { // permits still pass
				n = min(n, max(l.capacity()-waste-counter.spent(l, c.now), 0))
			}
			counter.charge(l, c.now, n)
		}
	}
	if h.n > 0 || !got.allowed {
		c.ledger.hasDenied[c.replica] = !got.allowed
	}
}

// remembersDenial reports whether a replica may remember a denial of the counter.
func (c *check) remembersDenial(replica int) bool {
	s := c.reference.settings
	return c.hit.limit.algorithm != "concurrency" && s.denyCache && c.ledger.hasDenied[replica]
}
