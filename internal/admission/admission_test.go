package admission

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	"pgregory.net/rapid"
)

// appendFrame appends a frame with a payload of zeros.
func appendFrame(b []byte, f frame) []byte {
	b = append(b, byte(f.length>>16), byte(f.length>>8), byte(f.length), f.kind, f.flags)
	b = binary.BigEndian.AppendUint32(b, f.stream)
	return append(b, make([]byte, f.length)...)
}

func TestScannerFindsFramesInAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) frame {
			return frame{
				length: rapid.IntRange(0, 300).Draw(t, "length"),
				kind:   rapid.Uint8Range(0, 9).Draw(t, "kind"),
				flags:  rapid.Uint8().Draw(t, "flags"),
				stream: rapid.Uint32Range(0, 1<<31-1).Draw(t, "stream"),
			}
		}), 0, 10).Draw(t, "frames")
		data := []byte(clientPreface)
		for _, f := range frames {
			data = appendFrame(data, f)
		}
		s := frameScanner{skip: len(clientPreface)}
		var found []frame
		for len(data) > 0 {
			n := rapid.IntRange(1, len(data)).Draw(t, "piece")
			s.scan(data[:n], func(f frame) { found = append(found, f) })
			data = data[n:]
		}
		assert.Equal(t, len(frames), len(found))
		for i := range found {
			assert.Equal(t, frames[i], found[i])
		}
	})
}

func FuzzScanner(f *testing.F) {
	f.Add(appendFrame([]byte(clientPreface), frame{length: 3, kind: frameData, stream: 1}))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := frameScanner{}
		bytes := 0
		s.scan(data, func(f frame) { bytes += frameHeaderSize + f.length })
		assert.Equal(t, len(data), bytes-s.skip+s.filled, "each byte belongs to one frame")
	})
}

// gateFixture is a Gate with clients over pipes.
type gateFixture struct {
	t       *testing.T
	gate    *Gate
	refused []Reason
	log     bytes.Buffer
}

func newGateFixture(t *testing.T, o Options) *gateFixture {
	f := &gateFixture{t: t}
	o.Refused = func(r Reason) { f.refused = append(f.refused, r) }
	o.Log = slog.New(slog.NewTextHandler(&f.log, nil))
	f.gate = New(o)
	return f
}

// addressConn is a connection from an IP address.
type addressConn struct {
	net.Conn
	ip string
}

func (c addressConn) RemoteAddr() net.Addr {
	if c.ip == "" {
		return &net.UnixAddr{}
	}
	return &net.TCPAddr{IP: net.ParseIP(c.ip)}
}

// client is one side of a connection. The server side is what grpc would use.
type client struct {
	net.Conn
	server net.Conn
}

// connect returns a client of ip, or nil if the gate refuses it.
func (f *gateFixture) connect(ip string) *client {
	f.t.Helper()
	near, far := net.Pipe()
	f.t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	c := f.gate.admit(addressConn{far, ip})
	if c == nil {
		return nil
	}
	plain, _, err := Credentials(insecure.NewCredentials()).ServerHandshake(c)
	require.NoError(f.t, err)
	_, err = (&client{near, plain}).exchange([]byte(clientPreface))
	require.NoError(f.t, err)
	return &client{near, plain}
}

// exchange lets the server read data.
func (c *client) exchange(data []byte) (int, error) {
	go func() { _, _ = c.Write(data) }()
	return io.ReadFull(c.server, make([]byte, len(data)))
}

// send lets the server read frames.
func (c *client) send(frames ...frame) error {
	var data []byte
	for _, f := range frames {
		data = appendFrame(data, f)
	}
	_, err := c.exchange(data)
	return err
}

// answer ends a stream.
func (c *client) answer(stream uint32) {
	data := appendFrame(nil, frame{length: 5, kind: frameHeaders, flags: 5, stream: stream})
	go func() { _, _ = io.ReadFull(c, make([]byte, len(data))) }()
	_, _ = c.server.Write(data)
}

func TestConnectionsAreBounded(t *testing.T) {
	f := newGateFixture(t, Options{MaxConnections: 5, MaxPeerConnections: 2})
	first := f.connect("10.0.0.1")
	require.NotNil(t, f.connect("10.0.0.1"))
	assert.Nil(t, f.connect("10.0.0.1"), "third of its address")
	require.NotNil(t, f.connect("10.0.0.2"))
	require.NotNil(t, f.connect(""))
	require.NotNil(t, f.connect(""))
	assert.Nil(t, f.connect("10.0.0.3"), "sixth in all")
	assert.Equal(t, []Reason{PeerConnections, Connections}, f.refused)
	assert.Equal(t, 5, f.gate.Connections())

	require.NoError(t, first.server.Close())
	assert.Error(t, first.server.Close())
	assert.NotNil(t, f.connect("10.0.0.1"), "a closed connection makes room")
}

func TestConnectionWithMostPendingBytesIsCut(t *testing.T) {
	f := newGateFixture(t, Options{MaxPendingBytes: 50_000})
	attacker, other := f.connect("10.0.0.1"), f.connect("10.0.0.2")
	require.NoError(t, other.send(frame{length: 1000, kind: frameData, stream: 1}))
	for stream := range uint32(2) {
		require.NoError(t, attacker.send(frame{length: 16_000, kind: frameData, stream: 1 + 2*stream}))
	}
	assert.Empty(t, f.refused)
	_ = attacker.send(frame{length: 16_000, kind: frameData, stream: 5})
	assert.Equal(t, []Reason{PendingBytes}, f.refused)
	assert.EqualValues(t, 1000+frameOverhead, f.gate.PendingBytes(), "the other client's bytes are left")
	require.NoError(t, other.send(frame{length: 1000, kind: frameData, stream: 3}))
	assert.Equal(t, 1, f.gate.Connections())
}

