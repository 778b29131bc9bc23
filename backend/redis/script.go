package redis

import (
	"errors"
	"fmt"
	"unsafe"

	goredis "github.com/redis/go-redis/v9"
	"github.com/tinylib/msgp/msgp"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/lua"
)

// scriptText is the script of all algorithms.
var (
	scriptText   = lua.Take(limit.AlgorithmNames()...)
	scriptDigest = goredis.NewScript(scriptText).Hash()
)

// scriptCall encodes hits as a call of the script, and decodes the reply. The head of lua/take.lua documents the
// arguments and the reply.
type scriptCall struct {
	names        []string // the names of the hits' counters, in the memory of requestPart.names
	args         []any
	limits       []scriptLimit
	limitNumbers []int64 // the place of each hit's limit in limits, from 1
	packedArgs   []byte  // ARGV[1]
	packedGroups []byte  // ARGV[2]
}

// scriptLimit is a limit as the script gets it.
type scriptLimit struct {
	algorithm limit.Algorithm
	mode      uint8
	maxHits   int64 // the hits that a window admits
	period    int64 // in microseconds
	capacity  int64 // the most hits that can be spent at once; differs from maxHits only with a burst, and is negative then
}

// The modes of a scriptLimit.
const (
	modeChargeDenied = 1 // denied hits are charged
	modeAllOrNone    = 2 // the hit is charged only if no hit of its group denies the group
	modeShadow       = 4 // the hit does not deny its group; added to modeAllOrNone
	modeRefundable   = 8 // the group has hits in other partitions, so the charge may be refunded; added to modeAllOrNone
)

// heldRetryTime is the retry time in the reply for an allowed hit that renews a hold. For another allowed hit with a
// RetryAfter above 0, the retry time in the reply is heldRetryTime - RetryAfter: a RetryAfter of 5 is sent as -7, because
// a positive retry time means a denial.
const heldRetryTime = -2

// maxLimitSearch is the number of earlier limits among which encode looks for an equal limit. If encode finds no equal
// limit, it appends the limit again, because a longer search would cost more than the copy.
const maxLimitSearch = 16

// firstKey is the place of the first key in the command EVALSHA digest numkeys key..., where EVALSHA has place 0.
const firstKey = 3

// encode returns the arguments of the command that runs the script for hits. now is in microseconds since 1970, and
// jitterMillis is added to the time to live of each key. hasDistinctCounters means that each hit has its own counter.
// Charges with modeRefundable can be refunded for refundMillis. The next encode changes the arguments.
func (s *scriptCall) encode(hits []*pendingHit, now, jitterMillis int64, mustSendScript, hasDistinctCounters bool, refundMillis int64) []any {
	s.args, s.names = s.args[:0], s.names[:0]
	if mustSendScript {
		s.args = append(s.args, "EVAL", scriptText)
	} else {
		s.args = append(s.args, "EVALSHA", scriptDigest)
	}
	s.args = append(s.args, len(hits))

	s.limits, s.limitNumbers = s.limits[:0], s.limitNumbers[:0]
	hasGroups := false
	for _, h := range hits {
		s.names = append(s.names, asString(h.counterName()))
		s.limitNumbers = append(s.limitNumbers, s.limitNumber(h))
		hasGroups = hasGroups || h.InGroup() && (len(h.part.hits) > 1 || h.part.request.hasSeveralParts())
	}
	for i := range s.names {
		s.args = append(s.args, &s.names[i])
	}

	b := msgp.AppendArrayHeader(s.packedArgs[:0], uint32(5+5*len(s.limits)+2*len(hits)))
	b = appendInts(b, now, jitterMillis, boolToInt(hasDistinctCounters), refundMillis, int64(len(s.limits)))
	for _, l := range s.limits {
		b = msgp.AppendString(b, l.algorithm.String())
		b = appendInts(b, l.maxHits, l.period, l.capacity, int64(l.mode))
	}
	for i, h := range hits {
		b = msgp.AppendInt64(b, s.limitNumbers[i])
		b = appendHits(b, h)
	}
	s.packedArgs = b

	s.packedGroups = s.packedGroups[:0]
	if hasGroups {
		n := uint32(0)
		forEachPart(hits, func([]*pendingHit) { n++ })
		s.packedGroups = msgp.AppendArrayHeader(s.packedGroups, n)
		forEachPart(hits, func(group []*pendingHit) { s.packedGroups = msgp.AppendInt64(s.packedGroups, int64(len(group))) })
	}
	s.args = append(s.args, asString(s.packedArgs), asString(s.packedGroups))
	return s.args
}

