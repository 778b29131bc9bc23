package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
	"github.com/seed-81f232ab/rls/limit"
)

const (
	// maxRetryPause is the longest pause before hits that Redis has refused are sent again.
	maxRetryPause = 16 * time.Millisecond

	// maxParts bounds the parts of a batch that are in flight after redirects.
	maxParts = 8
)

// send executes the hits in Redis and answers them. If Redis refuses to execute some of them,
// send tries these again until ctx ends. It repeats nothing that Redis may have executed. The
// error is the first one that concerns more than one key, or nil.
func (b *batch) send(ctx context.Context) error {
	b.failure, b.needsText, b.unconfirmed = nil, false, false
	s, err := b.queue.pool.client.masterOf(ctx, asString(b.hits[0].counterName()))
	if err == nil {
		err = b.setNow(ctx, s)
	}
	if err != nil {
		b.reportedKinds = 0
		b.reportError(err)
		b.reconnect(s)
		b.failHits(b.hits, err)
		return b.failure
	}
	if !time.Now().Before(b.deadline) {
		b.failHits(b.hits, errExpired)
		return b.failure
	}
	b.groupHits()
	for pause := time.Millisecond; ; pause = min(2*pause, maxRetryPause) {
		refusal := b.sendUndecided(ctx, s)
		if refusal == nil {
			break
		}
		if time.Until(b.deadline) <= pause || !wait.Sleep(ctx, pause) {
			b.failHits(b.undecidedHits(), refusal)
			break
		}
		if master, err := b.queue.pool.client.masterOf(ctx, asString(b.hits[0].counterName())); err == nil {
			s = master
		}
	}
	b.queue.counts.remember(b)
	if b.queue.limiter.options.AllOrNone {
		eachCall(b.hits, markCharged)
	}
	return b.failure
}

// setNow sets the time of the batch. If necessary it measures the clock of s first.
func (b *batch) setNow(ctx context.Context, s *server) error {
	if b.queue.limiter.options.CallersClock {
		return nil
	}
	if !s.clock.isUsable() {
		if err := s.measureClock(ctx); err != nil {
			return err
		}
		b.queue.limiter.adaptTimeout()
	}
	b.now = s.clock.now()
	return nil
}

// timeOf returns the time of a hit in microseconds since 1970.
func (b *batch) timeOf(h hitRef) int64 {
	if h.call.now != 0 {
		return h.call.now
	}
	return b.now
}

