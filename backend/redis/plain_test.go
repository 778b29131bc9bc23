package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// countingNode is a Redis that executes plain commands. refuse returns the error for a command of
// a pipeline, or nil. The node executes all commands outside of a pipeline.
type countingNode struct {
	client
	refuse func(name string) error
	server *server // nil for a new server at each look-up

	mu       sync.Mutex
	counts   map[string]int64
	commands []string
	searches int // calls of findServersAgain
}

func (n *countingNode) masterOf(context.Context, string) (*server, error) {
	pipelines := fakeServer{func(ctx context.Context, cmd goredis.Cmder) error {
		if err := n.refuse(cmd.Args()[0].(string)); err != nil {
			return err
		}
		return n.Process(ctx, cmd)
	}}
	if n.server != nil {
		n.server.pipeliner = pipelines
		return n.server, nil
	}
	return pipelines.masterOf()
}

func (n *countingNode) findServersAgain(*server) { n.searches++ }

func (n *countingNode) Process(_ context.Context, cmd goredis.Cmder) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.counts == nil {
		n.counts = map[string]int64{}
	}
	name := ""
	switch key := cmd.Args()[1].(type) {
	case string:
		name = key
	case *string:
		name = *key
	}
	n.commands = append(n.commands, fmt.Sprint(cmd.Args()[0], " ", name))
	if c, ok := cmd.(intCmdWithoutRetry); ok {
		charge := int64(1)
		if len(cmd.Args()) == 3 {
			charge = *cmd.Args()[2].(*int64)
		}
		n.counts[name] += charge
		c.SetVal(n.counts[name])
	}
	if c, ok := cmd.(stringCmdWithoutRetry); ok {
		c.SetVal(strconv.FormatInt(n.counts[name], 10))
	}
	return nil
}

// sendPlainHits sends a batch with a hit for each key to node. All hits are charged by plain commands.
func sendPlainHits(t *testing.T, node *countingNode, keys ...string) (*Limiter, *requestPart, error) {
	l := newLimiterForTest(node)
	b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), keys...)
	b.deadline = time.Now().Add(time.Second)
	ctx, cancel := context.WithDeadline(t.Context(), b.deadline)
	defer cancel()
	return l, part, b.send(ctx)
}

func TestPlainHitsFollowRedirectsKeyByKey(t *testing.T) {
	for _, redirect := range []error{replyError("MOVED 1 127.0.0.1:1"), replyError("ASK 1 127.0.0.1:1"), replyError("TRYAGAIN later")} {
		node := &countingNode{refuse: func(string) error { return redirect }}
		_, part, err := sendPlainHits(t, node, "a", "b", "a")
		require.NoError(t, err)
		for i, want := range []int64{4, 4, 3} {
			require.NoError(t, part.hits[i].answer.Err)
			assert.Equal(t, want, part.hits[i].answer.Remaining)
		}
		assert.ElementsMatch(t, []string{"SET v2:fw86400:a@0", "INCRBY v2:fw86400:a@0", "SET v2:fw86400:b@0", "INCR v2:fw86400:b@0"}, node.commands)
	}
}

func TestRefusedPlainHitsAreSentAgain(t *testing.T) {
	refusals := 3
	node := &countingNode{refuse: func(string) error {
		if refusals > 0 {
			refusals--
			return replyError("LOADING Redis is loading the dataset in memory")
		}
		return nil
	}}
	_, part, err := sendPlainHits(t, node, "a", "b")
	require.NoError(t, err)
	assert.Equal(t, int64(4), part.hits[0].answer.Remaining)
	assert.Equal(t, int64(4), part.hits[1].answer.Remaining)
	assert.Equal(t, map[string]int64{"v2:fw86400:a@0": 1, "v2:fw86400:b@0": 1}, node.counts, "each hit is charged once")
}