// appendHits appends the number of hits of h. If h names or refunds a hold, it also appends the id or the expiry of
// the hold.
func appendHits(b []byte, h *pendingHit) []byte {
	if !h.Limit.Algorithm.HasHolds() || h.HoldID == "" && h.refundedHoldExpiry == 0 {
		return msgp.AppendInt64(b, h.N)
	}
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendInt64(b, h.N)
	if h.refundedHoldExpiry != 0 {
		return msgp.AppendInt64(b, h.refundedHoldExpiry)
	}
	return msgp.AppendString(b, h.HoldID)
}

// limitNumber returns the place of h's limit in s.limits, from 1. If s.limits lacks the limit, limitNumber adds it.
func (s *scriptCall) limitNumber(h *pendingHit) int64 {
	l := scriptLimit{algorithm: h.Limit.Algorithm, maxHits: h.Limit.Max(), period: h.Limit.Period(), capacity: h.Limit.Capacity()}
	if h.Limit.HasBurst() {
		l.capacity = -l.capacity
	}
	if h.hasWindow() {
		l.period = h.untilEnd
	}
	switch {
	case h.InGroup():
		l.mode = modeAllOrNone
		if h.Shadow {
			l.mode += modeShadow
		}
		if h.mayBeRefunded() {
			l.mode += modeRefundable
		}
	case h.Limit.ChargeDenied:
		l.mode = modeChargeDenied
	}
	for i := len(s.limits); i > max(len(s.limits)-maxLimitSearch, 0); i-- {
		if s.limits[i-1] == l {
			return int64(i)
		}
	}
	s.limits = append(s.limits, l)
	return int64(len(s.limits))
}

func appendInts(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = msgp.AppendInt64(b, n)
	}
	return b
}

func boolToInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// asString returns b as a string that shares the memory of b, so b must not change.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// errReply is in the chain of each error about a reply without the expected form.
var errReply = errors.New("the reply of Redis can't be read")

var errShortReply = fmt.Errorf("%w: the reply ends before this hit", errReply)

// keyError is an error of one key, such as "WRONGTYPE the key holds another string". It implements goredis.Error.
type keyError string

func (e keyError) Error() string { return string(e) }
func (keyError) RedisError()     {}

// decode sets the answers of hits from the reply of the script. A hit without an answer in reply gets an error.
func (s *scriptCall) decode(reply []byte, hits []*pendingHit, server string) {
	size, rest, err := msgp.ReadArrayHeaderBytes(reply)
	nextInt := func() (n int64) {
		if err == nil {
			n, rest, err = msgp.ReadInt64Bytes(rest)
		}
		return n
	}
	for i, h := range hits {
		if 3*i+3 > int(size) {
			h.fail(server, errShortReply)
			continue
		}
		spent, reset, retry := nextInt(), nextInt(), nextInt()
		mayEndEarly := reset < 0
		if mayEndEarly {
			reset = -1 - reset
		}
		h.answer = answer{Result: backend.Result{Source: backend.SourceRedis, MayEndEarly: mayEndEarly, Result: limit.Result{
			Allowed: retry == 0 || retry <= heldRetryTime, Remaining: h.Limit.Capacity() - spent, ResetAfter: reset, RetryAfter: retry,
			Held: retry == heldRetryTime,
		}}}
		if retry <= heldRetryTime {
			h.answer.RetryAfter = heldRetryTime - retry
		}
	}
	if int(size) > 3*len(hits) {
		now := nextInt()
		for _, h := range hits {
			h.answer.decidedAt = now
		}
	}
	for elementsLeft := int(size) - 3*len(hits) - 1; elementsLeft > 0 && err == nil; elementsLeft -= 2 {
		i, text := nextInt(), ""
		if err == nil {
			text, rest, err = msgp.ReadStringBytes(rest)
		}
		if err == nil && (i < 1 || i > int64(len(hits))) {
			err = fmt.Errorf("error of hit %d: %s", i, text)
		}
		if err == nil {
			hits[i-1].fail(server, keyError(text))
		}
	}
	if err != nil { // the error can concern every hit without an answer
		err = fmt.Errorf("%w: %w", errReply, err)
		for _, h := range hits {
			if h.answer.Err == nil {
				h.fail(server, err)
			}
		}
	}
}

// fail sets the answer of h to err, and passes err to the Observer.
func (h *pendingHit) fail(server string, err error) {
	h.part.queue.limiter.options.Observer.Failed(h.part.queue.instance.role, KindOf(err))
	h.answer = answer{Result: backend.Result{Err: fmt.Errorf("redis %s: counter %q: %w", server, h.counterName(), failed(err))}}
}
