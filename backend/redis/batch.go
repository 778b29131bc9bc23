package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
)

// Observer learns about batches. It is called by the workers of all queues at once and
// must not block.
type Observer interface {
	BatchDone(Batch)

	// Failed is called for each error of Redis, also if the batch is then sent again. The
	// error concerns a whole batch or one hit.
	Failed(Role, ErrorKind)
}

// Batch describes a batch that was answered or has failed.
type Batch struct {
	Role   Role
	Hits   int           // hits in the batch
	Queued int           // hits that waited in the queue when the batch was sent
	Wait   time.Duration // time from the first hit's Take until the batch was sent
	Took   time.Duration // time until Redis answered
	Err    error         // nil if Redis has executed the batch
}

type noObserver struct{}

func (noObserver) BatchDone(Batch)        {}
func (noObserver) Failed(Role, ErrorKind) {}

// batch sends hits of many calls to Redis in one step. It belongs to one worker and
// reuses its memory.
type batch struct {
	queue  *queue
	hits   []hitRef
	queued int // hits that wait in the queue
	script scriptCall
}

// hitRef refers to a hit of a call.
type hitRef struct {
	call *call
	i    int
}

func (h hitRef) pending() *pendingHit { return &h.call.hits[h.i] }
func (h hitRef) answer() *answer      { return &h.call.answers[h.i] }
func (h hitRef) name() []byte         { return h.call.name(h.i) }

// run answers and releases the calls. It does not send calls that nobody waits for, nor
// calls that are too late to be answered in time.
func (b *batch) run(ctx context.Context, calls []*call) {
	b.hits = b.hits[:0]
	start := time.Now()
	var firstStart, deadline time.Time
	for _, c := range calls {
		switch {
		case c.cancelled.Load():
			continue
		case start.After(c.sendBy):
			c.fail(errExpired)
			continue
		}
		c.stage.Store(stageSent)
		if len(b.hits) == 0 || c.start.Before(firstStart) {
			firstStart = c.start
		}
		if c.deadline.After(deadline) {
			deadline = c.deadline
		}
		for i := range c.hits {
			b.hits = append(b.hits, hitRef{c, i})
		}
	}
	if len(b.hits) > 0 {
		ctx, cancel := context.WithDeadline(ctx, deadline)
		err := b.send(ctx)
		cancel()
		b.queue.limiter.options.Observer.BatchDone(Batch{
			Role: b.queue.pool.role, Hits: len(b.hits), Queued: b.queued, Wait: start.Sub(firstStart), Took: time.Since(start), Err: err,
		})
	}
	clear(b.hits)
	for _, c := range calls {
		c.stage.Store(stageAnswered)
		c.release()
	}
}

// send executes the hits in Redis and answers them. If Redis refuses to execute them, send
// tries again until ctx ends. It repeats nothing that Redis may have executed. The error,
// if any, is also the answer of all hits.
func (b *batch) send(ctx context.Context) error {
	byText := false // send the script itself instead of its digest
	for pause := time.Millisecond; ; {
		err := b.execute(ctx, byText)
		if err == nil {
			return nil
		}
		b.queue.limiter.options.Observer.Failed(b.queue.pool.role, KindOf(err))
		switch errorCode(err) {
		case "":
			// go-redis finds the new owners of slots itself only for commands that it
			// may repeat.
			if c, ok := b.queue.pool.client.(interface{ ReloadState(context.Context) }); ok {
				c.ReloadState(ctx)
			}
		case "NOSCRIPT":
			if !byText {
				byText = true
				continue
			}
		case "TRYAGAIN", "ASK":
			// A slot is being moved, and a script runs only where all its keys are.
			if b.split(ctx) {
				return nil
			}
			fallthrough
		case "MOVED", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY":
			if deadline, _ := ctx.Deadline(); time.Until(deadline) > pause && wait.Sleep(ctx, pause) {
				pause = min(2*pause, 16*time.Millisecond)
				continue
			}
		}
		if KindOf(err) == KindTimeout {
			err = fmt.Errorf("%w: %w", backend.ErrLate, err)
		}
		err = fmt.Errorf("redis %s: %d hits: %w: %w", b.queue.pool.name, len(b.hits), backend.ErrUnavailable, err)
		for _, h := range b.hits {
			*h.answer() = answer{Result: backend.Result{Err: err}}
		}
		return err
	}
}

// errorCode returns the code of an error with which Redis refused to execute a script. It
// returns "" if the script may have been executed.
func errorCode(err error) string {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	if strings.Contains(reply.Error(), "non local key") {
		// The slot is being moved. Redis checked that this node has all keys. Then a
		// key expired, and the script's first command missed that key.
		return "TRYAGAIN"
	}
	code, _, _ := strings.Cut(reply.Error(), " ")
	return code
}

// maxSplitBatches bounds the parts of a split batch that are in flight.
const maxSplitBatches = 8

// split sends the hits of each key in a batch of their own. It reports false if there is
// only one key.
func (b *batch) split(ctx context.Context) bool {
	byName := map[string][]hitRef{}
	for _, h := range b.hits {
		name := string(h.name())
		byName[name] = append(byName[name], h)
	}
	if len(byName) < 2 {
		return false
	}
	var running sync.WaitGroup
	semaphore := make(chan struct{}, maxSplitBatches)
	for _, hits := range byName {
		semaphore <- struct{}{}
		running.Go(func() {
			part := batch{queue: b.queue, hits: hits}
			_ = part.send(ctx) // the hits have the error
			<-semaphore
		})
	}
	running.Wait()
	return true
}

// noRetryCmd is a command that go-redis must not repeat, because Redis may have
// executed it.
type noRetryCmd struct{ *goredis.StringCmd }

func (noRetryCmd) NoRetry() bool { return true }

// execute runs the script for the hits and answers them. After an error no hit is
// answered.
func (b *batch) execute(ctx context.Context, byText bool) error {
	jitter := rand.Int64N(b.queue.limiter.options.Jitter.Milliseconds() + 1)
	cmd := noRetryCmd{goredis.NewStringCmd(ctx, b.script.encode(b.hits, jitter, byText)...)}
	cmd.SetFirstKeyPos(firstKey)
	if err := b.process(ctx, cmd); err != nil {
		return err
	}
	reply, _ := cmd.Bytes() // the error is that of process
	b.script.decode(reply, b.hits, b.queue.pool.name)
	if b.queue.limiter.options.AllOrNone {
		eachCall(b.hits, markCharged)
	}
	return nil
}

// eachCall calls f with the hits of each call.
func eachCall(hits []hitRef, f func([]hitRef)) {
	for len(hits) > 0 {
		n := 1
		for n < len(hits) && hits[n].call == hits[0].call {
			n++
		}
		f(hits[:n])
		hits = hits[n:]
	}
}

// markCharged marks the all-or-none hits of a call as charged, unless one of them is
// denied.
func markCharged(hits []hitRef) {
	for _, h := range hits {
		if h.pending().allOrNone && h.answer().Err == nil && !h.answer().Allowed {
			return
		}
	}
	for _, h := range hits {
		h.answer().charged = h.pending().allOrNone && h.answer().Err == nil
	}
}
