package redis

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// repliesConn is a connection to a server that ignores the commands, sends bytes, and closes the connection.
type repliesConn struct {
	net.Conn // nil: other methods are not used
	replies  *bytes.Reader
}

func (c repliesConn) Read(b []byte) (int, error)       { return c.replies.Read(b) }
func (c repliesConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c repliesConn) Close() error                     { return nil }
func (c repliesConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c repliesConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c repliesConn) SetDeadline(time.Time) error      { return nil }
func (c repliesConn) SetReadDeadline(time.Time) error  { return nil }
func (c repliesConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzReplies answers a Take with arbitrary bytes. Each hit must get a decision, or an error of the
// backend.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("+OK\r\n:1\r\n+OK\r\n:7\r\n$-1\r\n$4\r\n\x93\x01\x00\x00\r\n"))
	f.Add([]byte("+OK\r\n:1\r\n+OK\r\n-WRONGTYPE a list\r\n$3\r\nabc\r\n$1\r\n\x90\r\n"))
	f.Add([]byte("$-1\r\n:9223372036854775807\r\n+OK\r\n:-9223372036854775808\r\n*1\r\n:1\r\n-NOSCRIPT\r\n"))
	f.Add([]byte("-LOADING\r\n"))
	f.Add([]byte(":1\r\n"))
	plainLimit, scriptLimit := newLimit(f, limit.Spec{Requests: 5, Unit: limit.Day, ChargeDenied: true}), newLimit(f, limit.Spec{Requests: 5, Unit: limit.Day, Algorithm: limit.SlidingWindow})
	hits := []backend.Hit{{Key: []byte("a"), Limit: plainLimit, N: 1}, {Key: []byte("b"), Limit: plainLimit, N: 2}, {Key: []byte("c"), Limit: plainLimit}, {Key: []byte("d"), Limit: scriptLimit, N: 1}}
	f.Fuzz(func(t *testing.T, replies []byte) {
		l, err := New(Options{
			Main: Server{URL: "127.0.0.1:1"}, Timeout: 20 * time.Millisecond, CallersClock: true,
			Dial: func(context.Context, string, string) (net.Conn, error) {
				return repliesConn{replies: bytes.NewReader(replies)}, nil
			},
		})
		require.NoError(t, err)
		defer l.Close()
		results := make([]backend.Result, len(hits))
		l.Take(t.Context(), unitTime, hits, results)
		for i, r := range results {
			if r.Err == nil {
				assert.Equal(t, backend.SourceRedis, r.Source, "hit %d is decided by nobody", i)
			} else {
				assert.ErrorIs(t, r.Err, backend.ErrUnavailable)
			}
		}
	})
}

// valuesNode is a Redis with the values of another program.
type valuesNode struct {
	client
	values map[string]string
}

func (n valuesNode) masterOf(context.Context, string) (*server, error) {
	return fakeServer{n.Process}.masterOf()
}

func (n valuesNode) findServersAgain(*server) {}

func (n valuesNode) Process(_ context.Context, cmd goredis.Cmder) error {
	cmd.(stringCmdWithoutRetry).SetVal(n.values[*cmd.Args()[1].(*string)])
	return nil
}

// FuzzForeignValues reads counters with values of another program. A hit must fail only if the value
// is no number. Its error must have the name of the key.
func FuzzForeignValues(f *testing.F) {
	f.Add("7", "x")
	f.Add("-3", "9223372036854775808")
	f.Add("", "\x00")
	f.Fuzz(func(t *testing.T, first, second string) {
		names, values := []string{"v2:fw86400:a@0", "v2:fw86400:b@0"}, []string{first, second}
		l := newLimiterForTest(valuesNode{values: map[string]string{names[0]: first, names[1]: second}})
		r := l.newRequest(unitTime, time.Now(), time.Minute)
		plainLimit := newLimit(t, limit.Spec{Requests: 5, Unit: limit.Day, ChargeDenied: true})
		b := &batch{queue: l.queues[0], deadline: time.Now().Add(time.Minute)}
		for i, key := range []string{"a", "b"} {
			r.add(l.queues[0], i, &backend.Hit{Key: []byte(key), Limit: plainLimit}, 0)
		}
		for i := range names {
			h := &r.parts[0].hits[i]
			h.setWindow(r.now)
			b.hits = append(b.hits, h)
		}
		require.NoError(t, b.send(t.Context()), "each value concerns only the hits of its key")
		for i, h := range r.parts[0].hits {
			answer := h.answer
			count, err := strconv.ParseInt(values[i], 10, 64)
			if err != nil {
				require.ErrorContains(t, answer.Err, strconv.Quote(names[i]))
				require.ErrorIs(t, answer.Err, backend.ErrUnavailable)
				continue
			}
			require.NoError(t, answer.Err)
			assert.Equal(t, max(5-max(count, 0), 0), max(answer.Remaining, 0))
		}
	})
}
