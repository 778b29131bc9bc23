package redis

import (
	"bytes"
	"cmp"
)

// windowCounter is a counter in Redis with its hits in a batch. For fixed_window, each window has a
// counter of its own.
type windowCounter struct {
	name        []byte // the key in Redis, in the memory of a call
	hash        uint64 // the hash of name in keysWithTTL
	ttl         int64  // time to live of a new key, in milliseconds
	first, last int32  // places of the counter's first and last hit in the batch; nextHit leads from first to last
	n           int64  // sum of the hits
	usesScript  bool   // the script decides all hits of the counter, because one of the hits needs the script
	isDone      bool   // no plain commands are left to send
	plain       plainCommands
}

// noHit is the place after the last hit of a windowCounter.
const noHit = -1

// counterSet has the windowCounters of a batch. It reuses its memory.
type counterSet struct {
	all     []*windowCounter // all counters; the capacity has further counters for reuse
	ofHit   []*windowCounter // the counter of each hit of the batch
	nextHit []int32          // for each hit of the batch, the place of the next hit on the same counter, or noHit
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
	place := hash & mask
	for ; s.index[place] != 0; place = (place + 1) & mask {
		if c := s.all[s.index[place]-1]; c.hash == hash && bytes.Equal(c.name, name) {
			return c
		}
	}
	n := len(s.all)
	if n < cap(s.all) && s.all[:n+1][n] != nil {
		s.all = s.all[:n+1]
	} else {
		s.all = append(s.all, &windowCounter{})
	}
	s.index[place] = int32(n + 1)
	c := s.all[n]
	c.name, c.hash, c.ttl, c.first, c.n, c.usesScript, c.isDone = name, hash, 0, noHit, 0, false, false
	return c
}

// needsScript reports whether plain commands can't decide h. There are three reasons: the counter is
// more than a number, a refund must not lower a count below 0, or only an admitted hit is charged.
func needsScript(h *pendingHit) bool {
	return !h.hasWindow() || h.n < 0 || h.n > 0 && (h.inGroup || h.confirmsDenial || !h.limit.ChargeDenied)
}

// divideHits finds the counter of each hit. It then divides the hits: plain commands decide some counters,
// and the script decides all other hits.
func (b *batch) divideHits() {
	s := &b.counters
	s.reset(len(b.hits))
	b.hasGroups = false
	for _, h := range b.hits {
		b.hasGroups = b.hasGroups || h.inGroup
		if h.hasWindow() {
			h.setWindow(cmp.Or(h.call.now, b.now))
		}
		name := h.counterName()
		c := s.find(name, b.queue.keysWithTTL.hash(name))
		if c.first == noHit && h.hasWindow() {
			c.ttl = b.queue.limiter.options.windowTTL(h.limit, h.untilEnd)
		}
		s.add(c, h)
	}
	b.scriptHits, b.hasDistinctCounters = b.scriptHits[:0], true
	for i, h := range b.hits {
		if c := s.ofHit[i]; c.usesScript {
			b.scriptHits = append(b.scriptHits, h)
			b.hasDistinctCounters = b.hasDistinctCounters && c.first == c.last
		}
	}
	b.isScriptDone = len(b.scriptHits) == 0
}

// hitsOf returns the hits of c.
func (b *batch) hitsOf(c *windowCounter) (hits []*pendingHit) {
	for i := c.first; i != noHit; i = b.counters.nextHit[i] {
		hits = append(hits, b.hits[i])
	}
	return hits
}

// hitsWithoutAnswer returns the hits that Redis has not decided, and that have not failed.
func (b *batch) hitsWithoutAnswer() (hits []*pendingHit) {
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
