package redis

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/tinylib/msgp/msgp"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// slowNode answers each script after a pause. With a pause of 0, it never answers.
type slowNode struct {
	client
	pause time.Duration
	hits  atomic.Int64 // the received hits
}

func (n *slowNode) masterOf(context.Context, string) (*server, error) {
	return fakeServer{n.Process}.masterOf()
}

func (n *slowNode) findServersAgain(*server) {}

func (n *slowNode) roundTrip() time.Duration { return 0 }

func (n *slowNode) Process(ctx context.Context, cmd goredis.Cmder) error {
	hits := cmd.Args()[2].(int)
	n.hits.Add(int64(hits))
	if n.pause == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(n.pause):
	}
	reply := msgp.AppendArrayHeader(nil, uint32(3*hits+1))
	for range 3*hits + 1 {
		reply = msgp.AppendInt64(reply, 0)
	}
	cmd.(stringCmdWithoutRetry).SetVal(string(reply))
	return nil
}

// outcomes has the number of hits with each kind of result.
type outcomes struct{ answeredHits, overloadedHits, stalledHits, failedHits int }

// takeForOneSecond starts a Take of one hit, waits for interval, and repeats this for a
// second. It returns the outcomes.
func takeForOneSecond(t *testing.T, node *slowNode, o Options, interval time.Duration) (got outcomes) {
	o.Timeout, o.Observer, o.CallersClock = 50*time.Millisecond, noObserver{}, true
	instance := &redisInstance{name: "node", client: node, partitions: 1, maxInflightBatches: 1}
	ctx, stop := context.WithCancel(t.Context())
	l := &Limiter{instances: []*redisInstance{instance}, options: o, stop: stop}
	l.queues = []*partitionQueue{l.startQueue(ctx, instance, "")}
	lim := perDay(t, limit.Spec{Requests: 1000})
	var mu sync.Mutex
	var takes sync.WaitGroup
	for start := time.Now(); time.Since(start) < time.Second; time.Sleep(interval) {
		takes.Go(func() {
			results := make([]backend.Result, 1)
			l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: lim, N: 1}}, results)
			mu.Lock()
			defer mu.Unlock()
			switch err := results[0].Err; {
			case err == nil:
				got.answeredHits++
			case backend.ReasonOf(err) == backend.ReasonOverload:
				got.overloadedHits++
			case backend.IsNotSent(err):
				got.stalledHits++
			case errors.Is(err, backend.ErrUnavailable):
				got.failedHits++
			}
		})
	}
	takes.Wait()
	stop()
	l.queues[0].close()
	l.workers.Wait()
	return got
}

// A batch has 10 hits and takes 10 ms, but 20 hits arrive in 10 ms.
func TestLongQueueIsNoFailureOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &slowNode{pause: 10 * time.Millisecond}
		got := takeForOneSecond(t, node, Options{MaxBatchSize: 10, MaxInflightBatches: 1, MaxQueueSize: 4096}, 500*time.Microsecond)
		assert.Zero(t, got.failedHits)
		assert.Greater(t, got.overloadedHits, 500)
		assert.Greater(t, got.answeredHits, 500, "Redis answers half of the hits")
		assert.EqualValues(t, got.answeredHits, node.hits.Load(), "hits without time left are not sent")
	})
}

func TestFullQueueIsNoFailureOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := takeForOneSecond(t, &slowNode{pause: 10 * time.Millisecond}, Options{MaxBatchSize: 10, MaxInflightBatches: 1, MaxQueueSize: 10}, 500*time.Microsecond)
		assert.Zero(t, got.failedHits)
		assert.Greater(t, got.overloadedHits, 500)
	})
}

// Each hit that Redis has received fails after its timeout, even if the queue is long.
func TestHangingRedisFailsHitsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, interval := range []time.Duration{100 * time.Microsecond, time.Millisecond, 20 * time.Millisecond} {
			node := &slowNode{}
			got := takeForOneSecond(t, node, Options{MaxBatchSize: 10, MaxInflightBatches: 1, MaxQueueSize: 4096}, interval)
			assert.Zero(t, got.answeredHits)
			assert.GreaterOrEqual(t, got.failedHits, 20, "in a second, with a hit each %v", interval)
			assert.Zero(t, got.overloadedHits, "hits that wait for an unanswered batch fail because of Redis")
			assert.EqualValues(t, got.failedHits, node.hits.Load(), "hits that were never sent do not count")
		}
	})
}

