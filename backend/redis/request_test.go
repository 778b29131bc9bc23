package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// Another Take uses the memory of an abandoned request. It must not find an old answer.
func TestAbandonedRequestLeaksNoResult(t *testing.T) {
	const parts = 3
	for answeredParts := range parts + 1 { // the parts that are answered before the Take cancels
		l := &Limiter{}
		r := l.newRequest(time.Now(), time.Now(), time.Second)
		for range parts {
			r.parts = append(r.parts, &requestPart{request: r, queue: &partitionQueue{limiter: l}})
		}
		r.userCount.Store(parts + takeWeight)
		for i, p := range append([]*requestPart(nil), r.parts...) {
			if i == answeredParts {
				r.abandon(l)
			}
			p.finish()
		}
		if answeredParts == parts {
			r.abandon(l)
		}
		assert.Empty(t, r.allAnswered, "abandoned after %d answers", answeredParts)
		assert.Empty(t, r.parts, "the parts are recycled")
	}
}

// newLimiterForTest returns a Limiter without workers over node. The time of all hits is unitTime.
func newLimiterForTest(node client) *Limiter {
	l := &Limiter{options: Options{Timeout: time.Second, Observer: noObserver{}, CallersClock: true}}
	l.queues = []*partitionQueue{{limiter: l, instance: &redisInstance{name: "node", client: node}, keysWithTTL: newTTLTable(8)}}
	return l
}

// unitTime is a time on the first day of 1970.
var unitTime = time.Unix(100, 0)

