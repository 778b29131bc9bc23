package redis

import (
	"context"
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

// scriptCall translates between hits and calls of the script. Only scriptCall knows the
// formats of arguments and reply, which lua/take.lua documents. It reuses its memory.
type scriptCall struct {
	names  []string // keys of the hits, in the memory of their calls
	args   []any
	rows   []limitRow
	rowOf  []int64 // row of each hit, from 1
	packed []byte  // ARGV[1]
	groups []byte  // ARGV[2]
}

// limitRow is a limit in the script's arguments.
type limitRow struct {
	algorithm             limit.Algorithm
	mode                  uint8
	max, period, capacity int64
}

// Modes of a limitRow; 0 is neither.
const (
	modeChargeDenied = 1
	modeAllOrNone    = 2
)

// retryHeld is the retry time of an allowed hit whose hold existed.
const retryHeld = -2

// maxRowSearch bounds the rows among which encode looks for an equal row. Rows may repeat.
const maxRowSearch = 16

// command returns the command that runs the script for hits. See encode.
func (s *scriptCall) command(ctx context.Context, hits []hitRef, now, jitter int64, needsText, isDistinct bool) noRetryString {
	cmd := noRetryString{goredis.NewStringCmd(ctx, s.encode(hits, now, jitter, needsText, isDistinct)...)}
	cmd.SetFirstKeyPos(firstKey)
	return cmd
}

// firstKey is the place of the first key in EVALSHA digest numkeys key...
const firstKey = 3

// encode returns the command that runs the script for hits at a time. now is in microseconds
// since 1970, or 0 for the clock of Redis. isDistinct reports whether no counter has two of
// the hits. The command is valid until the next encode. The names lie in the memory of the
// calls and are passed by pointer: go-redis writes them before the command is done.
func (s *scriptCall) encode(hits []hitRef, now, jitter int64, needsText, isDistinct bool) []any {
	s.args, s.names = s.args[:0], s.names[:0]
	if needsText {
		s.args = append(s.args, "EVAL", scriptText)
	} else {
		s.args = append(s.args, "EVALSHA", scriptDigest)
	}
	s.args = append(s.args, len(hits))

	s.rows, s.rowOf = s.rows[:0], s.rowOf[:0]
	grouped := false
	for _, h := range hits {
		s.names = append(s.names, asString(h.name()))
		s.rowOf = append(s.rowOf, s.row(h.pending()))
		grouped = grouped || h.pending().allOrNone && len(h.call.hits) > 1
	}
	for i := range s.names {
		s.args = append(s.args, &s.names[i])
	}

	b := msgp.AppendArrayHeader(s.packed[:0], uint32(4+5*len(s.rows)+2*len(hits)))
	b = msgp.AppendInt64(b, now)
	b = msgp.AppendInt64(b, jitter)
	b = msgp.AppendInt64(b, flag(isDistinct))
	b = msgp.AppendInt64(b, int64(len(s.rows)))
	for _, r := range s.rows {
		b = msgp.AppendString(b, r.algorithm.String())
		b = msgp.AppendInt64(b, r.max)
		b = msgp.AppendInt64(b, r.period)
		b = msgp.AppendInt64(b, r.capacity)
		b = msgp.AppendInt64(b, int64(r.mode))
	}
	for i, h := range hits {
		b = msgp.AppendInt64(b, s.rowOf[i])
		b = appendHits(b, h.pending())
	}
	s.packed = b

	s.groups = s.groups[:0]
	if grouped {
		n := uint32(0)
		eachCall(hits, func([]hitRef) { n++ })
		s.groups = msgp.AppendArrayHeader(s.groups, n)
		eachCall(hits, func(group []hitRef) { s.groups = msgp.AppendInt64(s.groups, int64(len(group))) })
	}
	s.args = append(s.args, asString(s.packed), asString(s.groups))
	return s.args
}

// appendHits appends the number of p's hits, with the hold that they name.
func appendHits(b []byte, p *pendingHit) []byte {
	if !p.limit.Algorithm.HasHolds() || p.hold == "" && p.refundedExpiry == 0 {
		return msgp.AppendInt64(b, p.n)
	}
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendInt64(b, p.n)
	if p.refundedExpiry != 0 {
		return msgp.AppendInt64(b, p.refundedExpiry)
	}
	return msgp.AppendString(b, p.hold)
}

// row returns the place of h's limit in s.rows, from 1. It adds a row if none is equal.
func (s *scriptCall) row(h *pendingHit) int64 {
	r := limitRow{algorithm: h.limit.Algorithm, max: h.limit.Max(), period: h.limit.Period(), capacity: h.limit.Capacity()}
	if h.hasWindow() {
		r.period = h.untilEnd
	}
	switch {
	case h.allOrNone:
		r.mode = modeAllOrNone
	case h.limit.ChargeDenied:
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

// flag returns 1 or 0.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// asString returns b as a string. It is valid as long as b does not change.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// errReply is wrapped by the errors of a reply that does not have the expected form.
var errReply = errors.New("the script's reply can't be read")

var errShortReply = fmt.Errorf("%w: it ends before this hit", errReply)

// scriptError is an error of one hit in the script's reply. It implements goredis.Error.
type scriptError string

func (e scriptError) Error() string { return string(e) }
func (scriptError) RedisError()     {}

// decode answers hits from the script's reply. A hit that the reply does not answer gets
// an error with its counter's name.
func (s *scriptCall) decode(reply []byte, hits []hitRef, server string) {
	size, rest, err := msgp.ReadArrayHeaderBytes(reply)
	next := func() (n int64) {
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
		spent, reset, retry := next(), next(), next()
		*h.answer() = answer{Result: backend.Result{Source: backend.SourceRedis, Result: limit.Result{
			Allowed: retry == 0 || retry == retryHeld, Remaining: h.pending().limit.Capacity() - spent, ResetAfter: reset, RetryAfter: retry,
			Held: retry == retryHeld,
		}}}
		if retry == retryHeld {
			h.answer().RetryAfter = 0
		}
	}
	if int(size) > 3*len(hits) {
		now := next()
		for _, h := range hits {
			h.answer().decidedAt = now
		}
	}
	for failed := int(size) - 3*len(hits) - 1; failed > 0 && err == nil; failed -= 2 {
		i, text := next(), ""
		if err == nil {
			text, rest, err = msgp.ReadStringBytes(rest)
		}
		if err == nil && (i < 1 || i > int64(len(hits))) {
			err = fmt.Errorf("error of hit %d: %s", i, text)
		}
		if err == nil {
			hits[i-1].fail(server, scriptError(text))
		}
	}
	if err != nil { // any hit may be one of the failed hits
		err = fmt.Errorf("%w: %w", errReply, err)
		for _, h := range hits {
			if h.answer().Err == nil {
				h.fail(server, err)
			}
		}
	}
}

func (h hitRef) fail(server string, err error) {
	h.call.queue.limiter.options.Observer.Failed(h.call.queue.pool.role, KindOf(err))
	*h.answer() = answer{Result: backend.Result{Err: fmt.Errorf("redis %s: counter %q: %w: %w", server, h.name(), backend.ErrUnavailable, err)}}
}
