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

// scriptCall encodes hits as a call of the script, and decodes the reply. lua/take.lua explains both.
type scriptCall struct {
	names        []string // the names of the hits' counters; the calls own the memory
	args         []any
	rows         []limitRow
	rowNumbers   []int64 // the place of each hit's limit in rows, from 1
	packedArgs   []byte  // ARGV[1]
	packedGroups []byte  // ARGV[2]
}

// limitRow is a limit in the script's arguments, which lua/take.lua explains.
type limitRow struct {
	algorithm             limit.Algorithm
	mode                  uint8
	max, period, capacity int64
}

// Modes of a limitRow. lua/take.lua explains them.
const (
	modeChargeDenied = 1
	modeGroup        = 2
	modeShadow       = 4 // added to modeGroup
	modeRefundable   = 8 // added to modeGroup
)

// heldRetryTime is the retry time in the reply for an allowed hit that renews a hold. For another allowed hit with a
// RetryAfter of r, the retry time in the reply is heldRetryTime - r.
const heldRetryTime = -2

// maxRowSearch is the number of rows among which encode looks for an equal row. If it finds none, it repeats the row.
const maxRowSearch = 16

// firstKey is the place of the first key in EVALSHA digest numkeys key...
const firstKey = 3

// encode returns the arguments of the command that runs the script for hits. hasDistinctCounters means that each hit has
// its own counter. The next encode changes the arguments. The calls own the names of the counters, and keep them until
// the command is done.
func (s *scriptCall) encode(hits []*pendingHit, now, jitter int64, mustSendScript, hasDistinctCounters bool, refundTime int64) []any {
	s.args, s.names = s.args[:0], s.names[:0]
	if mustSendScript {
		s.args = append(s.args, "EVAL", scriptText)
	} else {
		s.args = append(s.args, "EVALSHA", scriptDigest)
	}
	s.args = append(s.args, len(hits))

	s.rows, s.rowNumbers = s.rows[:0], s.rowNumbers[:0]
	hasGroups := false
	for _, h := range hits {
		s.names = append(s.names, asString(h.counterName()))
		s.rowNumbers = append(s.rowNumbers, s.rowNumber(h))
		hasGroups = hasGroups || h.InGroup() && (len(h.call.hits) > 1 || h.call.hasOtherCalls())
	}
	for i := range s.names {
		s.args = append(s.args, &s.names[i])
	}

	b := msgp.AppendArrayHeader(s.packedArgs[:0], uint32(5+5*len(s.rows)+2*len(hits)))
	b = appendInts(b, now, jitter, boolToInt(hasDistinctCounters), refundTime, int64(len(s.rows)))
	for _, r := range s.rows {
		b = msgp.AppendString(b, r.algorithm.String())
		b = appendInts(b, r.max, r.period, r.capacity, int64(r.mode))
	}
	for i, h := range hits {
		b = msgp.AppendInt64(b, s.rowNumbers[i])
		b = appendHits(b, h)
	}
	s.packedArgs = b

	s.packedGroups = s.packedGroups[:0]
	if hasGroups {
		n := uint32(0)
		forEachCall(hits, func([]*pendingHit) { n++ })
		s.packedGroups = msgp.AppendArrayHeader(s.packedGroups, n)
		forEachCall(hits, func(group []*pendingHit) { s.packedGroups = msgp.AppendInt64(s.packedGroups, int64(len(group))) })
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

// rowNumber returns the place of h's limit in s.rows, from 1. It adds a row if no row has this limit.
func (s *scriptCall) rowNumber(h *pendingHit) int64 {
	r := limitRow{algorithm: h.Limit.Algorithm, max: h.Limit.Max(), period: h.Limit.Period(), capacity: h.Limit.Capacity()}
	if h.Limit.HasBurst() {
		r.capacity = -r.capacity
	}
	if h.hasWindow() {
		r.period = h.untilEnd
	}
	switch {
	case h.InGroup():
		r.mode = modeGroup
		if h.Shadow {
			r.mode += modeShadow
		}
		if h.mayBeRefunded() {
			r.mode += modeRefundable
		}
	case h.Limit.ChargeDenied:
		r.mode = modeChargeDenied
	}
	for i := len(s.rows); i > max(len(s.rows)-maxRowSearch, 0); i-- {
		if s.rows[i-1] == r {
			return int64(i)
		}
	}
	s.rows = append(s.rows, r)
	return int64(len(s.rows))
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

// asString returns b as a string without a copy. The string is valid as long as b does not change.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// errReply is in the chain of each error about a reply without the expected form.
var errReply = errors.New("the reply of Redis can't be read")

var errShortReply = fmt.Errorf("%w: it ends before this hit", errReply)

// keyError is an error of one key. It implements goredis.Error.
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
	if err != nil { // the error can concern any hit
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
	h.call.queue.limiter.options.Observer.Failed(h.call.queue.instance.role, KindOf(err))
	h.answer = answer{Result: backend.Result{Err: fmt.Errorf("redis %s: counter %q: %w", server, h.counterName(), failed(err))}}
}
