package redis

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// windowCounter is a counter in Redis with its hits in a batch. For fixed_window, each window has a
// counter of its own.
type windowCounter struct {
	name       []byte // the key in Redis, in the memory of a call
	hash       uint64 // the hash of name in keysWithTTL
	ttl        int64  // time to live of a new key, in milliseconds
	hits       []*pendingHit
	n          int64 // sum of the hits
	usesScript bool  // the script decides all hits of the counter, because one of the hits needs the script
	isDone     bool  // no plain commands are left to send
	plain      plainCommands
}

// counterSet has the windowCounters of a batch. It reuses its memory.
type counterSet struct {
	all   []*windowCounter // all counters; the capacity has further counters for reuse
	ofHit []*windowCounter // the counter of each hit of the batch
	index []int32          // a hash table of places in all, from 1
}

func (s *counterSet) reset(n int) {
	clear(s.ofHit)
	for _, c := range s.all {
		clear(c.hits)
		c.hits = c.hits[:0]
	}
	s.all, s.ofHit = s.all[:0], s.ofHit[:0]
	size := powerOfTwo(max(2*n, 8))
	if size > cap(s.index) {
		s.index = make([]int32, size)
	}
	s.index = s.index[:size]
	clear(s.index)
}

// add adds h, the next hit of the batch, to its counter c.
func (s *counterSet) add(c *windowCounter, h *pendingHit) {
	s.ofHit, c.hits = append(s.ofHit, c), append(c.hits, h)
	c.n += h.N
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
	c.name, c.hash, c.ttl, c.n, c.usesScript, c.isDone = name, hash, 0, 0, false, false
	return c
}

// needsScript reports whether plain commands can't decide h: the counter is more than a number, a refund must not
// lower a count below 0, or only an admitted hit is charged.
func needsScript(h *pendingHit) bool {
	return !h.hasWindow() || h.N < 0 || h.N > 0 && (h.InGroup() || !h.Limit.ChargeDenied)
}

// divideHits finds the counter of each hit. Plain commands decide some counters, and the script all other hits.
func (b *batch) divideHits() {
	s := &b.counters
	s.reset(len(b.hits))
	b.hasGroups, b.mayRefund = false, false
	for _, h := range b.hits {
		b.hasGroups = b.hasGroups || h.InGroup()
		b.mayRefund = b.mayRefund || h.mayBeRefunded()
		if h.hasWindow() {
			h.setWindow(cmp.Or(h.call.now, b.now))
		}
		name := h.counterName()
		c := s.find(name, b.queue.keysWithTTL.hash(name))
		if len(c.hits) == 0 && h.hasWindow() {
			c.ttl = b.queue.limiter.options.windowTTL(h.Limit, h.untilEnd)
		}
		s.add(c, h)
	}
	b.scriptHits, b.hasDistinctCounters = b.scriptHits[:0], true
	for i, h := range b.hits {
		if c := s.ofHit[i]; c.usesScript {
			b.scriptHits = append(b.scriptHits, h)
			b.hasDistinctCounters = b.hasDistinctCounters && len(c.hits) == 1
		}
	}
	b.isScriptDone = len(b.scriptHits) == 0
}

// hitsWithoutAnswer returns the hits that Redis has not decided, and that have not failed.
func (b *batch) hitsWithoutAnswer() (hits []*pendingHit) {
	for _, c := range b.counters.all {
		if !c.isDone {
			hits = append(hits, c.hits...)
		}
	}
	if !b.isScriptDone {
		hits = append(hits, b.scriptHits...)
	}
	return hits
}

// plainCommands are the commands that charge or read one windowCounter:
//
//	SET name 0 PX ttl NX   unless this process remembers a time to live of the key
//	INCR name              for one hit
//	INCRBY name n          for several hits
//	GET name               if all hits are peeks
//
// If the user of Redis has the rights for envoyproxy/ratelimit only, INCRBY name 0 takes the place of GET, and
// EXPIRE name seconds, after the charge, that of SET.
//
// SET comes first, so the key has a time to live even if this process dies between SET and INCRBY. The commands
// point to name, n and ttl, so each batch can reuse them.
type plainCommands struct {
	name       string
	n          int64
	ttl        int64
	ttlSeconds int64

	set       noRetryStatus
	expire    *goredis.BoolCmd
	increment noRetryInt // INCR
	add       noRetryInt // INCRBY
	get       noRetryString
	charge    noRetryInt    // the command of the last charge, which is increment or add
	setsTTL   goredis.Cmder // set or expire, if it is one of the last commands, or nil
	isRead    bool          // the last command is get
}

