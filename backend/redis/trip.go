package redis

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unsafe"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/lua"
)

var (
	script       = lua.Take()
	scriptDigest = digest(script)
)

func digest(s string) string {
	sum := sha1.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// trip carries calls to Redis and back. It belongs to one worker, which uses its
// memory again for the next.
type trip struct {
	pool    *pool
	limiter *Limiter

	hits   []place
	names  []string // of the hits' keys, in the memory of their calls
	args   []any
	packed []byte // ARGV[1]
	groups []byte // ARGV[2]
}

// place is a hit of a call.
type place struct {
	call *call
	i    int
}

func (p place) asked() *asked   { return &p.call.hits[p.i] }
func (p place) answer() *answer { return &p.call.answers[p.i] }

func newTrip(p *pool, l *Limiter) *trip { return &trip{pool: p, limiter: l} }

// carry answers and releases the calls. Those that nobody waits for any more are
// left out.
func (t *trip) carry(ctx context.Context, calls []*call) {
	t.hits = t.hits[:0]
	var until time.Time
	for _, c := range calls {
		if c.gone.Load() {
			continue
		}
		if c.until.After(until) {
			until = c.until
		}
		for i := range c.hits {
			t.hits = append(t.hits, place{c, i})
		}
	}
	if len(t.hits) > 0 {
		ctx, cancel := context.WithDeadline(ctx, until)
		t.send(ctx)
		cancel()
	}
	clear(t.hits)
	for _, c := range calls {
		c.release()
	}
}

// send has t.hits executed, and answers them. It tries again, within ctx, only
// what Redis has refused to execute.
func (t *trip) send(ctx context.Context) {
	byText := false // rather than by digest
	for pause := time.Millisecond; ; {
		err := t.execute(ctx, byText)
		if err == nil {
			return
		}
		switch refusal(err) {
		case "":
			t.pool.lost(ctx)
		case "NOSCRIPT":
			if !byText {
				byText = true
				continue
			}
		case "TRYAGAIN", "ASK":
			// A slot is being moved, and a script can run only where all its keys
			// are: so one by one.
			if t.split(ctx) {
				return
			}
			fallthrough
		case "MOVED", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY":
			if sleep(ctx, pause) {
				pause = min(2*pause, 16*time.Millisecond)
				continue
			}
		}
		t.fail(fmt.Errorf("redis %s: %d hits: %w: %w", t.pool.name, len(t.hits), backend.ErrUnavailable, err))
		return
	}
}

func (t *trip) fail(err error) {
	for _, h := range t.hits {
		*h.answer() = answer{Result: backend.Result{Err: err}}
	}
}

// refusal is the code of an error with which Redis refused to execute a script
// at this moment; empty for what may have been executed, or will be refused again.
func refusal(err error) string {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	if strings.Contains(reply.Error(), "non local key") {
		// A slot is being moved, and a key ran out between the check of where the
		// script may run and its first command, which reads all keys.
		return "TRYAGAIN"
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return code
}

// sleep waits; false, and at once, if ctx ends before that.
func sleep(ctx context.Context, d time.Duration) bool {
	if until, ok := ctx.Deadline(); ok && time.Until(until) <= d {
		return false
	}
	return wait.For(ctx, d)
}

// splitWorkers is how many scripts of a split trip run at a time.
const splitWorkers = 8

// split sends the hits of each key on their own; false if there is but one key.
func (t *trip) split(ctx context.Context) bool {
	byName := map[string][]place{}
	for _, h := range t.hits {
		name := string(h.call.name(h.i))
		byName[name] = append(byName[name], h)
	}
	if len(byName) < 2 {
		return false
	}
	var running sync.WaitGroup
	slots := make(chan struct{}, splitWorkers)
	for _, hits := range byName {
		slots <- struct{}{}
		running.Go(func() {
			part := newTrip(t.pool, t.limiter)
			part.hits = hits
			part.send(ctx)
			<-slots
		})
	}
	running.Wait()
	return true
}

// once is a command that go-redis must not send again by itself, as the first one
// may have been executed.
type once struct{ *goredis.StringCmd }

func (once) NoRetry() bool { return true }

// execute runs the script once for t.hits and answers them, unless there is an
// error for all.
func (t *trip) execute(ctx context.Context, byText bool) error {
	t.write(byText)
	cmd := once{goredis.NewStringCmd(ctx, t.args...)}
	cmd.SetFirstKeyPos(firstKey)
	if err := t.process(ctx, cmd); err != nil {
		return err
	}
	return t.read(cmd.Val())
}

// firstKey is where the first key is in EVALSHA script numkeys key...
const firstKey = 3

// write sets t.args to the command of the script (take.lua) for t.hits. The names
// are handed over in the calls' own memory, by pointer: go-redis writes them
// before execute returns.
func (t *trip) write(byText bool) {
	t.args, t.names = t.args[:0], t.names[:0]
	if byText {
		t.args = append(t.args, "EVAL", script)
	} else {
		t.args = append(t.args, "EVALSHA", scriptDigest)
	}
	t.args = append(t.args, len(t.hits))
	t.packed = appendArray(t.packed[:0], 2+5*len(t.hits))
	t.packed = appendInt(t.packed, t.hits[0].call.now)
	t.packed = appendInt(t.packed, t.limiter.jitter())
	grouped := false
	for _, h := range t.hits {
		a := h.asked()
		t.names = append(t.names, borrow(h.call.name(h.i)))
		t.packed = appendInt(t.packed, a.code)
		t.packed = appendInt(t.packed, a.limit.Max())
		t.packed = appendInt(t.packed, a.limit.Period())
		t.packed = appendInt(t.packed, a.limit.Capacity())
		t.packed = appendInt(t.packed, a.n)
		grouped = grouped || a.binds && len(h.call.hits) > 1
	}
	for i := range t.names {
		t.args = append(t.args, &t.names[i])
	}
	t.groups = t.groups[:0]
	if grouped {
		t.groups = appendArray(t.groups, t.countGroups())
		t.eachGroup(func(group []place) { t.groups = appendInt(t.groups, int64(len(group))) })
	}
	t.args = append(t.args, borrow(t.packed), borrow(t.groups))
}

// borrow is b as a string, valid as long as b isn't changed.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// eachGroup calls f with the hits of each request.
func (t *trip) eachGroup(f func([]place)) {
	for rest := t.hits; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].call == rest[0].call {
			n++
		}
		f(rest[:n])
		rest = rest[n:]
	}
}

