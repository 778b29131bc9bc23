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

// batchCounter is a counter in Redis, with the hits of a batch on this counter. In fixed_window, each window has its own
// counter.
type batchCounter struct {
	name       []byte // the key in Redis; it shares the memory of requestPart.names
	hash       uint64 // the hash of name in keysWithTTL
	ttl        int64  // time to live of a new key, in milliseconds
	hits       []*pendingHit
	hitSum     int64 // the sum of N of the hits
	usesScript bool  // the script decides all hits of the counter, because it must decide one of them
	isDone     bool  // the counter needs no further plain commands
	commands   plainCommands
}

// counterSet has the counters of a batch. It reuses its memory.
type counterSet struct {
	list         []*batchCounter // all counters; the elements beyond the length are for reuse
	counterOfHit []*batchCounter // the counter of each hit, in the order of the hits
	hashTable    []int32         // finds a counter by the hash of its name: an element is an index in list plus 1, or 0 if it is free
}

// reset removes all counters, and makes space for the counters of hitCount hits.
func (s *counterSet) reset(hitCount int) {
	clear(s.counterOfHit)
	for _, c := range s.list {
		clear(c.hits)
		c.hits = c.hits[:0]
	}
	s.list, s.counterOfHit = s.list[:0], s.counterOfHit[:0]
	size := nextPowerOfTwo(max(2*hitCount, 8)) // at least half of the elements stay free, so that searches are short
	if size > cap(s.hashTable) {
		s.hashTable = make([]int32, size)
	}
	s.hashTable = s.hashTable[:size]
	clear(s.hashTable)
}

func (s *counterSet) findOrAdd(name []byte, hash uint64) *batchCounter {
	mask := uint64(len(s.hashTable) - 1)
	tableIndex := hash & mask
	for ; s.hashTable[tableIndex] != 0; tableIndex = (tableIndex + 1) & mask {
		if c := s.list[s.hashTable[tableIndex]-1]; c.hash == hash && bytes.Equal(c.name, name) {
			return c
		}
	}
	n := len(s.list)
	if n < cap(s.list) && s.list[:n+1][n] != nil {
		s.list = s.list[:n+1]
	} else {
		s.list = append(s.list, &batchCounter{})
	}
	s.hashTable[tableIndex] = int32(n + 1)
	c := s.list[n]
	c.name, c.hash, c.ttl, c.hitSum, c.usesScript, c.isDone = name, hash, 0, 0, false, false
	return c
}

// needsScript reports whether the script must decide h. Plain commands can decide only hits on counters that are plain
// numbers. They can't refund hits, because INCRBY may lower the count below 0, and they charge denied hits too.
func needsScript(h *pendingHit) bool {
	isRefund, isCharge := h.N < 0, h.N > 0
	isChargedOnlyIfAdmitted := h.IsInGroup() || !h.Limit.ChargeDenied
	return !h.hasWindow() || isRefund || isCharge && isChargedOnlyIfAdmitted
}

// divideHits finds the counter of each hit, and sets scriptHits. Plain commands decide all other hits.
func (b *batch) divideHits() {
	s := &b.counters
	s.reset(len(b.hits))
	b.hasGroups, b.mayRefund = false, false
	for _, h := range b.hits {
		b.hasGroups = b.hasGroups || h.IsInGroup()
		b.mayRefund = b.mayRefund || h.mayBeRefunded()
		if h.hasWindow() {
			h.setWindow(cmp.Or(h.part.now, b.now))
		}
		name := h.counterName()
		c := s.findOrAdd(name, b.queue.keysWithTTL.hash(name))
		if len(c.hits) == 0 && h.hasWindow() {
			c.ttl = b.queue.limiter.options.windowTTL(h.Limit, h.microsToWindowEnd)
		}
		s.counterOfHit, c.hits = append(s.counterOfHit, c), append(c.hits, h)
		c.hitSum += h.N
		if needsScript(h) {
			c.usesScript, c.isDone = true, true
		}
	}
	b.scriptHits, b.hasDistinctCounters = b.scriptHits[:0], true
	for i, h := range b.hits {
		if c := s.counterOfHit[i]; c.usesScript {
			b.scriptHits = append(b.scriptHits, h)
			b.hasDistinctCounters = b.hasDistinctCounters && len(c.hits) == 1
		}
	}
	b.isScriptDone = len(b.scriptHits) == 0
}

// hitsWithoutAnswer returns the hits that Redis has not decided, and that have not failed.
func (b *batch) hitsWithoutAnswer() (hits []*pendingHit) {
	for _, c := range b.counters.list {
		if !c.isDone {
			hits = append(hits, c.hits...)
		}
	}
	if !b.isScriptDone {
		hits = append(hits, b.scriptHits...)
	}
	return hits
}

