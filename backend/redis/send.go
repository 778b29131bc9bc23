package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

const (
	maxRetryPause = 16 * time.Millisecond // the longest pause before rls sends refused hits again
	maxKeyBatches = 8                     // the most batches that sendEachKey has in flight
)

// send lets Redis decide the hits, and sets the answers of the hits. If Redis refuses some hits, send sends these hits
// again until ctx ends. It returns the first error that is not about a single key.
func (b *batch) send(ctx context.Context) error {
	b.batchError, b.mustSendScript, b.hasTooFewReplicas = nil, false, false
	s, err := b.findServer(ctx)
	if err == nil {
		err = b.setNow(ctx, s)
	}
	if err != nil {
		b.reportedKinds = 0
		b.reportError(err)
		b.findServersAgain(s)
		b.failHits(b.hits, err)
		return b.batchError
	}
	if !time.Now().Before(b.deadline) {
		b.failHits(b.hits, errExpired)
		return b.batchError
	}
	b.divideHits()
	for pause := time.Millisecond; ; pause = min(2*pause, maxRetryPause) {
		retryError := b.sendOnce(ctx, s)
		if retryError == nil && b.mustSendScript && !b.isScriptDone { // Redis asked for the text of the script
			retryError = b.sendOnce(ctx, s)
		}
		if retryError == nil {
			break
		}
		if time.Until(b.deadline) <= pause || !wait.Sleep(ctx, pause) {
			b.failHits(b.hitsWithoutAnswer(), retryError)
			break
		}
		if currentServer, err := b.findServer(ctx); err == nil {
			s = currentServer
		}
	}
	b.queue.lastCounts.remember(b)
	if b.hasGroups {
		forEachPart(b.hits, markCharged)
	}
	return b.batchError
}

func (b *batch) findServer(ctx context.Context) (*server, error) {
	return b.queue.instance.client.masterOf(ctx, asString(b.hits[0].counterName()))
}

func (b *batch) setNow(ctx context.Context, s *server) error {
	if b.queue.limiter.options.CallersClock {
		return nil
	}
	if !s.clock.isUsable() {
		if err := s.measureClock(ctx); err != nil {
			return err
		}
		b.queue.limiter.adaptTimeout(&s.clock)
	}
	b.now = s.clock.now()
	return nil
}

// attempt is one pipeline to a server. It sends the hits of a batch that have no answer yet.
type attempt struct {
	server        *server
	scriptCommand stringCmdWithoutRetry // the call of the script; scriptCommand.StringCmd is nil if no hit needs the script
	timeCommand   *goredis.Cmd          // the TIME command; nil if the attempt does not measure the clock

	oldTTLCommands []goredis.Cmder // commands that set the time to live of keys which earlier batches have charged
	newTTLCommands []goredis.Cmder // commands that set the time to live of keys which this attempt has charged
	redirectedHits []*pendingHit   // hits with a key on another server
	retryError     error           // an error of commands that Redis can execute later, or nil
}

// sendOnce sends the hits without an answer to s, and answers the hits that Redis decides. If Redis can decide other
// hits only later, sendOnce returns their error as retryError.
func (b *batch) sendOnce(ctx context.Context, s *server) (retryError error) {
	a := attempt{server: s}
	b.buildCommands(ctx, &a)
	start := microsSinceProcessStart()
	b.sendCommands(ctx, s)
	if a.timeCommand != nil && s.clock.addReply(start, a.timeCommand) == nil {
		b.queue.limiter.adaptTimeout(&s.clock)
	}
	b.queue.ttlCommandStore.addForResend(a.oldTTLCommands)
	b.reportedKinds = 0
	b.applyCounterReplies(&a)
	b.applyScriptReply(&a)
	b.setTTL(ctx, s, a.newTTLCommands)
	b.sendEachKey(ctx, a.redirectedHits)
	return a.retryError
}

func (b *batch) buildCommands(ctx context.Context, a *attempt) {
	q := b.queue
	b.commands = b.commands[:0]
	for _, c := range b.counters.list {
		if !c.isDone {
			b.commands = c.encode(b.commands, q.keysWithTTL.contains(c.hash), q.instance)
		}
	}
	if len(b.commands) > 0 && q.limiter.canDivideGroups() {
		if b.getMarkCommand == nil {
			b.getMarkCommand = goredis.NewStringCmd(context.Background(), "GET", q.keyspace.refundMarkName())
		}
		b.getMarkCommand.SetErr(nil)
		b.commands = append(b.commands, b.getMarkCommand)
	}
	if !b.isScriptDone {
		if b.mayRefund {
			b.commands = append(b.commands, goredis.NewStatusCmd(ctx, "SET", q.keyspace.refundMarkName(), "", "PX", q.limiter.refundMillis()))
		}
		args := b.script.encode(b.scriptHits, b.scriptTime(), q.limiter.options.randomJitterMillis(), b.mustSendScript, b.hasDistinctCounters, q.limiter.refundMillis())
		a.scriptCommand = stringCmdWithoutRetry{goredis.NewStringCmd(ctx, args...)}
		a.scriptCommand.SetFirstKeyPos(firstKeyPlace)
		b.commands = append(b.commands, a.scriptCommand)
	}
	if !q.limiter.options.CallersClock && !b.hasOneKey && a.server.clock.needsMeasurement() {
		a.timeCommand = goredis.NewCmd(ctx, "TIME")
		b.commands = append(b.commands, a.timeCommand)
	}
	a.oldTTLCommands = q.ttlCommandStore.takeCommands()
	b.commands = append(b.commands, a.oldTTLCommands...)
}

