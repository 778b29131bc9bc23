//go:build attacks

package attacks

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// portAttacks are attacks on the ports of the service.
var portAttacks = []attack{
	{name: "floods of PING on 8 connections", run: flood((*frameConn).ping), refusalReason: "frames"},
	{name: "floods of SETTINGS on 8 connections", run: flood((*frameConn).settings), refusalReason: "frames"},
	{name: "floods of WINDOW_UPDATE on 8 connections", run: flood((*frameConn).windowUpdate), refusalReason: "frames"},
	{name: "floods of CONTINUATION on 8 connections", run: flood((*frameConn).continuation), refusalReason: "frames"},
	{name: "floods of empty DATA on 8 connections", run: flood((*frameConn).emptyData), refusalReason: "peer_cuts"},
	{
		name: "calls that the attacker resets at once, on 8 connections from the address of an honest client", run: resets(8), refusalReason: "frames",
		prepare: openAnsweredConnection, calls: newConnectionCalls,
	},
	{name: "4,000 calls a second through the Envoy of an honest client, all cancelled", run: cancelThroughEnvoy(4000), prepare: startEnvoy, calls: envoyCalls},
	{name: "16 clients with deadlines of 20 ms, while the service stands still for a second", run: standStill(16), stopsService: true},
	{name: "200 connections that pipeline batches of 100 checks to /v1/check", run: pipelinedPosts(200, "/v1/check", batchOfChecks)},
	{name: "200 connections that pipeline calls of 256 descriptors to /json", run: pipelinedPosts(200, "/json", largeJSON)},
	{name: "posts of a web page to /v1/check, by DNS rebinding", run: rebindingPosts},
	{name: "Redis that announces replies of 4 GB", settings: hostileRedis, breaksRedis: true},
}

func init() { allAttacks = append(allAttacks, portAttacks...) }

// flood sends frames without a pause on 8 connections.
func flood(send func(*frameConn) error) func(context.Context, *service) {
	return func(ctx context.Context, s *service) { onConnections(ctx, 8, s.grpc, send) }
}

func (f *frameConn) ping() error { return f.WritePing(false, [8]byte{}) }

func (f *frameConn) settings() error {
	return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
}

func (f *frameConn) windowUpdate() error { return f.WriteWindowUpdate(0, 1) }

// continuation sends CONTINUATION frames without headers, all for one call.
func (f *frameConn) continuation() error {
	if f.stream == 1 {
		f.stream += 2
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1})
	}
	return f.WriteContinuation(1, false, nil)
}

// emptyData sends DATA frames without data, all for one call.
func (f *frameConn) emptyData() error {
	if f.stream == 1 {
		if _, err := f.open(); err != nil {
			return err
		}
	}
	return f.WriteData(1, false, nil)
}

// openAnsweredConnection opens a connection from the address of the attackers. The connection gets
// an answer and stays open.
func openAnsweredConnection(s *service) {
	client, closeClient := s.client(attackerDialer)
	s.t.Cleanup(closeClient)
	_, err := client.ShouldRateLimit(s.t.Context(), request("neighbour", 1))
	require.NoError(s.t, err)
}

// standStill stops the service for a second, while clients call it with short deadlines.
func standStill(clients int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		var goroutines sync.WaitGroup
		for range clients {
			client, closeClient := s.client(attackerDialer)
			defer closeClient()
			goroutines.Go(func() {
				for ctx.Err() == nil {
					goroutines.Go(func() {
						callCtx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
						defer cancel()
						_, _ = client.ShouldRateLimit(callCtx, request("short", 1))
					})
					time.Sleep(5 * time.Millisecond)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		assert.NoError(s.t, s.cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(time.Second)
		assert.NoError(s.t, s.cmd.Process.Signal(syscall.SIGCONT))
		goroutines.Wait()
	}
}

// pipelinedPosts posts a body on each connection again and again, without waiting for answers.
func pipelinedPosts(conns int, path string, body func() string) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		text := body()
		post := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(text), text)
		var goroutines sync.WaitGroup
		for range conns {
			goroutines.Go(func() {
				conn, err := attackerDialer.DialContext(ctx, "tcp", s.http)
				if err != nil {
					return
				}
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				goroutines.Go(func() { _, _ = io.Copy(io.Discard, conn) })
				for err == nil {
					_, err = conn.Write(post)
				}
			})
		}
		goroutines.Wait()
	}
}

// batchOfChecks returns a body of /v1/check.
func batchOfChecks() string {
	var checks []string
	for i := range 100 {
		checks = append(checks, fmt.Sprintf(`{"descriptor":[{"key":"k","value":"%d"}]}`, i))
	}
	return `{"domain":"d","checks":[` + strings.Join(checks, ",") + `]}`
}

// largeJSON returns a body of /json.
func largeJSON() string {
	var descriptors []string
	for i := range 256 {
		descriptors = append(descriptors, fmt.Sprintf(`{"entries":[{"key":"k","value":"%d"}]}`, i))
	}
	return `{"domain":"d","descriptors":[` + strings.Join(descriptors, ",") + `]}`
}

// rebindingPosts posts like a browser on the web site of an attacker, after the name of the site has
// got the address of the service.
func rebindingPosts(ctx context.Context, s *service) {
	client := http.Client{Transport: &http.Transport{DialContext: attackerDialer.DialContext}}
	defer client.CloseIdleConnections()
	answers := map[int]bool{} // by status
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.http+"/v1/check", strings.NewReader(batchOfChecks()))
		require.NoError(s.t, err)
		req.Host = "evil.example"
		req.Header.Set("Origin", "http://evil.example")
		resp, err := client.Do(req)
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		answers[resp.StatusCode] = true
	}
	assert.Equal(s.t, map[int]bool{http.StatusForbidden: true}, answers)
}

// hostileRedis returns the settings for a Redis that answers each command with a text of 4 GB.
func hostileRedis(t *testing.T) []string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var goroutines sync.WaitGroup
	serve := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
		defer stop()
		command := make([]byte, 4<<10)
		n, err := conn.Read(command)
		if bytes.Contains(command[:n], []byte("hello")) { // go-redis wants a map here
			_, _ = io.WriteString(conn, "-ERR unknown command\r\n")
			_, err = conn.Read(command)
		}
		if err == nil {
			_, err = io.WriteString(conn, "$4000000000\r\n")
		}
		for piece := make([]byte, 64<<10); err == nil; {
			_, err = conn.Write(piece)
		}
	}
	goroutines.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			goroutines.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		goroutines.Wait()
	})
	return []string{"REDIS_URL=" + listener.Addr().String()}
}