// plainCommands are the commands that charge or read one batchCounter:
//
//	SET name 0 PX ttl NX   if this process does not know that the key has a time to live
//	INCR name              for one hit
//	INCRBY name n          for several hits
//	GET name               if all hits are peeks
//
// If the user of Redis may run only the commands of envoyproxy/ratelimit, INCRBY name 0 replaces GET, and
// EXPIRE name seconds, which follows the charge, replaces SET.
//
// SET comes first, so the key has a time to live even if this process dies between SET and INCRBY. The commands point
// to the fields name, hitSum and ttl, so each batch can reuse the commands.
type plainCommands struct {
	name       string
	hitSum     int64
	ttl        int64
	ttlSeconds int64

	setCommand    statusCmdWithoutRetry
	expireCommand *goredis.BoolCmd
	incrCommand   intCmdWithoutRetry
	incrByCommand intCmdWithoutRetry
	getCommand    stringCmdWithoutRetry
	lastCharge    intCmdWithoutRetry // the last command that charges: incrCommand or incrByCommand
	ttlCommand    goredis.Cmder      // the last command that sets the time to live: setCommand, expireCommand or nil
	isPeek        bool               // the last command is getCommand, because all hits are peeks
}

// go-redis must not send these commands again, because Redis may have executed them.
type (
	statusCmdWithoutRetry struct{ *goredis.StatusCmd }
	intCmdWithoutRetry    struct{ *goredis.IntCmd }
	stringCmdWithoutRetry struct{ *goredis.StringCmd }
)

func (statusCmdWithoutRetry) NoRetry() bool { return true }
func (intCmdWithoutRetry) NoRetry() bool    { return true }
func (stringCmdWithoutRetry) NoRetry() bool { return true }

// encode appends the commands of c to commands. The next encode of c changes the same commands. hasTTL means that this
// process knows that the key has a time to live. encode prefers INCR to INCRBY, because INCR costs Redis less.
func (c *batchCounter) encode(commands []goredis.Cmder, hasTTL bool, instance *redisInstance) []goredis.Cmder {
	p, maySet := &c.commands, !instance.isSetForbidden.Load()
	if p.incrByCommand.IntCmd == nil {
		ctx := context.Background()
		p.setCommand = statusCmdWithoutRetry{goredis.NewStatusCmd(ctx, "SET", &p.name, "0", "PX", &p.ttl, "NX")}
		p.incrCommand = intCmdWithoutRetry{goredis.NewIntCmd(ctx, "INCR", &p.name)}
		p.incrByCommand = intCmdWithoutRetry{goredis.NewIntCmd(ctx, "INCRBY", &p.name, &p.hitSum)}
		p.getCommand = stringCmdWithoutRetry{goredis.NewStringCmd(ctx, "GET", &p.name)}
		p.expireCommand = goredis.NewBoolCmd(ctx, "EXPIRE", &p.name, &p.ttlSeconds)
	}
	p.name, p.hitSum, p.ttl, p.ttlSeconds, p.ttlCommand = asString(c.name), c.hitSum, c.ttl, ttlSeconds(c.ttl), nil
	p.isPeek = c.hitSum == 0 && maySet
	if p.isPeek {
		p.getCommand.SetErr(nil)
		return append(commands, p.getCommand)
	}
	if !hasTTL && maySet {
		p.ttlCommand = p.setCommand
		p.setCommand.SetErr(nil)
		commands = append(commands, p.setCommand)
	}
	p.lastCharge = p.incrByCommand
	if c.hitSum == 1 && maySet && !instance.isIncrForbidden.Load() {
		p.lastCharge = p.incrCommand
	}
	p.lastCharge.SetErr(nil)
	commands = append(commands, p.lastCharge)
	if !hasTTL && !maySet {
		p.ttlCommand = p.expireCommand
		p.expireCommand.SetErr(nil)
		commands = append(commands, p.expireCommand)
	}
	return commands
}

// decode reads the replies to the commands of the last encode. It returns the count before the hits, and whether the key
// has a time to live.
func (c *batchCounter) decode() (count int64, hasTTL bool, err error) {
	p := &c.commands
	if p.isPeek {
		count, err = decodeCount(p.getCommand.Result())
		return count, true, err
	}
	count, err = p.lastCharge.Result()
	if err != nil {
		return 0, false, err
	}
	count -= c.hitSum
	if p.ttlCommand != nil {
		err := p.ttlCommand.Err()
		return count, err == nil || errors.Is(err, goredis.Nil), nil
	}
	return count, count != 0, nil // a key with a count of 0 may be new
}

// recordForbidden records in instance which commands of the last encode the user of Redis has no right to run. err is the
// error that decode returned. If Redis has charged nothing and other commands are possible, it returns true.
func (c *batchCounter) recordForbidden(instance *redisInstance, err error) (canUseOtherCommands bool) {
	p := &c.commands
	isForbidden := isNoPerm(err)
	if p.ttlCommand == p.setCommand && isNoPerm(p.setCommand.Err()) || p.isPeek && isForbidden {
		instance.isSetForbidden.Store(true)
	}
	usesIncr := c.hitSum == 1 && !p.isPeek && p.lastCharge == p.incrCommand
	if usesIncr && isForbidden {
		instance.isIncrForbidden.Store(true)
	}
	return isForbidden && (p.isPeek || usesIncr)
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

// answerHits sets the answers of the hits of c. count is the count before the first hit.
func (c *batchCounter) answerHits(count int64, denialsMayEndEarly bool) {
	count = min(max(count, 0), limit.MaxHits)
	for _, h := range c.hits {
		h.answer = answer{Result: backend.Result{Source: backend.SourceRedis}}
		count, h.answer.Result.Result = h.Limit.CountHits(count, h.N, h.microsToWindowEnd, true)
		h.answer.DenialMayEndEarly = denialsMayEndEarly && !h.answer.Allowed
	}
}