func (t *trip) countGroups() (n int) {
	t.eachGroup(func([]place) { n++ })
	return n
}

// read answers the hits from the script's reply.
func (t *trip) read(reply string) error {
	r := reader{rest: reply}
	size := r.array()
	if size < 4*len(t.hits) {
		return errReply
	}
	for _, h := range t.hits {
		*h.answer() = answer{Result: backend.Result{Result: limit.Result{
			Allowed: r.int() == 1, Remaining: r.int(), ResetAfter: r.int(), RetryAfter: r.int(),
		}}}
	}
	for failed := size - 4*len(t.hits); failed >= 2; failed -= 2 {
		i, text := r.int(), r.string()
		if i < 1 || i > int64(len(t.hits)) {
			return errReply
		}
		t.hits[i-1].answer().Err = fmt.Errorf("redis %s: %w: %s", t.pool.name, backend.ErrUnavailable, text)
	}
	if r.failed {
		return errReply
	}
	if t.limiter.options.AllOrNone {
		t.eachGroup(markCharged)
	}
	return nil
}

// markCharged marks what was charged of a group: all that binds, or nothing.
func markCharged(group []place) {
	for _, h := range group {
		if h.asked().binds && h.answer().Err == nil && !h.answer().Allowed {
			return
		}
	}
	for _, h := range group {
		h.answer().charged = h.asked().binds && h.answer().Err == nil
	}
}