// sendUndecided sends the undecided hits and answers those that Redis decides. The error is not nil
// if Redis refuses to decide some hits at the moment.
func (b *batch) sendUndecided(ctx context.Context, s *server) (refusal error) {
	o, q := &b.queue.limiter.options, b.queue
	commands := b.commands[:0]
	for _, c := range b.counters.all {
		if !c.isDone {
			commands = c.encode(commands, q.expiries.contains(c.hash), !q.pool.incrementDenied.Load())
		}
	}
	var script noRetryString
	if !b.isScriptDone {
		script = b.script.command(ctx, b.scriptHits, b.scriptTime(), o.randomJitter(), b.needsText, b.isDistinct)
		commands = append(commands, script)
	}
	var clock *goredis.TimeCmd
	if !o.CallersClock && !b.isKeyByKey && s.clock.isDue() {
		clock = goredis.NewTimeCmd(ctx, "TIME")
		commands = append(commands, clock)
	}
	doubtful := q.doubtful.takeKeysToSend()
	for _, d := range doubtful {
		commands = append(commands, d.command)
	}
	b.commands, b.reportedKinds = commands, 0

	start := sinceStart()
	b.execute(ctx, s, commands)
	if clock != nil && clock.Err() == nil {
		s.clock.add(start, sinceStart(), clock.Val().UnixMicro())
		q.limiter.adaptTimeout()
	}
	q.doubtful.addUnconfirmed(doubtful)

	var redirected []hitRef
	var newKeys []doubtfulKey // without a time to live
	for _, c := range b.counters.all {
		if c.isDone {
			continue
		}
		count, hasExpiry, err := c.decode()
		if c.isIncrForbidden(err) {
			q.pool.incrementDenied.Store(true) // the next charge uses INCRBY
			refusal = err
			continue
		}
		c.isDone = true
		switch b.outcomeOf(err) {
		case outcomeExecuted:
			b.answerHits(c, count)
			switch {
			case hasExpiry && c.n > 0:
				q.expiries.add(c.hash)
			case !hasExpiry:
				newKeys = append(newKeys, newDoubtfulKey(string(c.name), c.ttl))
			}
		case outcomeRedirect:
			redirected = append(redirected, b.hitsOf(c)...)
		case outcomeRefused:
			c.isDone, refusal = false, err
		case outcomeRejected:
			b.failCounter(c, err)
		case outcomeUnanswered:
			b.reconnect(s)
			if c.n > 0 {
				q.doubtful.addUnanswered(newDoubtfulKey(string(c.name), c.ttl))
			}
			fallthrough
		default:
			b.failHits(b.hitsOf(c), err)
		}
	}
	if script.StringCmd != nil {
		b.isScriptDone = true
		reply, err := script.Bytes()
		switch b.outcomeOf(err) {
		case outcomeExecuted:
			b.script.decode(reply, b.scriptHits, q.pool.name)
		case outcomeRedirect:
			redirected = append(redirected, b.scriptHits...)
		case outcomeRefused:
			b.isScriptDone, refusal = false, err
		case outcomeUnknownScript:
			b.isScriptDone, b.needsText = false, true
		case outcomeUnanswered:
			b.reconnect(s)
			fallthrough
		default:
			b.reportError(err) // an error of the script concerns all its hits
			b.failHits(b.scriptHits, err)
		}
	}
	b.setExpiry(ctx, s, newKeys)
	b.sendKeyByKey(ctx, redirected)
	if !b.isScriptDone && b.needsText && refusal == nil {
		return b.sendUndecided(ctx, s)
	}
	return refusal
}

// scriptTime returns the time for the script: that of the hits, or 0 for the clock of Redis.
func (b *batch) scriptTime() int64 {
	if now := b.scriptHits[0].call.now; now != 0 {
		return now
	}
	for _, h := range b.scriptHits {
		if !h.pending().hasWindow() {
			return 0
		}
	}
	return b.now
}

// execute sends the commands, and sets the reply or the error of each.
func (b *batch) execute(ctx context.Context, s *server, commands []goredis.Cmder) {
	client, o := b.queue.pool.client, &b.queue.limiter.options
	switch {
	case b.isKeyByKey || len(commands) == 1 && o.WaitReplicas == 0:
		for _, cmd := range commands {
			cmd.SetErr(client.Process(ctx, cmd))
		}
	case o.WaitReplicas > 0:
		b.executeWithReplicas(ctx, s, commands)
	default:
		s.execute(ctx, commands)
	}
}

// setExpiry gives new keys a time to live. Their charges had no SET, because this process remembered a
// time to live. But Redis has lost the keys since.
func (b *batch) setExpiry(ctx context.Context, s *server, keys []doubtfulKey) {
	if len(keys) == 0 {
		return
	}
	commands := make([]goredis.Cmder, len(keys))
	for i, k := range keys {
		commands[i] = k.command
	}
	s.execute(ctx, commands)
	b.queue.doubtful.addUnconfirmed(keys)
}

// sendKeyByKey sends hits of a slot that has moved or is being moved. The hits of each key are a batch
// of their own, so that the client can follow redirects.
func (b *batch) sendKeyByKey(ctx context.Context, hits []hitRef) {
	if len(hits) == 0 {
		return
	}
	b.unconfirmed = b.unconfirmed || b.queue.limiter.options.WaitReplicas > 0 // the parts don't wait
	byName := map[string][]hitRef{}
	for _, h := range hits {
		name := string(h.counterName())
		byName[name] = append(byName[name], h)
	}
	var running sync.WaitGroup
	semaphore := make(chan struct{}, maxParts)
	for _, hits := range byName {
		semaphore <- struct{}{}
		running.Go(func() {
			part := batch{queue: b.queue, hits: hits, isKeyByKey: true, deadline: b.deadline, sendUntil: b.sendUntil}
			_ = part.send(ctx) // the hits have the error
			<-semaphore
		})
	}
	running.Wait()
}

