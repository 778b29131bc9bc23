package memcached

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// counter is a counter in memcached, with the hit that charges it. Times are in microseconds.
type counter struct {
	name            string
	limit           *limit.Limit
	now             int64 // the time since 1970
	n               int64 // the number of hits
	windowStart     int64 // 0 unless the algorithm has CountsByWindow
	timeToWindowEnd int64 // at least 1; 0 unless the algorithm has CountsByWindow
	chargesDenied   bool
	isAllOrNone     bool
}

func (l *Limiter) counterOf(h *backend.Hit, now int64) counter {
	c := counter{limit: h.Limit, now: now, n: min(max(h.N, -limit.MaxHits), limit.MaxHits), chargesDenied: h.Limit.ChargeDenied && !h.IsInGroup(), isAllOrNone: h.AllOrNone}
	if c.limit.Algorithm.CountsByWindow() {
		start, end := h.Limit.WindowAt(cmp.Or(h.WindowStart, now))
		c.windowStart, c.timeToWindowEnd = start, max(end-now, 1)
	}
	c.name = l.nameOf(h, c.windowStart)
	return c
}

// A layout is the format of the value of a counter. The name of the counter has the layout, so versions of rls with
// different formats can share a memcached.
const (
	layoutState = "v1:" // the state of an algorithm, as limit.State.Append encodes it
	layoutCount = "v2:" // the count of one window, a whole number
)

// nameOf returns the key of the counter of h in memcached:
//
//	<prefix><layout><tag of the limit>:<key>[@<start of the window>]
//	<prefix><layout><tag of the limit>#<SHA-256 of key>[@<start of the window>]
//
// If memcached does not allow a name, the counter gets the second form.
func (l *Limiter) nameOf(h *backend.Hit, windowStart int64) string {
	const maxKey = 250 // the longest key of memcached, in bytes
	layout, suffix := layoutState, ""
	if h.Limit.Algorithm.CountsByWindow() {
		layout, suffix = layoutCount, string(h.Limit.AppendWindow(nil, windowStart))
	}
	start := l.options.KeyPrefix + layout + h.Limit.Tag()
	if name := start + ":" + string(h.Key) + suffix; len(name) <= maxKey && isSafe(name) {
		return name
	}
	sum := sha256.Sum256(h.Key)
	return start + "#" + base64.RawURLEncoding.EncodeToString(sum[:]) + suffix
}

// isSafe reports whether memcached allows text in a key.
func isSafe(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7F })
}

// isIncrement reports whether the hit is charged even if it is denied. In this case, the command incr charges c.
func (c *counter) isIncrement() bool {
	return c.limit.Algorithm.CountsByWindow() && c.chargesDenied && c.n > 0
}

func (c *counter) resultOf(r limit.Result) backend.Result {
	return backend.Result{Result: r, Source: source, WindowStart: c.windowStart, DenialMayEndEarly: c.isAllOrNone && !r.Allowed}
}

// items has the values that read has fetched, by the names of the counters. A charge deletes the item of its counter.
type items map[string]*memcache.Item

func (l *Limiter) read(names []string) (items, error) {
	values, err := l.client.GetMulti(names)
	items := make(items, len(names))
	for _, name := range names {
		items[name] = values[name] // nil for a new counter
	}
	return items, err
}

// maxTries bounds the tries of a charge. A try fails if another replica changes the counter at the same time.
const maxTries = 10

var (
	errExpired        = &backend.Error{Reason: backend.ReasonLate, NotSent: true, Cause: errors.New("memcached: the time of the call ended before the hit was sent")}
	errHoldsNeedRedis = &backend.Error{Reason: backend.ReasonOutage, NotSent: true, Cause: fmt.Errorf("memcached: algorithm %s needs Redis", limit.Concurrency)}
	errTooManyTries   = &backend.Error{Reason: backend.ReasonOverload, Cause: fmt.Errorf("memcached: other replicas have changed the counter %d times", maxTries)}
	errChanged        = errors.New("counter changed by another replica")
)

// charge charges c and decides its hit. After the end of ctx, it charges nothing and returns errExpired.
func (l *Limiter) charge(ctx context.Context, c *counter, items items) backend.Result {
	charge := l.increment
	if !c.isIncrement() {
		charge = l.change
		mu := &l.changes[hash(c.name)%len(l.changes)] // without the mutex, two hits of this replica could make each other's tries fail
		mu.Lock()
		defer mu.Unlock()
	}
	for try := range maxTries {
		if ctx.Err() != nil {
			return backend.Result{Err: errExpired}
		}
		r, err := charge(c, items)
		delete(items, c.name)
		switch {
		case err == nil:
			return c.resultOf(r)
		case !errors.Is(err, errChanged):
			return backend.Result{Err: unavailableError(err)}
		}
		time.Sleep(rand.N(time.Duration(try+1) * time.Millisecond / 4))
	}
	return backend.Result{Err: errTooManyTries}
}