// recorder remembers batches and errors.
type recorder struct {
	batches []Batch
	errors  []ErrorKind
}

func (r *recorder) BatchDone(b Batch)                    { r.batches = append(r.batches, b) }
func (r *recorder) CountersLost(Role, bool)              {}
func (r *recorder) ErrorOccurred(_ Role, kind ErrorKind) { r.errors = append(r.errors, kind) }

func TestObserverLearnsOfEachBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			node     *slowNode
			duration time.Duration
			err      error
		}{
			{&slowNode{pause: 10 * time.Millisecond}, 10 * time.Millisecond, nil},
			{&slowNode{}, 50 * time.Millisecond, backend.ErrUnavailable},
		} {
			l := newLimiterForTest(c.node)
			got := &recorder{}
			l.options.Observer = got
			b, queuedPart := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a", "b")
			now := time.Now()
			queuedPart.start, queuedPart.sendDeadline, queuedPart.deadline = now, now.Add(time.Second), now.Add(3*time.Millisecond+50*time.Millisecond)
			queuedPart.userCount.Store(1 + takeWeight) // one unanswered part; the Take that waits counts as takeWeight
			b.queuedHits = 7
			time.Sleep(3 * time.Millisecond)
			b.run(t.Context(), []*requestPart{queuedPart})
			if assert.Len(t, got.batches, 1) {
				assert.ErrorIs(t, got.batches[0].Err, c.err)
				assert.Equal(t, c.err != nil, len(got.errors) == 1)
				got.batches[0].Err = nil
				assert.Equal(t, Batch{Hits: 2, QueuedHits: 7, Wait: 3 * time.Millisecond, Duration: c.duration}, got.batches[0])
			}
		}
	})
}

func TestTimeoutOfALateBatchIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := &recorder{}
		instance := &redisInstance{name: "node", client: &slowNode{}, partitions: 1, maxInflightBatches: 1, maxWatchedBatches: 1}
		ctx, stop := context.WithCancel(t.Context())
		l := &Limiter{instances: []*redisInstance{instance}, stop: stop, options: Options{
			Timeout: 50 * time.Millisecond, Observer: got, CallersClock: true, MaxBatchSize: 10, MaxQueueSize: 10,
		}}
		l.queues = []*partitionQueue{l.startQueue(ctx, instance, "")}
		results := make([]backend.Result, 1)
		l.Take(t.Context(), time.Now(), []backend.Hit{{Key: []byte("k"), Limit: perDay(t, limit.Spec{Requests: 5}), N: 1}}, results)
		assert.Equal(t, backend.ReasonLate, backend.ReasonOf(results[0].Err))
		time.Sleep(2 * lateAnswerTime)
		stop()
		l.queues[0].close()
		l.workers.Wait()
		assert.Equal(t, []ErrorKind{KindTimeout}, got.errors, "at the deadline, and not again at the end of the wait for the late answer")
		assert.Len(t, got.batches, 1)
	})
}

// A process without CPU time notices its deadlines late. Redis may have answered in time.
func TestStarvedProcessIsNoFailureOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			noticeDelay time.Duration // the time from the deadline until the process notices it
			reason      backend.Reason
		}{
			{0, backend.ReasonLate},
			{starvedDelay, backend.ReasonLate},
			{starvedDelay + time.Millisecond, backend.ReasonOverload},
		} {
			l := newLimiterForTest(&slowNode{})
			now := time.Now()
			r := l.newRequest(now, now.Add(-time.Second-c.noticeDelay), time.Second)
			err := r.wait(t.Context())
			assert.Equal(t, c.reason, backend.ReasonOf(err), "the error of the Take, noticed after %v", c.noticeDelay)

			b, queuedPart := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a")
			b.answerDeadline = now.Add(-c.noticeDelay)
			b.failHits(b.hits, context.DeadlineExceeded)
			err = queuedPart.hits[0].answer.Err
			assert.ErrorIs(t, err, backend.ErrUnavailable)
			assert.ErrorContains(t, err, ": 1 hit: ")
			assert.Equal(t, c.reason, backend.ReasonOf(err), "the error of the batch, noticed after %v", c.noticeDelay)
		}
	})
}

