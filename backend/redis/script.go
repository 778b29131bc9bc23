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

var (
	scriptText   = lua.Take(limit.AlgorithmNames()...)
	scriptDigest = goredis.NewScript(scriptText).Hash()
)

// scriptCall encodes hits as a call of the script, and decodes the reply. The head of lua/take.lua documents the
// arguments and the reply.
type scriptCall struct {
	names        []string // the counter name of each hit; the texts share the memory of requestPart.names
	args         []any
	limits       []scriptLimit
	limitNumbers []int64 // the place of each hit's limit in limits, from 1
	packedArgs   []byte  // ARGV[1]
	packedGroups []byte  // ARGV[2]
}

type scriptLimit struct {
	algorithm limit.Algorithm
	mode      uint8
	maxHits   int64 // the hits that a window admits
	period    int64 // in microseconds
	capacity  int64 // the most hits that can be spent at once; negative if the limit has a burst, so -20 means 20
}

const (
	modeChargeDenied = 1 // denied hits are charged
	modeAllOrNone    = 2 // the hit is charged only if each hit of its group (the same request) is admitted
	modeShadow       = 4 // the hit does not deny its group; added to modeAllOrNone
	modeRefundable   = 8 // the group has hits in other partitions, so the charge may be refunded; added to modeAllOrNone
)

// renewalRetryTime is the retry time in the reply for an allowed hit that renews a hold. The retry time n means:
//
//	n > 0   the hit is denied, and its RetryAfter is n
//	n = 0   the hit is allowed
//	n = -2  the hit is allowed, and renews a hold
//	n < -2  the hit is allowed, and its RetryAfter is -2 - n, so -7 means 5
const renewalRetryTime = -2

// maxLimitSearch is the number of earlier limits that encode compares with a limit. If none of them is equal, encode
// appends the limit. A longer search would cost more than a second copy of the limit.
const maxLimitSearch = 16

// firstKeyPlace is the index of the first key in the command EVALSHA digest numkeys key...
const firstKeyPlace = 3

// The numbers of values in the arguments and in the reply.
const (
	headValues  = 5 // at the start of ARGV[1]
	limitValues = 5 // for each limit in ARGV[1]
	hitValues   = 2 // for each hit in ARGV[1]
	replyValues = 3 // for each hit in the reply
)

// encode returns the arguments of the command that runs the script for hits. The next encode reuses their memory. now is
// in microseconds since 1970. The script adds jitterMillis to the time to live of each key. hasDistinctCounters means
// that each hit has its own counter. Charges with modeRefundable can be refunded for refundMillis.
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
		hasGroups = hasGroups || h.IsInGroup() && (len(h.part.hits) > 1 || h.part.request.hasSeveralParts())
	}
	for i := range s.names {
		s.args = append(s.args, &s.names[i])
	}

	b := msgp.AppendArrayHeader(s.packedArgs[:0], uint32(headValues+limitValues*len(s.limits)+hitValues*len(hits)))
	distinctCounters := int64(0)
	if hasDistinctCounters {
		distinctCounters = 1
	}
	b = appendInts(b, now, jitterMillis, distinctCounters, refundMillis, int64(len(s.limits)))
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
		groupCount := uint32(0)
		forEachPart(hits, func([]*pendingHit) { groupCount++ })
		s.packedGroups = msgp.AppendArrayHeader(s.packedGroups, groupCount)
		forEachPart(hits, func(group []*pendingHit) { s.packedGroups = msgp.AppendInt64(s.packedGroups, int64(len(group))) })
	}
	s.args = append(s.args, asString(s.packedArgs), asString(s.packedGroups))
	return s.args
}

// appendHits appends the number of hits of h. If h takes or renews a hold with an id, appendHits also appends the id. If
// h refunds an anonymous hold, appendHits also appends the expiry of the hold.
func appendHits(b []byte, h *pendingHit) []byte {
	if !h.Limit.Algorithm.HasHolds() || h.HoldID == "" && h.refundedHoldExpiry == 0 {
		return msgp.AppendInt64(b, h.N)
	}
	b = msgp.AppendArrayHeader(b, 2) // the number of hits, and the id or the expiry
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
		l.period = h.microsToWindowEnd
	}
	switch {
	case h.IsInGroup():
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

// asString returns b as a string that shares the memory of b, so b must not change.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// errBadReply is in the chain of each error about a reply without the expected form.
var errBadReply = errors.New("the reply of Redis can't be read")

var errShortReply = fmt.Errorf("%w: the reply ends before this hit", errBadReply)

// keyError is an error of one key, such as "WRONGTYPE the key holds another string". It implements goredis.Error.
type keyError string

func (e keyError) Error() string { return string(e) }
func (keyError) RedisError()     {}

// decode sets the answers of hits from the reply of the script. A hit without an answer in reply gets an error.
func (s *scriptCall) decode(reply []byte, hits []*pendingHit, server string) {
	replySize, unreadBytes, err := msgp.ReadArrayHeaderBytes(reply)
	size, sizeWithoutErrors := int(replySize), replyValues*len(hits)+1
	nextInt := func() (n int64) {
		if err == nil {
			n, unreadBytes, err = msgp.ReadInt64Bytes(unreadBytes)
		}
		return n
	}
	for i, h := range hits {
		if replyValues*(i+1) > size {
			h.fail(server, errShortReply)
			continue
		}
		spent, reset, retry := nextInt(), nextInt(), nextInt()
		denialMayEndEarly := reset < 0
		if denialMayEndEarly {
			reset = -1 - reset // a reset time of 5 is sent as -6
		}
		h.answer = answer{Result: backend.Result{Source: backend.SourceRedis, DenialMayEndEarly: denialMayEndEarly, Result: limit.Result{
			Allowed: retry == 0 || retry <= renewalRetryTime, Remaining: h.Limit.Capacity() - spent, ResetAfter: reset, RetryAfter: retry,
			HoldExists: retry == renewalRetryTime,
		}}}
		if retry <= renewalRetryTime {
			h.answer.RetryAfter = renewalRetryTime - retry
		}
	}
	if size >= sizeWithoutErrors {
		now := nextInt()
		for _, h := range hits {
			h.answer.decidedAt = now
		}
	}
	for elementsLeft := size - sizeWithoutErrors; elementsLeft > 0 && err == nil; elementsLeft -= 2 {
		hitNumber, text := nextInt(), ""
		if err == nil {
			text, unreadBytes, err = msgp.ReadStringBytes(unreadBytes)
		}
		if err == nil && (hitNumber < 1 || hitNumber > int64(len(hits))) {
			err = fmt.Errorf("error of hit %d: %s", hitNumber, text)
		}
		if err == nil {
			hits[hitNumber-1].fail(server, keyError(text))
		}
	}
	if err != nil { // rls can't tell which hits the unread bytes are about
		err = fmt.Errorf("%w: %w", errBadReply, err)
		for _, h := range hits {
			if h.answer.Err == nil {
				h.fail(server, err)
			}
		}
	}
}

func (h *pendingHit) fail(server string, err error) {
	h.part.queue.limiter.options.Observer.ErrorOccurred(h.part.queue.instance.role, KindOf(err))
	h.answer = answer{Result: backend.Result{Err: fmt.Errorf("redis %s: counter %q: %w", server, h.counterName(), newOutageError(err))}}
}