// scriptTime returns the time for the script in microseconds since 1970: the time of the requests, or the time of the
// batch if all hits have windows. Otherwise it returns 0, and the script reads the clock of Redis.
func (b *batch) scriptTime() int64 {
	now := b.scriptHits[0].part.now
	if now == 0 && !slices.ContainsFunc(b.scriptHits, func(h *pendingHit) bool { return !h.hasWindow() }) {
		return b.now
	}
	return now
}

func (b *batch) sendCommands(ctx context.Context, s *server) {
	waitReplicas := b.queue.limiter.options.WaitReplicas
	switch {
	case b.hasOneKey || len(b.commands) == 1 && waitReplicas == 0:
		for _, cmd := range b.commands {
			cmd.SetErr(b.queue.instance.client.Process(ctx, cmd))
		}
	case waitReplicas > 0:
		b.sendAndAwaitReplicas(ctx, s)
	default:
		s.execute(ctx, b.commands)
	}
}

// applyCounterReplies answers the hits of the counters for which Redis has executed plain commands. It fails the other
// hits, or leaves them to a later attempt.
func (b *batch) applyCounterReplies(a *attempt) {
	q := b.queue
	denialsMayEndEarly := b.mayHaveRefundMark()
	for _, c := range b.counters.list {
		if c.isDone {
			continue
		}
		count, hasTTL, err := c.decode()
		canUseOtherCommands := c.recordForbidden(q.instance, err)
		outcome := outcomeOf(err)
		switch {
		case outcome == outcomeExecuted:
			c.isDone = true
			c.answerHits(count, denialsMayEndEarly)
			if !hasTTL {
				a.newTTLCommands = append(a.newTTLCommands, q.instance.newTTLCommand(string(c.name), c.ttl))
			} else if c.hitSum > 0 {
				q.keysWithTTL.add(c.hash)
			}
		case canUseOtherCommands:
			a.retryError = err
		case outcome == outcomeOnlyThisFails:
			c.isDone = true
			for _, h := range c.hits {
				h.fail(q.instance.name, err)
			}
		default:
			if outcome == outcomeUnanswered && !c.commands.isPeek {
				q.ttlCommandStore.addUnanswered(q.instance.newTTLCommand(string(c.name), c.ttl))
			}
			c.isDone = b.applyFailure(a, c.hits, outcome, err)
		}
	}
}

// mayHaveRefundMark reports whether charges in the partition may be refunded; see keyspace.refundMarkName. Only the script
// makes such charges, and a user without the right to read the mark can't run the script.
func (b *batch) mayHaveRefundMark() bool {
	if b.getMarkCommand == nil {
		return false
	}
	err := b.getMarkCommand.Err()
	hasNoMark := errors.Is(err, goredis.Nil) || err != nil && KindOf(err) == KindNoPerm
	return !hasNoMark
}

// applyScriptReply answers the hits of the script, or fails them, or leaves them to a later attempt.
func (b *batch) applyScriptReply(a *attempt) {
	if a.scriptCommand.StringCmd == nil {
		return
	}
	reply, err := a.scriptCommand.Bytes()
	switch outcome := outcomeOf(err); {
	case outcome == outcomeExecuted:
		b.isScriptDone = true
		b.script.decode(reply, b.scriptHits, b.queue.instance.name)
	case isNoPerm(err) && !isAboutKey(err): // the user of Redis has no right to run EVALSHA
		b.reportError(err)
		b.isScriptDone = true
		for _, h := range b.scriptHits { // not failHits, which would count as a failure of Redis
			h.answer = answer{Result: backend.Result{Err: &backend.Error{Reason: backend.ReasonOutage, NotSent: true, Cause: err}}}
		}
	case outcome == outcomeUnknownScript && !b.mustSendScript:
		b.reportError(err)
		b.mustSendScript = true
	default:
		b.isScriptDone = b.applyFailure(a, b.scriptHits, outcome, err)
	}
}