func TestUnansweredPlainHitsAreNotSentAgain(t *testing.T) {
	node := &countingNode{refuse: func(name string) error {
		if name == "INCR" {
			return errors.New("connection reset")
		}
		return nil
	}}
	l, part, err := sendPlainHits(t, node, "a", "b")
	require.ErrorIs(t, err, backend.ErrUnavailable)
	for _, h := range part.hits {
		assert.ErrorIs(t, h.answer.Err, backend.ErrUnavailable)
	}
	assert.Empty(t, node.counts)
	assert.Positive(t, node.searches, "the servers may have changed")
	assert.Len(t, l.queues[0].ttlCommandStore.takeCommands(), 2, "their keys get a time to live later")
}

func TestKeyWithoutExpiryGetsOneAtOnce(t *testing.T) {
	node := &countingNode{refuse: func(name string) error {
		if name == "SET" {
			return replyError("OOM command not allowed")
		}
		return nil
	}}
	l, part, err := sendPlainHits(t, node, "a")
	require.NoError(t, err)
	assert.NoError(t, part.hits[0].answer.Err)
	assert.Equal(t, []string{"INCR v2:fw86400:a@0", "PEXPIRE v2:fw86400:a@0"}, node.commands)
	assert.Empty(t, l.queues[0].ttlCommandStore.takeCommands())
}

// The results must equal the results of the script, which stops at MaxHits.
func TestPlainCountStopsAtMaxHits(t *testing.T) {
	l := newLimiterForTest(nil)
	b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), "a", "a")
	part.hits[0].N, part.hits[1].N = limit.MaxHits, 0
	b.divideHits()
	require.Len(t, b.counters.list, 1)
	b.counters.list[0].answerHits(3*limit.MaxHits, false)
	for _, h := range part.hits {
		assert.Equal(t, int64(5-limit.MaxHits), h.answer.Remaining)
		assert.False(t, h.answer.Allowed)
	}
}

func TestChargesUseIncrbyIfTheUserMayNotRunIncr(t *testing.T) {
	node := &countingNode{refuse: func(name string) error {
		if name == "INCR" {
			return replyError("NOPERM this user has no permissions to run the 'incr' command")
		}
		return nil
	}}
	l, part, err := sendPlainHits(t, node, "a", "b")
	require.NoError(t, err)
	for _, h := range part.hits {
		require.NoError(t, h.answer.Err)
		assert.Equal(t, int64(4), h.answer.Remaining)
	}
	assert.Equal(t, map[string]int64{"v2:fw86400:a@0": 1, "v2:fw86400:b@0": 1}, node.counts, "each hit is charged once")
	assert.True(t, l.queues[0].instance.isIncrForbidden.Load(), "later charges don't try INCR")
}

func TestRefusedHitsAreSentAgainAfterPausesUntilTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		node := &countingNode{refuse: func(name string) error {
			if name == "INCR" {
				tries++
			}
			return replyError("LOADING Redis is loading the dataset in memory")
		}}
		b, part := batchOf(newLimiterForTest(node), perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), "a")
		start := time.Now()
		b.deadline = start.Add(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the batch may wait longer for a late answer
		defer cancel()
		require.ErrorIs(t, b.send(ctx), backend.ErrUnavailable)
		assert.ErrorContains(t, part.hits[0].answer.Err, "LOADING")
		assert.Equal(t, 10, tries, "after pauses of 1, 2, 4, 8, and then 16 ms")
		assert.Equal(t, 95*time.Millisecond, time.Since(start), "the next try would come after the deadline")
	})
}

// movedMaster is a Sentinel whose master rejects writes until the next look-up.
type movedMaster struct {
	countingNode
	lookups int
}

func (m *movedMaster) masterOf(context.Context, string) (*server, error) {
	m.lookups++
	if m.lookups == 1 {
		return fakeServer{func(context.Context, goredis.Cmder) error { return replyError("READONLY You can't write") }}.masterOf()
	}
	return fakeServer{m.Process}.masterOf()
}