func TestAnsweredAndResetStreamsAreNotPending(t *testing.T) {
	f := newGateFixture(t, Options{MaxPendingBytes: 1 << 20})
	c := f.connect("10.0.0.1")
	require.NoError(t, c.send(frame{length: 9000, kind: frameData, stream: 1}, frame{length: 9000, kind: frameData, stream: 3}))
	assert.EqualValues(t, 2*(9000+frameOverhead), f.gate.PendingBytes())
	c.answer(1)
	assert.EqualValues(t, 9000+frameOverhead, f.gate.PendingBytes())
	require.NoError(t, c.send(frame{length: 9000, kind: frameData, stream: 1}))
	assert.EqualValues(t, 9000+frameOverhead, f.gate.PendingBytes(), "a late frame of an answered stream")
	require.NoError(t, c.send(frame{length: 4, kind: frameReset, stream: 3}))
	assert.Zero(t, f.gate.PendingBytes())
}

func TestSmallWholeRequestsAreNotPending(t *testing.T) {
	f := newGateFixture(t, Options{MaxPendingBytes: 1})
	c := f.connect("10.0.0.1")
	for stream := range uint32(100) {
		require.NoError(t, c.send(frame{length: smallRequest, kind: frameData, flags: 1, stream: stream}))
	}
	assert.Zero(t, f.gate.PendingBytes())
	assert.Empty(t, f.refused)
}

func TestPeerThatResetsIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGateFixture(t, Options{MaxPeerResets: 10})
		attacker, second, other := f.connect("10.0.0.1"), f.connect("10.0.0.1"), f.connect("10.0.0.2")
		reset := frame{length: 4, kind: frameReset, stream: 1}
		for range 3 {
			for range 10 {
				require.NoError(t, attacker.send(reset))
			}
			time.Sleep(time.Second)
		}
		assert.Empty(t, f.refused, "ten a second are admitted")
		for range 9 {
			require.NoError(t, attacker.send(reset))
		}
		require.NoError(t, second.send(reset))
		_ = attacker.send(reset)
		assert.Equal(t, []Reason{PeerResets}, f.refused)
		_ = second.send(reset)
		assert.Equal(t, []Reason{PeerResets, PeerResets}, f.refused, "the connections of an address share the bound")
		require.NoError(t, other.send(reset))
	})
}

func TestPeerWithMostlyAnsweredCallsIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGateFixture(t, Options{MaxPeerResets: 10})
		c := f.connect("10.0.0.1")
		for range 100 {
			require.NoError(t, c.send(frame{length: 4, kind: frameReset, stream: 1}))
			c.answer(3)
			c.answer(5)
		}
		assert.Empty(t, f.refused)
	})
}

func TestAddressWithManyCutConnectionsWaitsForNextSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGateFixture(t, Options{MaxPendingBytes: 10_000})
		open := f.connect("10.0.0.1")
		for range maxPeerCuts + 1 {
			_ = f.connect("10.0.0.1").send(frame{length: 16_000, kind: frameData, stream: 1})
		}
		assert.Nil(t, f.connect("10.0.0.1"))
		assert.Equal(t, PeerCuts, f.refused[len(f.refused)-1])
		assert.NotNil(t, f.connect("10.0.0.2"))
		assert.NotNil(t, f.connect(""), "unix sockets have no address")
		require.NoError(t, open.send(frame{length: 100, kind: frameData, stream: 1}), "open connections go on")
		time.Sleep(time.Second)
		assert.NotNil(t, f.connect("10.0.0.1"))
	})
}

func TestRefusalsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newGateFixture(t, Options{Listener: "grpc", MaxPeerConnections: 1})
		f.connect("10.0.0.1")
		for range 30 {
			f.connect("10.0.0.1")
			time.Sleep(10 * time.Second)
		}
		lines := strings.Split(strings.TrimSpace(f.log.String()), "\n")
		assert.Len(t, lines, 5)
		assert.Contains(t, lines[1], `level=WARN msg="connections refused" reason=peer_connections count=6 listener=grpc last_address=10.0.0.1`)
		assert.Len(t, f.refused, 30)
	})
}

func TestEveryReasonHasAName(t *testing.T) {
	for _, r := range Reasons {
		assert.NotEmpty(t, fmt.Sprint(r))
	}
}

func BenchmarkSmallRequest(b *testing.B) {
	var data []byte
	data = appendFrame(data, frame{length: 60, kind: frameHeaders, flags: 4, stream: 1})
	data = appendFrame(data, frame{length: 120, kind: frameData, flags: 1, stream: 1})
	answer := appendFrame(nil, frame{length: 20, kind: frameHeaders, flags: 5, stream: 1})
	c := newStreamConn(nil, &conn{gate: New(Options{}), peer: &peer{}})
	c.readFrames.skip = 0
	b.ReportAllocs()
	for b.Loop() {
		c.readFrames.scan(data, c.countRequest)
		c.writeFrames.scan(answer, c.countResponse)
	}
}
