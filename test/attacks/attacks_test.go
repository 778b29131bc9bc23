//go:build attacks

package attacks

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// maxMemory is the promise of docs/lab/attacks.md for the resident memory under each attack.
const maxMemory = 200 << 20

// The other promises of docs/lab/attacks.md: the p99 of the other client, and how much more than
// without an attack it waits during large calls.
const (
	maxP99     = 100 * time.Millisecond
	maxMoreP50 = 5 * time.Millisecond
	maxMoreP99 = 50 * time.Millisecond
)

// attackTime returns the length of each attack: RLS_ATTACKS, or two seconds. checksTimes reports
// whether RLS_ATTACKS is set. Without it, other programs may slow the machine.
func attackTime(t *testing.T) (length time.Duration, checksTimes bool) {
	text := os.Getenv("RLS_ATTACKS")
	if text == "" {
		return 2 * time.Second, false
	}
	length, err := time.ParseDuration(text)
	require.NoError(t, err)
	require.Positive(t, length)
	return length, true
}

// attack is a row of the table.
type attack struct {
	name string

	// run attacks the service until ctx is done.
	run func(ctx context.Context, s *service)

	// refusalReason is the reason of the refused connections, or empty if the attack is legal.
	refusalReason string

	// wantLog is a regular expression that the log must match. It can be empty.
	wantLog string

	isLargeCalls bool

	// settings returns further settings of the service. It can be nil.
	settings func(*testing.T) []string

	// prepare runs before the attack. It can be nil.
	prepare func(*service)

	// calls names the calls of the other client, in otherCalls.
	calls string

	stopsService bool // so that the other client has to wait
	breaksRedis  bool
}

var allAttacks = []attack{
	{name: "none"},
	{name: "300 half-sent messages of 4 MB on each of 3 connections", run: halfSent(3, 300, 4<<20)},
	{name: "300 half-sent messages of 1 MB on each of 3 connections", run: halfSent(3, 300, 1<<20)},
	{name: "6,000 half-sent messages of 50 KB on each of 3 connections", run: halfSent(3, 6000, 50_000), refusalReason: "pending_bytes"},
	{name: "half-sent messages in frames of one byte on 20 connections", run: oneByteFrames(20), refusalReason: "peer_cuts"},
	{name: "150 unfinished posts of 4 MB to /json", run: unfinishedPosts(150, 4<<20)},
	{name: "150 unfinished posts of 1 MiB to /json", run: unfinishedPosts(150, 1<<20)},
	{name: "500 unfinished posts of 100 KB to /json", run: unfinishedPosts(500, 100_000)},
	{name: "10,000 idle connections", run: idleConnections(10_000), refusalReason: "peer_connections"},
	{name: "calls that are reset at once on 8 connections", run: resets(8), refusalReason: "frames"},
	{name: "4 calls of 4,000 descriptors in flight from each of 4 clients", run: largeCalls(4, 4, 4000, 1, "k"), isLargeCalls: true},
	{name: "4 calls of 256 descriptors in flight from each of 4 clients", run: largeCalls(4, 4, 256, 1, "k"), isLargeCalls: true},
	{name: "4 calls of 1,024 descriptors in flight from each of 4 clients", run: largeCalls(4, 4, 1024, 1, "k")},
	{name: "4 calls of 1,024 descriptors with 50 entries each in flight from each of 4 clients", run: largeCalls(4, 4, 1024, 50, "other")},
	{name: "4 calls of 1,024 descriptors with 256 empty entries each in flight from each of 4 clients", run: largeCalls(4, 4, 1024, 256, "")},
}