// applyFailure handles the error of a command. It fails the hits of the command, or leaves them to sendEachKey, and
// returns true. If a later attempt must send the hits again, applyFailure returns false.
func (b *batch) applyFailure(a *attempt, hits []*pendingHit, outcome replyOutcome, err error) (isDone bool) {
	b.reportError(err)
	switch {
	case outcome == outcomeRedirect && !b.hasOneKey:
		a.redirectedHits = append(a.redirectedHits, hits...)
		return true
	case outcome == outcomeRedirect, outcome == outcomeTryLater:
		a.retryError = err
		return false
	case outcome == outcomeUnanswered:
		b.findServersAgain(a.server)
	}
	b.failHits(hits, err)
	return true
}

// sendEachKey sends hits of a hash slot that has moved or is being moved. It sends one batch for each key, because the
// client follows redirects only for commands that it sends alone.
func (b *batch) sendEachKey(ctx context.Context, hits []*pendingHit) {
	if len(hits) == 0 {
		return
	}
	if b.queue.limiter.options.WaitReplicas > 0 {
		b.hasTooFewReplicas = true // the batches below don't wait for replicas
	}
	hitsByName := map[string][]*pendingHit{}
	for _, h := range hits {
		name := string(h.counterName())
		hitsByName[name] = append(hitsByName[name], h)
	}
	var senders sync.WaitGroup
	semaphore := make(chan struct{}, maxKeyBatches)
	for _, hits := range hitsByName {
		semaphore <- struct{}{}
		senders.Go(func() {
			keyBatch := batch{queue: b.queue, hits: hits, hasOneKey: true, deadline: b.deadline, answerDeadline: b.answerDeadline}
			_ = keyBatch.send(ctx) // send also sets the error in the hits
			<-semaphore
		})
	}
	senders.Wait()
}

// findServersAgain lets the client look for the servers again, because s did not answer. s is nil if no server was found.
func (b *batch) findServersAgain(s *server) {
	if s != nil {
		s.clock.expire()
	}
	b.queue.instance.client.findServersAgain(s)
}

// reportError passes an error to the Observer. In an attempt, the Observer gets each kind of error only once.
func (b *batch) reportError(err error) {
	kind := KindOf(err)
	if kind == KindTimeout && b.deadlineWatch.isLate() {
		return // replaceWorker has already reported the timeout
	}
	if b.reportedKinds&(1<<kind) == 0 {
		b.reportedKinds |= 1 << kind
		b.queue.limiter.options.Observer.ErrorOccurred(b.queue.instance.role, kind)
	}
}

func (b *batch) failHits(hits []*pendingHit, err error) {
	if backend.ReasonOf(err) == backend.ReasonNone {
		reason := backend.ReasonOutage
		switch isTimeout := KindOf(err) == KindTimeout; {
		case isTimeout && isStarved(b.answerDeadline):
			reason = backend.ReasonOverload
		case isTimeout:
			reason = backend.ReasonLate
		}
		err = &backend.Error{Reason: reason, Cause: err}
	}
	err = fmt.Errorf("redis %s: %s: %w", b.queue.instance.name, hitsText(len(hits)), err)
	for _, h := range hits {
		h.answer = answer{Result: backend.Result{Err: err}}
	}
	if b.batchError == nil {
		b.batchError = err
	}
}

func hitsText(n int) string {
	if n == 1 {
		return "1 hit"
	}
	return strconv.Itoa(n) + " hits"
}

const (
	waitCommandPause = time.Second      // how long rls sends no WAIT to a server after a WAIT with too few replicas
	waitMargin       = time.Millisecond // the time from the timeout of a WAIT until the answer of Redis
)

func (b *batch) sendAndAwaitReplicas(ctx context.Context, s *server) {
	if microsSinceProcessStart() < s.nextWaitCommandTime.Load() {
		b.hasTooFewReplicas = true
		s.execute(ctx, b.commands)
		return
	}
	conn := s.node.Conn() // WAIT waits only for charges that were sent on the same connection
	defer func() { _ = conn.Close() }()
	runPipeline(ctx, conn, b.commands)
	if !b.awaitReplicas(ctx, conn) {
		b.hasTooFewReplicas = true
		s.nextWaitCommandTime.Store(microsSinceProcessStart() + waitCommandPause.Microseconds())
	}
}

// awaitReplicas reports whether enough replicas have the charges that conn has sent. It waits at most a quarter of
// Timeout, and at most half of the time until the deadline of the batch, so that the answers are not late.
func (b *batch) awaitReplicas(ctx context.Context, conn *goredis.Conn) bool {
	o := &b.queue.limiter.options
	waitTime := min(b.queue.limiter.Timeout()/4, time.Until(b.deadline)/2) - waitMargin
	ctx, cancel := context.WithTimeout(ctx, waitTime+waitMargin)
	defer cancel()
	cmd := goredis.NewIntCmd(ctx, "WAIT", o.WaitReplicas, max(waitTime.Milliseconds(), 1))
	return conn.Process(ctx, cmd) == nil && cmd.Val() >= int64(o.WaitReplicas)
}