// newLimit returns a limit. Unless s charges denied hits, hits with a positive N need the script.
func newLimit(t require.TestingT, s limit.Spec) *limit.Limit {
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

func perDay(t *testing.T, s limit.Spec) *limit.Limit {
	s.Unit = limit.Day
	return newLimit(t, s)
}

// fakeServer is a server whose pipelines send all commands to process, one after the other.
type fakeServer struct {
	process func(context.Context, goredis.Cmder) error
}

func (f fakeServer) masterOf() (*server, error)  { return &server{pipeliner: f}, nil }
func (f fakeServer) Pipeline() goredis.Pipeliner { return &fakePipeline{process: f.process} }

type fakePipeline struct {
	goredis.Pipeliner
	process  func(context.Context, goredis.Cmder) error
	commands []goredis.Cmder
}

func (p *fakePipeline) BatchProcess(_ context.Context, commands ...goredis.Cmder) error {
	p.commands = append(p.commands, commands...)
	return nil
}

func (p *fakePipeline) Exec(ctx context.Context) ([]goredis.Cmder, error) {
	for _, cmd := range p.commands {
		cmd.SetErr(p.process(ctx, cmd))
	}
	return p.commands, nil
}

// batchOf returns a batch with one hit for each key. All hits are in one part of one request.
func batchOf(l *Limiter, lim *limit.Limit, keys ...string) (*batch, *requestPart) {
	r := l.newRequest(unitTime, time.Now(), time.Minute)
	for i, key := range keys {
		r.add(l.queues[0], i, &backend.Hit{Key: []byte(key), Limit: lim, N: 1}, 1)
	}
	b := &batch{queue: l.queues[0]}
	for i := range r.parts[0].hits {
		h := &r.parts[0].hits[i]
		h.setWindow(r.now)
		b.hits = append(b.hits, h)
	}
	return b, r.parts[0]
}

// movingNode is a node with a hash slot that moves to another node. It rejects scripts with several keys.
type movingNode struct {
	client
	mu   sync.Mutex
	keys []string
}

func (m *movingNode) masterOf(context.Context, string) (*server, error) {
	return fakeServer{m.Process}.masterOf()
}

func (m *movingNode) findServersAgain(*server) {}

func (m *movingNode) Process(_ context.Context, cmd goredis.Cmder) error {
	if cmd.Args()[2] != 1 {
		return replyError("TRYAGAIN Multiple keys request during rehashing of slot")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys = append(m.keys, *cmd.Args()[firstKeyPlace].(*string))
	c, ok := cmd.(stringCmdWithoutRetry)
	if !ok {
		return errors.New("go-redis could repeat the command")
	}
	c.SetVal(string(append(msgp.AppendArrayHeader(nil, 3), 1, 0, 0)))
	return nil
}

func TestBatchIsSplitByKeyWhileItsSlotMoves(t *testing.T) {
	node := &movingNode{}
	l := newLimiterForTest(node)
	b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a", "b")
	b.deadline = time.Now().Add(10 * time.Second)
	ctx, cancel := context.WithDeadline(t.Context(), b.deadline)
	defer cancel()
	require.NoError(t, b.send(ctx))
	assert.ElementsMatch(t, []string{"v2:fw86400:a@0", "v2:fw86400:b@0"}, node.keys)
	assert.False(t, b.hasTooFewReplicas, "no replicas are wanted")
	for _, h := range part.hits {
		assert.NoError(t, h.answer.Err)
		assert.Equal(t, int64(4), h.answer.Remaining)
	}
}

func TestBrokenReplyFailsTheHitsItDoesNotAnswer(t *testing.T) {
	l := newLimiterForTest(nil)
	for name, c := range map[string]struct {
		reply string
		errs  []string // the errors of hits a and b; an empty text means no error
	}{
		"complete reply":            {"\x97\x01\x00\x00\x02\x00\x00\x09", []string{"", ""}},
		"short reply":               {"\x93\x01\x00\x00", []string{"", `counter "v2:fw86400:b@0": rate limit backend unavailable: the reply of Redis can't be read: the reply ends before this hit`}},
		"cut reply":                 {"\x96\x01\x00\x00\x02", []string{"can't be read", `counter "v2:fw86400:b@0"`}},
		"empty reply":               {"", []string{"ends before this hit", "ends before this hit"}},
		"reply with another type":   {"\x96\x01\x00\x00\xa1x\x00\x00", []string{"can't be read", "can't be read"}},
		"an error of one hit":       {"\x99\x01\x00\x00\x00\x00\x00\x09\x02\xa4NOPE", []string{"", `redis node: counter "v2:fw86400:b@0": rate limit backend unavailable: NOPE`}},
		"an error of no hit":        {"\x99\x01\x00\x00\x00\x00\x00\x09\x03\xa4NOPE", []string{"can't be read", "can't be read"}},
		"an error without its text": {"\x98\x01\x00\x00\x00\x00\x00\x09\x02", []string{"can't be read", "can't be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a", "b")
			b.script.decode([]byte(c.reply), b.hits, "node")
			for i, want := range c.errs {
				if err := part.hits[i].answer.Err; want == "" {
					assert.NoError(t, err)
					assert.True(t, part.hits[i].answer.Allowed)
					assert.Equal(t, int64(4-i), part.hits[i].answer.Remaining)
				} else if assert.ErrorContains(t, err, want) {
					assert.ErrorIs(t, err, backend.ErrUnavailable)
				}
			}
		})
	}
}

func TestEqualLimitsAreSentOnce(t *testing.T) {
	l := newLimiterForTest(nil)
	limitOf10, limitOf20 := perDay(t, limit.Spec{Requests: 10}), perDay(t, limit.Spec{Requests: 20})
	b, part := batchOf(l, limitOf10, "a", "b", "c", "d")
	part.hits[1].Limit = limitOf20
	part.hits[2].Limit = perDay(t, limit.Spec{Requests: 10}) // each request has its own copy of a limit
	part.hits[3].AllOrNone = true
	args := b.script.encode(b.hits, 0, 0, false, true, 0)
	assert.Equal(t, []int64{1, 2, 1, 3}, b.script.limitNumbers)
	assert.Len(t, args, 3+4+2)
	keys := make([]string, 100)
	b, part = batchOf(l, limitOf10, keys...)
	for i := range part.hits {
		part.hits[i].Limit = perDay(t, limit.Spec{Requests: uint32(i % 50)})
	}
	b.script.encode(b.hits, 0, 0, false, true, 0)
	assert.LessOrEqual(t, len(b.script.limits), 100, "a limit can repeat, because encode compares it only with the last limits")
}

func TestPartIsNotSentAfterItsSendDeadline(t *testing.T) {
	l := newLimiterForTest(nil)
	b, part := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a")
	part.request.userCount.Store(1 + takeWeight)
	part.request.sendDeadline = time.Now().Add(-time.Millisecond)
	b.run(t.Context(), []*requestPart{part}) // a use of the nil client would panic
	assert.Equal(t, backend.ReasonOverload, backend.ReasonOf(part.hits[0].answer.Err))
}

func FuzzDecode(f *testing.F) {
	f.Add("\x99\x01\x00\x00\x00\x00\x00\x09\x02\xa4NOPE")
	f.Fuzz(func(t *testing.T, reply string) {
		l := newLimiterForTest(nil)
		b, _ := batchOf(l, perDay(t, limit.Spec{Requests: 5}), "a", "b")
		b.script.decode([]byte(reply), b.hits, "node")
	})
}