func TestServiceSurvivesAttacks(t *testing.T) {
	length, checksTimes := attackTime(t)
	program := build(t)
	var p50Alone, p99Alone time.Duration // of the first attack, which is none
	for _, attack := range allAttacks {
		t.Run(attack.name, func(t *testing.T) {
			var settings []string
			if attack.settings != nil {
				settings = attack.settings(t)
			}
			service := startService(t, program, settings...)
			if attack.prepare != nil {
				attack.prepare(service)
			}
			answers := service.attackFor(length, attack)
			refusedCounts := service.refusedConnections()
			table.rows = append(table.rows, answers.row(attack.name, service.peakMemory(), refusedCounts))
			p50, p99 := answers.quantile(0.5), answers.quantile(0.99)
			assert.Empty(t, answers.Errors, "the other client gets all answers")
			assert.LessOrEqual(t, service.peakMemory(), int64(maxMemory))
			if attack.run == nil {
				p50Alone, p99Alone = p50, p99
			}
			if checksTimes && !attack.stopsService {
				assert.Less(t, p99, maxP99)
			}
			if checksTimes && attack.isLargeCalls {
				assert.LessOrEqual(t, p50, p50Alone+maxMoreP50)
				assert.LessOrEqual(t, p99, p99Alone+maxMoreP99)
			}
			if attack.refusalReason != "" {
				assert.Contains(t, strings.Join(refusedCounts, " "), attack.refusalReason)
			} else {
				assert.NotContains(t, strings.Join(refusedCounts, " "), "connections")
			}
			assert.NotContains(t, service.log(), "panic")
			assert.Regexp(t, attack.wantLog, service.log())
			if !attack.breaksRedis {
				assert.NotContains(t, service.log(), "outage")
			}
		})
	}
}

// table has the rows that TestMain prints, and fileTable those of hostile files and xDS responses.
var table, fileTable struct{ rows []string }

func TestMain(m *testing.M) {
	if calls, addr, ok := strings.Cut(os.Getenv(otherClientEnv), "@"); ok {
		runOtherClient(otherCalls[calls](addr))
		return
	}
	code := m.Run()
	if len(table.rows) > 0 {
		fmt.Println("\n| attack | peak memory, MiB | other client p50, ms | p99, ms | failed | refused connections |\n|---|---|---|---|---|---|")
		fmt.Println(strings.Join(table.rows, "\n"))
	}
	if len(fileTable.rows) > 0 {
		fmt.Println("\n| limits | peak memory, MiB | CPU time, s | result |\n|---|---|---|---|")
		fmt.Println(strings.Join(fileTable.rows, "\n"))
	}
	os.Exit(code)
}

// attackFor attacks the service for this time, and returns the answers to the other client.
func (s *service) attackFor(length time.Duration, a attack) answers {
	addr := s.grpc
	if s.envoy.addr != "" {
		addr = s.envoy.addr
	}
	client := startOtherClient(s.t, a.calls, addr)
	ctx, cancel := context.WithTimeout(s.t.Context(), length)
	defer cancel()
	var attacker sync.WaitGroup
	client.begin()
	if a.run != nil {
		attacker.Go(func() { a.run(ctx, s) })
	}
	<-ctx.Done()
	answers := client.end()
	attacker.Wait()
	return answers
}

// client returns a client of the service that connects with dialer.
func (s *service) client(dialer net.Dialer) (_ rlsv3.RateLimitServiceClient, closeClient func()) {
	return newClient(s.grpc, dialer)
}

// newClient returns a client of the service at addr that connects with dialer.
func newClient(addr string, dialer net.Dialer) (_ rlsv3.RateLimitServiceClient, closeClient func()) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		panic(err) // addr is no address
	}
	return rlsv3.NewRateLimitServiceClient(conn), func() { _ = conn.Close() }
}

// request returns a request of n descriptors.
func request(value string, n int) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: "d"}
	for i := range n {
		r.Descriptors = append(r.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: fmt.Sprint(value, i)}},
		})
	}
	return r
}

// attackerDialer dials from an address of the attackers, as another machine would.
var attackerDialer = net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}

// frameConn is an HTTP/2 connection that sends what a grpc client would not.
type frameConn struct {
	*http2.Framer
	conn    net.Conn
	headers bytes.Buffer
	encoder *hpack.Encoder
	stream  uint32
}

// dialFrames connects to addr and discards what the service sends.
func dialFrames(ctx context.Context, addr string) (*frameConn, error) {
	conn, err := attackerDialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	f := &frameConn{Framer: http2.NewFramer(conn, nil), conn: conn, stream: 1}
	f.encoder = hpack.NewEncoder(&f.headers)
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = f.WriteSettings()
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	return f, err
}

// open starts a call of ShouldRateLimit.
func (f *frameConn) open() (stream uint32, err error) {
	return f.startCall("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
}

// startCall starts a call.
func (f *frameConn) startCall(path string) (stream uint32, err error) {
	f.headers.Reset()
	for _, h := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", path},
		{":authority", "x"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	stream = f.stream
	f.stream += 2
	return stream, f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.headers.Bytes(), EndHeaders: true})
}

// messagePrefix announces a message of size bytes.
func messagePrefix(size int) []byte {
	return binary.BigEndian.AppendUint32([]byte{0}, uint32(size))
}

