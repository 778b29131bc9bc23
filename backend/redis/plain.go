package redis

import (
	"context"
	"errors"
	"strconv"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// plainCommands are the commands that charge or read one windowCounter:
//
//	SET name 0 PX ttl NX   unless this process remembers a time to live of the key
//	INCR name              for one hit
//	INCRBY name n          for several hits
//	GET name               if all hits are peeks
//
// Only the code in this file knows these formats. SET comes first, so the key has a time to live even
// if this process dies between SET and INCRBY. The commands point to name, n and ttl, so each batch can
// reuse the commands with other values.
type plainCommands struct {
	name string
	n    int64
	ttl  int64

	set       noRetryStatus
	increment noRetryInt // INCR
	add       noRetryInt // INCRBY
	get       noRetryString
	charge    noRetryInt // the command of the last charge, which is increment or add
	hasSet    bool       // reports whether the last commands contain SET
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

// encode appends the commands of c to commands. The commands are valid until the next encode. Their name
// points into the memory of the hits. hasTTL reports whether this process remembers a time to live of
// the key. mayIncrement reports whether the user of Redis may run INCR, which costs Redis less than
// INCRBY.
func (c *windowCounter) encode(commands []goredis.Cmder, hasTTL, mayIncrement bool) []goredis.Cmder {
	p := &c.plain
	if p.add.IntCmd == nil {
		ctx := context.Background()
		p.set = noRetryStatus{goredis.NewStatusCmd(ctx, "SET", &p.name, "0", "PX", &p.ttl, "NX")}
		p.increment = noRetryInt{goredis.NewIntCmd(ctx, "INCR", &p.name)}
		p.add = noRetryInt{goredis.NewIntCmd(ctx, "INCRBY", &p.name, &p.n)}
		p.get = noRetryString{goredis.NewStringCmd(ctx, "GET", &p.name)}
	}
	p.name, p.n, p.ttl, p.hasSet = asString(c.name), c.n, c.ttl, false
	if c.n == 0 {
		p.get.SetErr(nil)
		return append(commands, p.get)
	}
	if !hasTTL {
		p.hasSet = true
		p.set.SetErr(nil)
		commands = append(commands, p.set)
	}
	p.charge = p.add
	if c.n == 1 && mayIncrement {
		p.charge = p.increment
	}
	p.charge.SetErr(nil)
	return append(commands, p.charge)
}

// decode returns the reply to the commands of the last encode: the count before the hits, and
// whether the key has a time to live.
func (c *windowCounter) decode() (count int64, hasTTL bool, err error) {
	p := &c.plain
	if c.n == 0 {
		count, err = decodeCount(p.get.Result())
		return count, true, err
	}
	count, err = p.charge.Result()
	if err != nil {
		return 0, false, err
	}
	count -= c.n
	if p.hasSet {
		err := p.set.Err()
		return count, err == nil || errors.Is(err, goredis.Nil), nil
	}
	return count, count != 0, nil // a key with a count of 0 may be new
}

// isIncrForbidden reports whether Redis charged nothing because its user may not run INCR.
func (c *windowCounter) isIncrForbidden(err error) bool {
	return err != nil && c.n == 1 && c.plain.charge == c.plain.increment && KindOf(err) == KindNoPerm
}

// decodeCount returns the count in a reply to GET.
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

// answerHits sets the answers of the hits of c. The hits are counted one after the other, and count is the
// count before the first one.
func (b *batch) answerHits(c *windowCounter, count int64) {
	count = min(max(count, 0), limit.MaxHits)
	for i := c.first; i != noHit; i = b.counters.nextHit[i] {
		h := b.hits[i]
		h.answer = answer{Result: backend.Result{Source: backend.SourceRedis}}
		count, h.answer.Result.Result = h.limit.CountHits(count, h.n, h.untilEnd, true)
		h.answer.MayEndEarly = !h.answer.Allowed && b.queue.limiter.chargesInSteps()
	}
}