// lateNode answers a script after a time that grows with the number of hits.
type lateNode struct {
	slowNode
	timePerHit time.Duration
}

func (n *lateNode) Process(ctx context.Context, cmd goredis.Cmder) error {
	n.pause = n.timePerHit * time.Duration(cmd.Args()[2].(int))
	return n.slowNode.Process(ctx, cmd)
}

func (n *lateNode) masterOf(context.Context, string) (*server, error) {
	return fakeServer{n.Process}.masterOf()
}

func TestLargeCallsThatTakeTooLongAreNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &lateNode{timePerHit: time.Millisecond}
		instance := &redisInstance{name: "node", client: node, partitions: 1, maxInflightBatches: 1}
		ctx, stop := context.WithCancel(t.Context())
		l := &Limiter{instances: []*redisInstance{instance}, stop: stop, options: Options{
			Timeout: 50 * time.Millisecond, Observer: noObserver{}, CallersClock: true,
			MaxBatchSize: 256, MaxInflightBatches: 1, MaxQueueSize: 4096,
		}}
		l.queues = []*partitionQueue{l.startQueue(ctx, instance, "")}
		lim := perDay(t, limit.Spec{Requests: 1000})
		take := func(n int) error {
			hits, results := make([]backend.Hit, n), make([]backend.Result, n)
			for i := range hits {
				hits[i] = backend.Hit{Key: []byte{byte(i)}, Limit: lim, N: 1}
			}
			l.Take(t.Context(), time.Now(), hits, results)
			return results[0].Err
		}
		for range 2 {
			assert.Equal(t, backend.ReasonLate, backend.ReasonOf(take(100)), "the cost of a hit is unknown yet")
			time.Sleep(50 * time.Millisecond)
		}
		for range 4 {
			err := take(100)
			assert.True(t, backend.IsNotSent(err))
			assert.Equal(t, backend.ReasonOverload, backend.ReasonOf(err))
			time.Sleep(10 * time.Millisecond)
		}
		assert.EqualValues(t, 200, node.hits.Load())
		assert.NoError(t, take(10), "small calls are sent")
		time.Sleep(time.Second)
		node.timePerHit = 100 * time.Microsecond
		assert.NoError(t, take(100), "after a time, the cost is measured again")
		assert.NoError(t, take(100))
		stop()
		l.queues[0].close()
		l.workers.Wait()
	})
}

func TestLargeCallsDelayOthersByOneBatch(t *testing.T) {
	q := &partitionQueue{limiter: &Limiter{options: Options{MaxBatchSize: 64, MaxQueueSize: 4096}}}
	push := func(hits int) {
		assert.NoError(t, q.push(&requestPart{request: &request{}, hits: make([]pendingHit, hits)}))
	}
	for range 5 {
		push(256)
	}
	for range 100 {
		push(1)
	}
	var got [][]int
	for q.hitCount > 0 {
		batch, queued := q.pop(nil)
		var sizes []int
		for _, part := range batch {
			if n := len(sizes); n > 0 && len(part.hits) == 1 && sizes[n-1] < 256 {
				sizes[n-1]++
				continue
			}
			sizes = append(sizes, len(part.hits))
		}
		got = append(got, sizes)
		assert.Equal(t, q.hitCount, queued)
	}
	assert.Equal(t, [][]int{{64}, {256}, {36}, {256}, {256}, {256}, {256}}, got)
}

