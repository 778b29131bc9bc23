package redis

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawReply returns a reply of Redis.
func drawReply(t *rapid.T, depth int) string {
	kinds := []string{"+OK\r\n", "-ERR $9 *9\r\n", ":-12\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n", "text", "array", "map"}
	kind := rapid.SampledFrom(kinds).Draw(t, "kind")
	switch kind {
	case "text":
		text := rapid.StringMatching(`[a\r\n$*9]{0,20}`).Draw(t, "text")
		return fmt.Sprintf("%s%d\r\n%s\r\n", rapid.SampledFrom([]string{"$", "=", "!"}).Draw(t, "sign"), len(text), text)
	case "array", "map":
		n := rapid.IntRange(0, 4).Draw(t, "elements")
		if depth == 4 {
			n = 0
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s%d\r\n", map[string]string{"array": "*", "map": "%"}[kind], n)
		for range n * map[string]int{"array": 1, "map": 2}[kind] {
			b.WriteString(drawReply(t, depth+1))
		}
		return b.String()
	}
	return kind
}

func TestRepliesWithinBoundsPassInPiecesOfAnySize(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var replies strings.Builder
		for range rapid.IntRange(1, 3).Draw(t, "replies") {
			replies.WriteString(drawReply(t, 0))
		}
		var s replyScanner
		for data := []byte(replies.String()); len(data) > 0; {
			n := rapid.IntRange(1, len(data)).Draw(t, "piece")
			require.NoError(t, s.scan(data[:n]))
			data = data[n:]
		}
		assert.Equal(t, replyScanner{arrays: s.arrays, line: s.line[:0]}, s, "the scanner expects the next reply")
	})
}

func TestRepliesBeyondBoundsAreRejected(t *testing.T) {
	for name, c := range map[string]struct{ reply, want string }{
		"a text of 4 GB":                  {"$4000000000\r\n", "text of more than 4194304 bytes"},
		"an error of 4 GB":                {"!4000000000\r\n", "text of more than 4194304 bytes"},
		"a length with more than 64 bits": {"$" + strings.Repeat("9", 100) + "\r\n", "text of more than 4194304 bytes"},
		"a length with a plus":            {"$+4000000000\r\n", `the length "+4000000000", want a number`},
		"an array of a billion":           {"*1000000000\r\n", "array of more than 1048576 elements"},
		"a map of a million":              {"%1000000\r\n", "array of more than 1048576 elements"},
		"large arrays in arrays":          {"*600000\r\n*600000\r\n", "array of more than 1048576 elements"},
		"a text of 4 GB in an array":      {"*2\r\n:1\r\n$4000000000\r\n", "text of more than 4194304 bytes"},
		"arrays in arrays without an end": {strings.Repeat("*1\r\n", 1<<18), "more than 131072 arrays"},
		"an error without an end":         {"-" + strings.Repeat("x", 1<<17), "line of more than 65536 bytes"},
		"a length without an end":         {"$" + strings.Repeat("0", 1<<17), "line of more than 65536 bytes"},
		"not the protocol of Redis":       {"HTTP/1.1 400 Bad Request\r\n", `line that begins with "H"`},
		"a long text after a good reply":  {":1\r\n$3\r\nabc\r\n$5000000\r\n", "text of more than 4194304 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var s replyScanner
			err := s.scan([]byte(c.reply))
			require.ErrorIs(t, err, errBadReply)
			assert.ErrorContains(t, err, c.want)
			assert.Equal(t, KindProtocol, KindOf(err))
			assert.Equal(t, err, s.scan([]byte(":1\r\n")), "the connection stays unusable")
		})
	}
}

// startReplyServer starts a server that answers each command with reply.
func startReplyServer(t *testing.T, reply string) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "*") {
						_, _ = conn.Write([]byte(reply))
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestLargeReplyIsRejectedBeforeItsMemoryIsAllocated(t *testing.T) {
	for _, reply := range []string{"$1000000000\r\nxx", "*100000000\r\n:1\r\n"} {
		client, _, err := Connect(Server{URL: startReplyServer(t, reply)}, time.Second)
		require.NoError(t, err)
		var statsBefore, statsAfter runtime.MemStats
		runtime.ReadMemStats(&statsBefore)
		err = client.Get(t.Context(), "key").Err()
		runtime.ReadMemStats(&statsAfter)
		assert.ErrorContains(t, err, "the reply of Redis can't be read")
		assert.Less(t, statsAfter.TotalAlloc-statsBefore.TotalAlloc, uint64(100<<20))
		require.NoError(t, client.Close())
	}
}

func TestConnectionsWithBoundedRepliesShowTheirSocket(t *testing.T) {
	addr := startReplyServer(t, ":1\r\n")
	conn, err := boundReplies(new(net.Dialer).DialContext)(t.Context(), "tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	assert.Implements(t, (*syscall.Conn)(nil), conn)
	conn, err = boundReplies(func(context.Context, string, string) (net.Conn, error) {
		nearEnd, farEnd := net.Pipe()
		return nearEnd, farEnd.Close()
	})(t.Context(), "tcp", addr)
	require.NoError(t, err)
	_, isSystemConn := conn.(syscall.Conn)
	assert.False(t, isSystemConn, "a connection without a socket")
	require.NoError(t, conn.Close())
}

func FuzzReplyScanner(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nabc\r\n:1\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s, bytewiseScanner replyScanner
		err := s.scan(data)
		for i := range data {
			_ = bytewiseScanner.scan(data[i : i+1])
		}
		assert.Equal(t, err == nil, bytewiseScanner.err == nil)
	})
}

func BenchmarkReplyScanner(b *testing.B) {
	for name, reply := range map[string]string{
		"text of 1 KB":    "$1000\r\n" + strings.Repeat("x", 1000) + "\r\n",
		"array of 64":     "*64\r\n" + strings.Repeat(":12345\r\n", 64),
		"reply of a peek": ":12345\r\n",
	} {
		data := []byte(reply)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var s replyScanner
			for b.Loop() {
				_ = s.scan(data)
			}
		})
	}
}