func TestRefusedHitsGoToTheNewMaster(t *testing.T) {
	master := &movedMaster{}
	b, part := batchOf(newLimiterForTest(master), perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), "a")
	b.deadline = time.Now().Add(time.Second)
	require.NoError(t, b.send(t.Context()))
	assert.Equal(t, int64(4), part.hits[0].answer.Remaining)
}

// noPerm returns the refusal of a command for which the user has no right.
func noPerm(command string) error {
	return replyError("NOPERM this user has no permissions to run the '" + command + "' command")
}

func TestUserWithoutTheRightToSetGetsExpiries(t *testing.T) {
	node := &countingNode{refuse: func(name string) error {
		if name == "SET" || name == "GET" || name == "PEXPIRE" {
			return noPerm(name)
		}
		return nil
	}}
	l, part, err := sendPlainHits(t, node, "a")
	require.NoError(t, err)
	assert.Equal(t, int64(4), part.hits[0].answer.Remaining)
	assert.Equal(t, []string{"INCR v2:fw86400:a@0", "EXPIRE v2:fw86400:a@0"}, node.commands)
	assert.Empty(t, l.queues[0].ttlCommandStore.takeCommands(), "the key has a time to live")
}

func TestHitsOfAUserWithoutTheRightToChargeFailAtOnce(t *testing.T) {
	for name, keys := range map[string][]string{"one hit": {"a"}, "two hits on a counter": {"a", "a"}} {
		tries := map[string]int{}
		node := &countingNode{refuse: func(name string) error {
			tries[name]++
			if name == "INCR" || name == "INCRBY" {
				return noPerm(name)
			}
			return nil
		}}
		_, part, err := sendPlainHits(t, node, keys...)
		require.ErrorIs(t, err, backend.ErrUnavailable, name)
		assert.ErrorContains(t, part.hits[0].answer.Err, "NOPERM", name)
		assert.Equal(t, 1, tries["INCRBY"], name)
		assert.LessOrEqual(t, tries["INCR"], 1, name)
		assert.Zero(t, node.searches, "the server is the right one")
	}
}

// A peek shows no time to live, because it can't tell a missing key from a new one.
func TestChargeAfterAPeekSetsATimeToLive(t *testing.T) {
	node := &countingNode{refuse: func(string) error { return nil }}
	l := newLimiterForTest(node)
	for _, n := range []int64{0, 1, 1} {
		b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), "a")
		part.hits[0].N = n
		b.deadline = time.Now().Add(time.Second)
		require.NoError(t, b.send(t.Context()))
	}
	assert.Equal(t, []string{"GET v2:fw86400:a@0", "SET v2:fw86400:a@0", "INCR v2:fw86400:a@0", "INCR v2:fw86400:a@0"}, node.commands)
}

func TestClockIsMeasuredAgainAfterALostAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		isUsable bool
	}{"lost answer": {errors.New("EOF"), false}, "refusal": {noPerm("incr"), true}} {
		node := &countingNode{server: &server{}, refuse: func(string) error { return c.err }}
		now := microsSinceProcessStart()
		node.server.clock.add(now, now, now)
		_, _, err := sendPlainHits(t, node, "a")
		require.Error(t, err, name)
		assert.Equal(t, c.isUsable, node.server.clock.isUsable(), "%s: the server may be another one, with another clock", name)
	}
}

// lostMaster is a Cluster without a master for the keys.
type lostMaster struct{ countingNode }

func (*lostMaster) masterOf(context.Context, string) (*server, error) {
	return nil, replyError("CLUSTERDOWN Hash slot not served")
}

func TestHitsWithoutAMasterFail(t *testing.T) {
	node := &lostMaster{}
	b, part := batchOf(newLimiterForTest(node), perDay(t, limit.Spec{Requests: 5}), "a")
	b.deadline = time.Now().Add(time.Second)
	require.ErrorIs(t, b.send(t.Context()), backend.ErrUnavailable)
	assert.Equal(t, KindCluster, KindOf(part.hits[0].answer.Err))
	assert.Equal(t, 1, node.searches)
}