// These commands must not be repeated by go-redis, because Redis may have executed them.
type (
	noRetryStatus struct{ *goredis.StatusCmd }
	noRetryInt    struct{ *goredis.IntCmd }
	noRetryString struct{ *goredis.StringCmd }
)

func (noRetryStatus) NoRetry() bool { return true }
func (noRetryInt) NoRetry() bool    { return true }
func (noRetryString) NoRetry() bool { return true }

// encode appends the commands of c to commands, which are valid until the next encode. hasTTL reports whether this
// process remembers a time to live of the key. INCR costs Redis less than INCRBY.
func (c *windowCounter) encode(commands []goredis.Cmder, hasTTL bool, r *redisInstance) []goredis.Cmder {
	p, maySet := &c.plain, !r.setForbidden.Load()
	if p.add.IntCmd == nil {
		ctx := context.Background()
		p.set = noRetryStatus{goredis.NewStatusCmd(ctx, "SET", &p.name, "0", "PX", &p.ttl, "NX")}
		p.increment = noRetryInt{goredis.NewIntCmd(ctx, "INCR", &p.name)}
		p.add = noRetryInt{goredis.NewIntCmd(ctx, "INCRBY", &p.name, &p.n)}
		p.get = noRetryString{goredis.NewStringCmd(ctx, "GET", &p.name)}
		p.expire = goredis.NewBoolCmd(ctx, "EXPIRE", &p.name, &p.ttlSeconds)
	}
	p.name, p.n, p.ttl, p.ttlSeconds, p.setsTTL = asString(c.name), c.n, c.ttl, ttlSeconds(c.ttl), nil
	p.isRead = c.n == 0 && maySet
	if p.isRead {
		p.get.SetErr(nil)
		return append(commands, p.get)
	}
	if !hasTTL && maySet {
		p.setsTTL = p.set
		p.set.SetErr(nil)
		commands = append(commands, p.set)
	}
	p.charge = p.add
	if c.n == 1 && maySet && !r.incrForbidden.Load() {
		p.charge = p.increment
	}
	p.charge.SetErr(nil)
	commands = append(commands, p.charge)
	if !hasTTL && !maySet {
		p.setsTTL = p.expire
		p.expire.SetErr(nil)
		commands = append(commands, p.expire)
	}
	return commands
}

// decode returns the reply to the last commands: the count before the hits, and whether the key has a time to live.
func (c *windowCounter) decode() (count int64, hasTTL bool, err error) {
	p := &c.plain
	if p.isRead {
		count, err = decodeCount(p.get.Result())
		return count, true, err
	}
	count, err = p.charge.Result()
	if err != nil {
		return 0, false, err
	}
	count -= c.n
	if p.setsTTL != nil {
		err := p.setsTTL.Err()
		return count, err == nil || errors.Is(err, goredis.Nil), nil
	}
	return count, count != 0, nil // a key with a count of 0 may be new
}

// adaptTo remembers in r which of the last commands its user may not run. err is their error. adaptTo reports whether
// Redis charged nothing, and other commands can take their place.
func (c *windowCounter) adaptTo(r *redisInstance, err error) bool {
	p := &c.plain
	isForbidden := isNoPerm(err)
	if p.setsTTL == p.set && isNoPerm(p.set.Err()) || p.isRead && isForbidden {
		r.setForbidden.Store(true)
	}
	isIncr := c.n == 1 && !p.isRead && p.charge == p.increment
	if isIncr && isForbidden {
		r.incrForbidden.Store(true)
	}
	return isForbidden && (p.isRead || isIncr)
}

func decodeCount(text string, err error) (int64, error) {
	if errors.Is(err, goredis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	count, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, keyError("WRONGTYPE the key holds another string")
	}
	return count, nil
}

// answerHits sets the answers of the hits of c. count is the count before the first hit. mayEndEarly is for denials.
func (c *windowCounter) answerHits(count int64, mayEndEarly bool) {
	count = min(max(count, 0), limit.MaxHits)
	for _, h := range c.hits {
		h.answer = answer{Result: backend.Result{Source: backend.SourceRedis}}
		count, h.answer.Result.Result = h.Limit.CountHits(count, h.N, h.untilEnd, true)
		h.answer.MayEndEarly = mayEndEarly && !h.answer.Allowed
	}
}