func TestQueueTakesHitsUpToItsBound(t *testing.T) {
	for name, c := range map[string]struct {
		maxQueueSize int
		parts        []int // hits of each part
		want         error // of the last part
	}{
		"as many hits as fit":             {10, []int{4, 6}, nil},
		"one hit too many":                {10, []int{4, 7}, errQueueFull},
		"a large call in an empty queue":  {10, []int{20}, nil},
		"as many hits as a call can have": {10, []int{maxPartHits}, nil},
		"more hits than a call can have":  {10_000, []int{maxPartHits + 1}, errTooManyHits},
	} {
		q := &partitionQueue{limiter: &Limiter{options: Options{MaxBatchSize: 64, MaxQueueSize: c.maxQueueSize}}}
		var err error
		for _, hits := range c.parts {
			assert.NoError(t, err, name)
			err = q.push(&requestPart{request: &request{}, hits: make([]pendingHit, hits)})
		}
		assert.Equal(t, c.want, err, name)
	}
}

func TestBatchTakesSmallAndLargeCallsThatFit(t *testing.T) {
	q := &partitionQueue{limiter: &Limiter{options: Options{MaxBatchSize: 64, MaxQueueSize: 4096}}}
	for _, hits := range []int{20, 1, 30, 2} {
		assert.NoError(t, q.push(&requestPart{request: &request{}, hits: make([]pendingHit, hits)}))
	}
	batch, queued := q.pop(nil)
	assert.Len(t, batch, 4)
	assert.Zero(t, queued)
}

func TestWaitIsStalledIfOneBatchTookHalfOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		var timing batchTiming
		runBatch := func(duration time.Duration) {
			timing.begin()
			time.Sleep(duration)
			timing.end(duration, 1, nil)
		}
		assert.False(t, timing.isStalled(ms), "there was no batch")
		runBatch(40 * ms)
		assert.True(t, timing.isStalled(80*ms))
		assert.False(t, timing.isStalled(81*ms))
		runBatch(ms)
		assert.True(t, timing.isStalled(80*ms), "the batch of 40 ms is recent")
		time.Sleep(40 * ms)
		runBatch(ms)
		assert.False(t, timing.isStalled(10*ms), "the batch of 40 ms is old")

		time.Sleep(40 * ms)
		assert.False(t, timing.isStalled(10*ms), "Redis has nothing to answer")
		timing.begin()
		time.Sleep(20 * ms)
		assert.True(t, timing.isStalled(10*ms), "a batch has no answer")
		timing.end(20*ms, 1, context.DeadlineExceeded)
		assert.True(t, timing.isStalled(10*ms), "a batch has failed")
		time.Sleep(20 * ms)
		assert.False(t, timing.isStalled(10*ms), "the batch failed before the wait")
	})
}

func TestExpectedTimeComesFromTheFasterOfTwoLargeBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms, n = time.Millisecond, largeBatchHits
		var timing batchTiming
		timing.recordHitCost(n*ms, n, nil)
		assert.Zero(t, timing.expectedTime(n), "a single batch can be slow by chance")
		timing.recordHitCost(2*n*ms, n, nil)
		assert.Equal(t, n*ms, timing.expectedTime(n))
		assert.Equal(t, 2*n*ms, timing.expectedTime(2*n))
		assert.Zero(t, timing.expectedTime(n-1), "the time of a small batch hardly depends on its hits")
		timing.recordHitCost(ms, n-1, nil)
		assert.Equal(t, n*ms, timing.expectedTime(n), "a small batch has no cost")
		timing.recordHitCost(4*n*ms, n, context.DeadlineExceeded)
		timing.recordHitCost(4*n*ms, n, context.DeadlineExceeded)
		assert.Equal(t, 8*n*ms, timing.expectedTime(n), "a failed batch would have taken longer")
		time.Sleep(hitCostLife*time.Microsecond + 1)
		assert.Equal(t, 8*n*ms, timing.expectedTime(n))
		time.Sleep(time.Microsecond)
		assert.Zero(t, timing.expectedTime(n), "the cost is old")
		timing.recordHitCost(n*ms, n, nil)
		assert.Zero(t, timing.expectedTime(n), "the cost before the pause does not count")
	})
}
