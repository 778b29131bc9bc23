package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
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

	mu       sync.Mutex
	counts   map[string]int64
	commands []string
}

func (n *countingNode) masterOf(context.Context, string) (*server, error) {
	return fakeServer{func(ctx context.Context, cmd goredis.Cmder) error {
		if err := n.refuse(cmd.Args()[0].(string)); err != nil {
			return err
		}
		return n.Process(ctx, cmd)
	}}.masterOf()
}

func (n *countingNode) findServersAgain(*server) {}

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
