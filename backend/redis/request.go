package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// request is one Take on its way: a call for each lane it concerns. It is owned by
// the Take that waits for it and by the workers that have its calls; the last one
// to let go of it puts it back.
type request struct {
	calls []*call // those in use; more to use again are behind
	now   int64   // microseconds; 0 for the clock of Redis
	until time.Time

	owners atomic.Int32  // calls not answered yet, and waiting, as long as the Take does
	gone   atomic.Bool   // nobody waits any more
	done   chan struct{} // told when all calls are answered while the Take waits
	timer  *time.Timer
}

func newRequest() *request {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &request{done: make(chan struct{}, 1), timer: timer}
}

// waiting counts for the waiting Take among the owners: more than all calls do.
const waiting = 1 << 30

// call is what a request asks of a lane.
type call struct {
	*request
	lane    *lane
	names   []byte // of the hits' keys, one after the other
	hits    []asked
	answers []answer // to the hits
	next    *call    // in the lane
}

// asked is a hit on its way.
type asked struct {
	index    int // in the Take
	from, to int // its key's name in names
	limit    *limit.Limit
	n        int64
	code     int64 // of the algorithm and what it charges, as in take.lua
	binds    bool  // as in take.lua
}

type answer struct {
	backend.Result
	charged bool // binds and was charged
}

func (c *call) name(i int) []byte { return c.names[c.hits[i].from:c.hits[i].to] }

// The script's codes (take.lua). The algorithms' own are those of limit.
const (
	codeChargeDenied = 4
	codeBinds        = 8
)

// add adds hit number index of a Take, asking for n.
func (r *request) add(l *Limiter, index int, h *backend.Hit, n int64) {
	p := l.poolOf(h.Limit)
	r.addTo(p, p.partition(h.Key), l, index, h, n)
}

// addTo is add for a given partition.
func (r *request) addTo(p *pool, partition int, l *Limiter, index int, h *backend.Hit, n int64) {
	n = min(max(n, -limit.MaxHits), limit.MaxHits)
	c := r.call(p.lanes[partition])
	a := asked{index: index, limit: h.Limit, n: n, code: int64(h.Limit.Algorithm)}
	a.binds = l.options.AllOrNone && n > 0 && h.AllOrNone()
	if h.Limit.ChargeDenied && !a.binds {
		a.code += codeChargeDenied
	}
	if a.binds {
		a.code += codeBinds
	}
	c.put(a, p.keys[partition], h.Key)
}

// put adds a hit on the counter of key.
func (c *call) put(a asked, names keys, key []byte) {
	a.from = len(c.names)
	c.names = names.append(c.names, a.limit.Tag(), key)
	a.to = len(c.names)
	c.hits = append(c.hits, a)
	c.answers = append(c.answers, answer{})
}

// call is the request's call for a lane.
func (r *request) call(q *lane) *call {
	for _, c := range r.calls {
		if c.lane == q {
			return c
		}
	}
	n := len(r.calls)
	if n < cap(r.calls) && r.calls[:n+1][n] != nil {
		r.calls = r.calls[:n+1]
	} else {
		r.calls = append(r.calls, &call{request: r})
	}
	c := r.calls[n]
	c.lane, c.names, c.hits, c.answers, c.next = q, c.names[:0], c.hits[:0], c.answers[:0], nil
	return c
}

// send gives the calls to their lanes.
func (r *request) send() {
	r.owners.Store(int32(len(r.calls)) + waiting)
	for _, c := range r.calls {
		if err := c.lane.push(c); err != nil {
			c.fail(err)
			c.release()
		}
	}
}

// fail answers all hits of the call with err.
func (c *call) fail(err error) {
	for i := range c.answers {
		c.answers[i] = answer{Result: backend.Result{Err: err}}
	}
}

// release is called by who has answered a call, and must not touch it any more.
func (c *call) release() {
	l := c.lane.limiter
	switch c.owners.Add(-1) {
	case waiting:
		c.done <- struct{}{}
	case 0:
		l.recycle(c.request)
	}
}

var errLate = fmt.Errorf("redis: no answer in time: %w", backend.ErrUnavailable)

// wait returns nil once all calls are answered. Otherwise the time is up or ctx
// has ended, and the request is no longer the caller's.
func (r *request) wait(ctx context.Context, l *Limiter) error {
	r.timer.Reset(time.Until(r.until))
	select {
	case <-r.done:
		r.timer.Stop()
		return nil
	case <-ctx.Done():
		r.timer.Stop()
		r.leave(l)
		return fmt.Errorf("redis: waiting for the answer: %w", context.Cause(ctx))
	case <-r.timer.C:
		r.leave(l)
		return errLate
	}
}

func (r *request) leave(l *Limiter) {
	r.gone.Store(true)
	if r.owners.Add(-waiting) == 0 { // it was answered just now
		<-r.done
		l.recycle(r)
	}
}

func (l *Limiter) request(now time.Time, until time.Time) *request {
	r := l.requests.Get().(*request)
	r.now, r.until = 0, until
	if l.options.CallersClock {
		r.now = now.UnixMicro()
	}
	return r
}

// maxRecycled bounds the hits of a call whose memory is kept.
const maxRecycled = 256

func (l *Limiter) recycle(r *request) {
	for _, c := range r.calls {
		if cap(c.hits) > maxRecycled {
			return
		}
	}
	r.calls = r.calls[:0]
	r.gone.Store(false)
	l.requests.Put(r)
}