func TestDenialsMayEndEarlyUnlessRedisHasNoMark(t *testing.T) {
	l := newLimiterForTest(nil)
	assert.Zero(t, l.refundMillis(), "groups are in one partition")
	assert.False(t, (&batch{}).mayHaveRefundMark())
	l.queues = append(l.queues, l.queues[0])
	l.options.Timeout = 50 * time.Millisecond
	assert.EqualValues(t, 1100, l.refundMillis(), "two timeouts, and the time of a late answer")
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"the mark exists":             {nil, true},
		"no mark":                     {goredis.Nil, false},
		"no right to read the mark":   {noPerm("get"), false},
		"no answer":                   {errors.New("EOF"), true},
		"a Redis that reads its data": {replyError("LOADING Redis is loading the dataset in memory"), true},
	} {
		b := &batch{getMarkCommand: goredis.NewStringCmd(t.Context())}
		b.getMarkCommand.SetErr(c.err)
		assert.Equal(t, c.want, b.mayHaveRefundMark(), name)
	}
}

// connectToWaitServer returns a client of a server that answers WAIT with the number of replicas. If the number is negative,
// the server never answers.
func connectToWaitServer(t *testing.T, replicas int) *goredis.Client {
	addr := startLineServer(t, func(line string) string {
		switch command := strings.ToUpper(line); {
		case command == "HELLO":
			return "-ERR unknown command 'HELLO'\r\n"
		case command == "WAIT" && replicas >= 0:
			return fmt.Sprintf(":%d\r\n", replicas)
		}
		return ""
	})
	client, _, err := Connect(Server{URL: addr}, 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client.(*goredis.Client)
}

func TestChargeIsSafeOnceEnoughReplicasHaveIt(t *testing.T) {
	t.Parallel()
	const noAnswer = -1
	for name, c := range map[string]struct {
		replicas          int
		timeout, timeLeft time.Duration
		want              bool
	}{
		"too few replicas":                      {1, time.Minute, time.Minute, false},
		"enough replicas":                       {2, time.Minute, time.Minute, true},
		"more replicas":                         {3, time.Minute, time.Minute, true},
		"half of the time that is left is over": {noAnswer, time.Minute, 400 * time.Millisecond, false},
		"a quarter of the timeout is over":      {noAnswer, 400 * time.Millisecond, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLimiterForTest(nil)
			l.options.WaitReplicas, l.options.Timeout = 2, c.timeout
			conn := connectToWaitServer(t, c.replicas).Conn()
			defer conn.Close()
			start := time.Now()
			b := &batch{queue: l.queues[0], deadline: start.Add(c.timeLeft)}
			assert.Equal(t, c.want, b.awaitReplicas(t.Context(), conn))
			assert.Less(t, time.Since(start), min(c.timeout, c.timeLeft), "the answer of the batch is in time")
		})
	}
}

// The commands of such a batch go to any server of a Cluster, one by one. A TIME could measure another server.
func TestBatchOfOneKeyMeasuresNoClock(t *testing.T) {
	node := &countingNode{server: &server{}}
	moment := microsSinceProcessStart() - 2*measureInterval
	node.server.clock.add(moment, moment, time.Now().UnixMicro())
	require.True(t, node.server.clock.needsMeasurement())
	l := newLimiterForTest(node)
	l.options.CallersClock = false
	b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5, ChargeDenied: true}), "a")
	b.hasOneKey, b.deadline = true, time.Now().Add(time.Minute)
	require.NoError(t, b.send(t.Context()))
	assert.Equal(t, int64(4), part.hits[0].answer.Remaining)
	assert.Len(t, node.commands, 2, "SET and INCR")
}