// onConnections runs f on n connections, and on a new one after each error, until ctx is done.
func onConnections(ctx context.Context, n int, addr string, f func(*frameConn) error) {
	var goroutines sync.WaitGroup
	for range n {
		goroutines.Go(func() {
			for ctx.Err() == nil {
				c, err := dialFrames(ctx, addr)
				for err == nil && ctx.Err() == nil {
					err = f(c)
				}
				if c != nil {
					_ = c.conn.Close()
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	goroutines.Wait()
}

// halfSent sends all but the last byte of messages, and then holds them.
func halfSent(conns, messages, size int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		onConnections(ctx, conns, s.grpc, func(conn *frameConn) error {
			for range messages {
				stream, err := conn.open()
				data := append(messagePrefix(size), make([]byte, size-1)...)
				for chunk := range slices.Chunk(data, 16<<10) {
					if err == nil {
						err = conn.WriteData(stream, false, chunk)
					}
				}
				if err != nil {
					return err
				}
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}
}

// oneByteFrames sends messages byte by byte.
func oneByteFrames(conns int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		onConnections(ctx, conns, s.grpc, func(conn *frameConn) error {
			stream, err := conn.open()
			if err == nil {
				err = conn.WriteData(stream, false, messagePrefix(100_000))
			}
			for range 50_000 {
				if err == nil {
					err = conn.WriteData(stream, false, []byte{0})
				}
			}
			return err
		})
	}
}

// unfinishedPosts sends all but the last byte of bodies to /json.
func unfinishedPosts(posts, size int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		var goroutines sync.WaitGroup
		body := make([]byte, size-1)
		for range posts {
			goroutines.Go(func() {
				for ctx.Err() == nil {
					conn, err := attackerDialer.DialContext(ctx, "tcp", s.http)
					if err != nil {
						return
					}
					stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
					_, _ = fmt.Fprintf(conn, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
					_, _ = conn.Write(body)
					_, _ = io.Copy(io.Discard, conn)
					stop()
					_ = conn.Close()
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		goroutines.Wait()
	}
}

// idleConnections opens connections and holds those that the service admits.
func idleConnections(n int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		for range n {
			if _, err := dialFrames(ctx, s.grpc); err != nil {
				return
			}
		}
		<-ctx.Done()
	}
}

// resets opens calls and resets each at once.
func resets(conns int) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		onConnections(ctx, conns, s.grpc, func(conn *frameConn) error {
			stream, err := conn.open()
			if err == nil {
				err = conn.WriteRSTStream(stream, http2.ErrCodeCancel)
			}
			return err
		})
	}
}

// largeCalls sends calls of n descriptors from clients, each with some calls in flight. A descriptor has as many
// entries with the key. With an empty key, the entries have no value.
func largeCalls(clients, inFlight, n, entries int, key string) func(context.Context, *service) {
	return func(ctx context.Context, s *service) {
		var goroutines sync.WaitGroup
		var answeredCalls, rejectedCalls atomic.Int64
		for c := range clients {
			client, closeClient := s.client(attackerDialer)
			defer closeClient()
			for i := range inFlight {
				req := request(fmt.Sprint(c, i), n)
				for _, d := range req.Descriptors {
					d.Entries[0].Key = key
					if key == "" {
						d.Entries[0].Value = ""
					}
					d.Entries = slices.Repeat(d.Entries, entries)
				}
				goroutines.Go(func() {
					for ctx.Err() == nil {
						_, err := client.ShouldRateLimit(ctx, req)
						switch status.Code(err) {
						case codes.OK:
							answeredCalls.Add(1)
						case codes.InvalidArgument:
							rejectedCalls.Add(1)
						}
					}
				})
			}
		}
		goroutines.Wait()
		s.t.Logf("%d large calls answered, %d rejected", answeredCalls.Load(), rejectedCalls.Load())
	}
}

// refusedConnections returns the counts of refused connections by reason.
func (s *service) refusedConnections() (counts []string) {
	resp, err := http.Get("http://" + s.debug + "/metrics")
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	for line := range strings.Lines(string(body)) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if rest, ok := strings.CutPrefix(name, "rls_connections_refused_total{"); ok && count != "0" {
			_, reason, _ := strings.Cut(rest, `reason="`)
			counts = append(counts, count+" "+strings.Trim(reason, `"`))
		}
	}
	return counts
}