// reconnect is called when server s has not answered. The client then looks for the servers again, and
// the next batch measures the clock of s again. s is nil if the server is not known.
func (b *batch) reconnect(s *server) {
	if s != nil {
		s.clock.expire()
	}
	b.queue.pool.client.reload(s)
}

// reportError passes an error of more than one key to the Observer. In one call of sendUndecided, it
// passes each kind of error once.
func (b *batch) reportError(err error) {
	kind := KindOf(err)
	if kind == KindTimeout && b.lateWatch.isLate() {
		return // replaceWorker has told the observer
	}
	if b.reportedKinds&(1<<kind) == 0 {
		b.reportedKinds |= 1 << kind
		b.queue.limiter.options.Observer.Failed(b.queue.pool.role, kind)
	}
}

// failHits answers hits with an error of the whole batch.
func (b *batch) failHits(hits []hitRef, err error) {
	if KindOf(err) == KindTimeout {
		err = fmt.Errorf("%w: %w", backend.ErrLate, err)
		if isStarved(b.sendUntil) {
			err = fmt.Errorf("%w: %w", backend.ErrOverloaded, err)
		}
	}
	err = fmt.Errorf("redis %s: %s: %w: %w", b.queue.pool.name, hitsText(len(hits)), backend.ErrUnavailable, err)
	for _, h := range hits {
		*h.answer() = answer{Result: backend.Result{Err: err}}
	}
	if b.failure == nil {
		b.failure = err
	}
}

// hitsText returns the text of a number of hits.
func hitsText(n int) string {
	if n == 1 {
		return "1 hit"
	}
	return strconv.Itoa(n) + " hits"
}

// failCounter answers the hits of c with an error that concerns c only.
func (b *batch) failCounter(c *windowCounter, err error) {
	for _, h := range b.hitsOf(c) {
		h.fail(b.queue.pool.name, err)
	}
}

// replyOutcome is what a reply means for its hits.
type replyOutcome int

const (
	outcomeExecuted      replyOutcome = iota
	outcomeUnanswered                 // Redis may have executed the command
	outcomeUnknownScript              // Redis needs the text of the script
	outcomeRedirect                   // another server has the key
	outcomeRefused                    // Redis can't execute the command at the moment
	outcomeRejected                   // the key can't be used
	outcomeFailed                     // Redis executes no command like this
)

// outcomeOf returns the outcome of a command with this error. If the error concerns more than one key,
// outcomeOf also passes it to the Observer.
func (b *batch) outcomeOf(err error) replyOutcome {
	if err == nil {
		return outcomeExecuted
	}
	code := errorCode(err)
	switch code {
	case "WRONGTYPE", "ERR", "OOM":
		return outcomeRejected
	}
	b.reportError(err)
	switch code {
	case "":
		return outcomeUnanswered
	case "NOSCRIPT":
		if b.needsText {
			return outcomeFailed
		}
		return outcomeUnknownScript
	case "TRYAGAIN", "ASK", "MOVED":
		if b.isKeyByKey {
			return outcomeRefused
		}
		return outcomeRedirect
	case "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY":
		return outcomeRefused
	}
	return outcomeFailed
}

// errorCode returns the code of an error with which Redis refused to execute a command. It
// returns "" if the command may have been executed.
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

// windowTTL returns the time to live, in milliseconds, of the key of a window of l that ends after
// untilEnd microseconds. Windows shorter than a second get no jitter, because they have many keys.
func (o *Options) windowTTL(l *limit.Limit, untilEnd int64) int64 {
	ttl := (untilEnd+999)/1000 + o.windowMargin().Milliseconds()
	if l.Period() >= microsPerSecond {
		ttl += o.randomJitter()
	}
	return ttl
}

// randomJitter returns a random part of Jitter, in milliseconds.
func (o *Options) randomJitter() int64 { return rand.Int64N(o.Jitter.Milliseconds() + 1) }

// windowMargin returns the least time for which a key lives after its window. In this time, a replica
// with a wrong estimate of the clock can still charge the old window. A Redis that has stopped for some
// seconds can do so too.
func (o *Options) windowMargin() time.Duration { return max(minWindowMargin, 2*o.Timeout) }

const minWindowMargin = 10 * time.Second