// increment charges c with one command, or with two if c is new.
func (l *Limiter) increment(c *counter, _ items) (limit.Result, error) {
	count, err := l.client.Increment(c.name, uint64(c.n))
	if errors.Is(err, memcache.ErrCacheMiss) {
		count = uint64(c.n)
		err = asErrChanged(l.client.Add(&memcache.Item{Key: c.name, Value: strconv.AppendUint(nil, count, 10), Expiration: l.expiration(c.timeToWindowEnd)}))
	}
	if err == nil && count > limit.MaxHits {
		_, err = l.client.Decrement(c.name, count-limit.MaxHits)
	}
	oldCount := int64(min(count, math.MaxInt64)) - c.n
	v := value{count: min(oldCount, limit.MaxHits)}
	return v.take(c, c.n), err
}

// change reads the value of c, charges it, and writes it. It returns errChanged if another replica has changed the value
// between the read and the write.
func (l *Limiter) change(c *counter, items items) (limit.Result, error) {
	item, hasItem := items[c.name]
	if !hasItem {
		var err error
		if item, err = l.client.Get(c.name); err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
			return limit.Result{}, err
		}
	}
	v, err := c.parse(item)
	if err != nil {
		return limit.Result{}, err
	}
	oldValue, r := c.encode(&v), v.take(c, c.n)
	newItem := &memcache.Item{Key: c.name, Value: c.encode(&v), Expiration: l.expiration(max(r.ResetAfter, c.timeToWindowEnd))}
	switch {
	case bytes.Equal(oldValue, newItem.Value):
		return r, nil
	case item == nil:
		return r, asErrChanged(l.client.Add(newItem))
	}
	newItem.CasID = item.CasID
	return r, asErrChanged(l.client.CompareAndSwap(newItem))
}

// asErrChanged returns errChanged if err says that another replica has changed a counter, and otherwise err.
func asErrChanged(err error) error {
	if errors.Is(err, memcache.ErrNotStored) || errors.Is(err, memcache.ErrCASConflict) || errors.Is(err, memcache.ErrCacheMiss) {
		return errChanged
	}
	return err
}

// value is the value of a counter: a count for an algorithm with CountsByWindow, and otherwise a state.
type value struct {
	count int64
	state limit.State
}

func (v *value) take(c *counter, n int64) (r limit.Result) {
	if !c.limit.Algorithm.CountsByWindow() {
		return c.limit.TakeWithChargeDenied(&v.state, c.now, n, c.chargesDenied)
	}
	v.count, r = c.limit.CountHits(v.count, n, c.timeToWindowEnd, c.chargesDenied)
	return r
}

// parse returns the value of item. If item is nil, nothing is spent.
func (c *counter) parse(item *memcache.Item) (v value, err error) {
	switch {
	case c.limit.Algorithm.HasHolds():
		return v, errHoldsNeedRedis
	case item == nil:
	case c.limit.Algorithm.CountsByWindow():
		v.count, err = strconv.ParseInt(string(bytes.TrimRight(item.Value, " ")), 10, 64) // Decrement pads with spaces
	default:
		v.state, err = limit.DecodeState(item.Value)
	}
	if err != nil || v.count < 0 {
		return v, fmt.Errorf("key %q: got %.20q, want a counter of rls", c.name, item.Value)
	}
	return v, nil
}

func (c *counter) encode(v *value) []byte {
	if c.limit.Algorithm.CountsByWindow() {
		return strconv.AppendInt(nil, v.count, 10)
	}
	return v.state.Append(nil)
}

// expiration returns the expiration of a key that must live for this time in microseconds. memcached wants seconds from
// now, or the seconds since 1970 for more than 30 days from now.
func (l *Limiter) expiration(micros int64) int32 {
	const maxSecondsFromNow = 30 * 86_400
	timeToLive := time.Duration(micros)*time.Microsecond + rand.N(l.options.Jitter+1)
	seconds := int64((timeToLive+time.Second-1)/time.Second) + 1 // memcached can delete a key up to a second early
	if seconds > maxSecondsFromNow {
		seconds += time.Now().Unix()
	}
	return int32(min(seconds, math.MaxInt32))
}
