package redis

import "bytes"

// windowCounter is a counter in Redis with its hits in a batch. For fixed_window, each window has a
// counter of its own.
type windowCounter struct {
	name        []byte // in the memory of a call
	hash        uint64 // of name, in the expiry table
	ttl         int64  // time to live of a new key, in milliseconds
	first, last int32  // places of its first and last hit in the batch; nextHit leads from one to the other
	n           int64  // sum of the hits
	usesScript  bool   // one of the hits needs the script, so the script decides all of them
	isDone      bool   // no plain commands are left to send
	plain       plainCommands
}

// noHit is the place after the last hit of a windowCounter.
const noHit = -1

// counterSet has the windowCounters of a batch. It reuses its memory.
type counterSet struct {
	all     []*windowCounter // all counters; the capacity has further counters for reuse
	ofHit   []*windowCounter // for each hit of the batch: its counter
	nextHit []int32          // for each hit of the batch: the place of the counter's next hit, or noHit
	index   []int32          // a hash table of places in all, from 1
}

// reset empties the set and makes room for a batch of n hits.
func (s *counterSet) reset(n int) {
	clear(s.ofHit)
	s.all, s.ofHit, s.nextHit = s.all[:0], s.ofHit[:0], s.nextHit[:0]
	size := 8
	for size < 2*n {
		size *= 2
	}
	if size > cap(s.index) {
		s.index = make([]int32, size)
	}
	s.index = s.index[:size]
	clear(s.index)
}

// add adds h, the next hit of the batch, to its counter c.
func (s *counterSet) add(c *windowCounter, h *pendingHit) {
	i := int32(len(s.ofHit))
	s.ofHit, s.nextHit = append(s.ofHit, c), append(s.nextHit, noHit)
	if c.first == noHit {
		c.first = i
	} else {
		s.nextHit[c.last] = i
	}
	c.last = i
	c.n += h.n
	if needsScript(h) {
		c.usesScript, c.isDone = true, true
	}
}

// find returns the counter with this name. If the set has none, find adds one without hits.
func (s *counterSet) find(name []byte, hash uint64) *windowCounter {
	mask := uint64(len(s.index) - 1)
	slot := hash & mask
	for ; s.index[slot] != 0; slot = (slot + 1) & mask {
		if c := s.all[s.index[slot]-1]; c.hash == hash && bytes.Equal(c.name, name) {
			return c
		}
	}
	n := len(s.all)
	if n < cap(s.all) && s.all[:n+1][n] != nil {
		s.all = s.all[:n+1]
	} else {
		s.all = append(s.all, &windowCounter{})
	}
	s.index[slot] = int32(n + 1)
	c := s.all[n]
	c.name, c.hash, c.ttl, c.first, c.n, c.usesScript, c.isDone = name, hash, 0, noHit, 0, false, false
	return c
}

// needsScript reports whether plain commands can't decide h. There are three reasons: the counter is
// more than a number, a refund must not lower a count below 0, or only an admitted hit is charged.
func needsScript(h *pendingHit) bool {
	return !h.hasWindow() || h.n < 0 || h.n > 0 && (h.allOrNone || !h.limit.ChargeDenied)
}

// groupHits finds the counter of each hit. It then divides the hits: plain commands decide some counters,
// and the script decides all other hits.
func (b *batch) groupHits() {
	s := &b.counters
	s.reset(len(b.hits))
	for _, h := range b.hits {
		p := h.pending()
		if p.hasWindow() {
			h.call.setWindow(h.i, b.timeOf(h))
		}
		c := s.find(h.counterName(), b.queue.expiries.hash(h.counterName()))
		if c.first == noHit && p.hasWindow() {
			c.ttl = b.queue.limiter.options.windowTTL(p.limit, p.untilEnd)
		}
		s.add(c, p)
	}
	b.scriptHits, b.isDistinct = b.scriptHits[:0], true
	for i, h := range b.hits {
		if c := s.ofHit[i]; c.usesScript {
			b.scriptHits = append(b.scriptHits, h)
			b.isDistinct = b.isDistinct && c.first == c.last
		}
	}
	b.isScriptDone = len(b.scriptHits) == 0
}

// hitsOf returns the hits of c.
func (b *batch) hitsOf(c *windowCounter) (hits []hitRef) {
	for i := c.first; i != noHit; i = b.counters.nextHit[i] {
		hits = append(hits, b.hits[i])
	}
	return hits
}

// undecidedHits returns the hits without an answer.
func (b *batch) undecidedHits() (hits []hitRef) {
	for _, c := range b.counters.all {
		if !c.isDone {
			hits = append(hits, b.hitsOf(c)...)
		}
	}
	if !b.isScriptDone {
		hits = append(hits, b.scriptHits...)
	}
	return hits
}
