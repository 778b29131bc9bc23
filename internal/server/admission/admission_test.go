package admission

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials/insecure"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// appendFrame appends a frame with a payload of zeros.
func appendFrame(b []byte, f frame) []byte {
	b = append(b, byte(f.length>>16), byte(f.length>>8), byte(f.length), f.kind, f.flags)
	b = binary.BigEndian.AppendUint32(b, f.streamID)
	return append(b, make([]byte, f.length)...)
}

func TestScannerFindsFramesInAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) frame {
			return frame{
				length:   rapid.IntRange(0, 300).Draw(t, "length"),
				kind:     rapid.Uint8Range(0, 9).Draw(t, "kind"),
				flags:    rapid.Uint8().Draw(t, "flags"),
				streamID: rapid.Uint32Range(0, 1<<31-1).Draw(t, "stream"),
			}
		}), 0, 10).Draw(t, "frames")
		data := []byte(clientPreface)
		for _, f := range frames {
			data = appendFrame(data, f)
		}
		s := frameScanner{skipBytes: len(clientPreface)}
		var scannedFrames []frame
		for len(data) > 0 {
			n := rapid.IntRange(1, len(data)).Draw(t, "piece")
			s.scan(data[:n], func(f frame) { scannedFrames = append(scannedFrames, f) }, func([]byte) {})
			data = data[n:]
		}
		assert.Equal(t, len(frames), len(scannedFrames))
		for i := range scannedFrames {
			assert.Equal(t, frames[i], scannedFrames[i])
		}
	})
}

func FuzzScanner(f *testing.F) {
	f.Add(appendFrame([]byte(clientPreface), frame{length: 3, kind: frameData, streamID: 1}))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := frameScanner{}
		bytes := 0
		s.scan(data, func(f frame) { bytes += frameHeaderSize + f.length }, func([]byte) {})
		assert.Equal(t, len(data), bytes-s.skipBytes+s.headerBytes, "each byte belongs to one frame")
	})
}

// gateFixture is a Gate with clients over pipes.
type gateFixture struct {
	t       *testing.T
	gate    *Gate
	reasons []Reason
	log     bytes.Buffer
}

func newGateFixture(t *testing.T, o Options) *gateFixture {
	f := &gateFixture{t: t}
	o.OnRefusal = func(r Reason) { f.reasons = append(f.reasons, r) }
	o.Log = slog.New(slog.NewTextHandler(&f.log, nil))
	f.gate = New(o)
	return f
}

// addressConn is a connection from an IP address.
type addressConn struct {
	net.Conn
	ip          string
	beforeClose func() // may be nil
}

func (c addressConn) Close() error {
	if c.beforeClose != nil {
		c.beforeClose()
	}
	return c.Conn.Close()
}

func (c addressConn) RemoteAddr() net.Addr {
	if c.ip == "" {
		return &net.UnixAddr{}
	}
	return &net.TCPAddr{IP: net.ParseIP(c.ip)}
}

// client is a client with its connection. server is the other side of the connection, which grpc would read.
type client struct {
	net.Conn
	server net.Conn
}

// connect returns a client of ip, or nil if the gate refuses it.
func (f *gateFixture) connect(ip string) *client { return f.connectBeforeClose(ip, nil) }

// connectBeforeClose is connect with a function that runs just before the gate closes the connection.
func (f *gateFixture) connectBeforeClose(ip string, beforeClose func()) *client {
	f.t.Helper()
	clientSide, serverSide := net.Pipe()
	f.t.Cleanup(func() { _ = clientSide.Close(); _ = serverSide.Close() })
	c := f.gate.admit(addressConn{serverSide, ip, beforeClose})
	if c == nil {
		return nil
	}
	server, _, err := Credentials(insecure.NewCredentials()).ServerHandshake(c)
	require.NoError(f.t, err)
	_, err = (&client{clientSide, server}).exchange([]byte(clientPreface))
	require.NoError(f.t, err)
	return &client{clientSide, server}
}

// exchange writes data, and reads data on the side of the server.
func (c *client) exchange(data []byte) (int, error) {
	go func() { _, _ = c.Write(data) }()
	return io.ReadFull(c.server, make([]byte, len(data)))
}

// send writes frames, and reads the frames on the side of the server.
func (c *client) send(frames ...frame) error {
	var data []byte
	for _, f := range frames {
		data = appendFrame(data, f)
	}
	_, err := c.exchange(data)
	return err
}

// answer sends the answer of a stream to the client.
func (c *client) answer(stream uint32) {
	data := appendFrame(nil, frame{length: 5, kind: frameHeaders, flags: 5, streamID: stream})
	go func() { _, _ = io.ReadFull(c, make([]byte, len(data))) }()
	_, _ = c.server.Write(data)
}

func TestConnectionsAreBounded(t *testing.T) {
	fixture := newGateFixture(t, Options{MaxConnections: 5, MaxPeerConnections: 2})
	firstClient := fixture.connect("10.0.0.1")
	require.NotNil(t, fixture.connect("10.0.0.1"))
	assert.Nil(t, fixture.connect("10.0.0.1"), "the third connection of its address")
	require.NotNil(t, fixture.connect("10.0.0.2"))
	require.NotNil(t, fixture.connect(""))
	require.NotNil(t, fixture.connect(""))
	assert.Nil(t, fixture.connect("10.0.0.3"), "the sixth connection of all addresses")
	assert.Equal(t, []Reason{ReasonPeerConnections, ReasonConnections}, fixture.reasons)
	assert.Equal(t, 5, fixture.gate.Connections())

	require.NoError(t, firstClient.server.Close())
	assert.Error(t, firstClient.server.Close())
	assert.NotNil(t, fixture.connect("10.0.0.1"), "a closed connection makes room")
}

func TestConnectionWithMostPendingBytesIsCut(t *testing.T) {
	fixture := newGateFixture(t, Options{MaxPendingBytes: 50_000})
	attackerClient, otherClient := fixture.connect("10.0.0.1"), fixture.connect("10.0.0.2")
	require.NoError(t, otherClient.send(frame{length: 1000, kind: frameData, streamID: 1}))
	for stream := range uint32(2) {
		require.NoError(t, attackerClient.send(frame{length: 16_000, kind: frameData, streamID: 1 + 2*stream}))
	}
	assert.Empty(t, fixture.reasons)
	_ = attackerClient.send(frame{length: 16_000, kind: frameData, streamID: 5})
	assert.Equal(t, []Reason{ReasonPendingBytes}, fixture.reasons)
	assert.EqualValues(t, 1000+frameOverhead, fixture.gate.PendingBytes(), "the bytes of the other client")
	require.NoError(t, otherClient.send(frame{length: 1000, kind: frameData, streamID: 3}))
	assert.Equal(t, 1, fixture.gate.Connections())
}

func TestConnectionsSendWhileAnotherIsCut(t *testing.T) {
	const maxPending = 50_000
	fixture := newGateFixture(t, Options{MaxPendingBytes: maxPending})
	thirdClient := fixture.connect("10.0.0.3")
	thirdErr := make(chan error)
	var attackerClient *client
	attackerClient = fixture.connectBeforeClose("10.0.0.1", func() {
		attackerClient.server.(*streamConn).countRequest(frame{length: 1, kind: frameData, streamID: 3})
		go func() { thirdErr <- thirdClient.send(frame{length: 60_000, kind: frameData, streamID: 1}) }()
		polltest.Until(t, 10*time.Second, func() bool { return fixture.gate.PendingBytes() > maxPending })
	})
	require.NoError(t, attackerClient.send(frame{length: 40_000, kind: frameData, streamID: 1}))
	sendErr := make(chan error)
	go func() {
		sendErr <- fixture.connect("10.0.0.2").send(frame{length: 20_000, kind: frameData, streamID: 1})
	}()
	for _, conn := range []struct {
		sendErr <-chan error
		isCut   bool
	}{{sendErr, false}, {thirdErr, true}} {
		select {
		case err := <-conn.sendErr:
			assert.Equal(t, conn.isCut, err != nil)
		case <-time.After(10 * time.Second):
			require.Fail(t, "a connection waits forever")
		}
	}
	assert.Equal(t, []Reason{ReasonPendingBytes, ReasonPendingBytes}, fixture.reasons)
	assert.EqualValues(t, 20_000+frameOverhead, fixture.gate.PendingBytes())
}

func TestAnsweredAndResetStreamsAreNotPending(t *testing.T) {
	resets := 0
	fixture := newGateFixture(t, Options{MaxPendingBytes: 1 << 20, OnReset: func() { resets++ }})
	client := fixture.connect("10.0.0.1")
	require.NoError(t, client.send(frame{length: 9000, kind: frameData, streamID: 1}, frame{length: 9000, kind: frameData, streamID: 3}))
	assert.EqualValues(t, 2*(9000+frameOverhead), fixture.gate.PendingBytes())
	client.answer(1)
	assert.EqualValues(t, 9000+frameOverhead, fixture.gate.PendingBytes())
	require.NoError(t, client.send(frame{length: 9000, kind: frameData, streamID: 1}))
	assert.EqualValues(t, 9000+frameOverhead, fixture.gate.PendingBytes(), "a late frame of an answered stream")
	assert.Zero(t, resets)
	require.NoError(t, client.send(frame{length: 4, kind: frameReset, streamID: 3}))
	assert.Zero(t, fixture.gate.PendingBytes())
	assert.Equal(t, 1, resets)
	require.NoError(t, client.send(frame{length: 4, kind: frameReset, streamID: 1}))
	assert.Equal(t, 2, resets, "a caller that gave up before the answer arrived")
}

func TestSmallWholeRequestsAreNotPending(t *testing.T) {
	fixture := newGateFixture(t, Options{MaxPendingBytes: 1})
	client := fixture.connect("10.0.0.1")
	for stream := range uint32(100) {
		require.NoError(t, client.send(frame{length: maxSmallRequest, kind: frameData, flags: 1, streamID: stream}))
	}
	assert.Zero(t, fixture.gate.PendingBytes())
	assert.Empty(t, fixture.reasons)
}

// maxResetsOfTests is the bound on resets in tests. It allows 1,500 frames in a second.
const maxResetsOfTests = 250

var resetFrame = frame{length: 4, kind: frameReset, streamID: 1}

// sendEvenly sends n frames in a second of the fake clock, and returns the first error.
func (c *client) sendEvenly(n int, f frame) error {
	for range n / 10 {
		if err := c.send(slices.Repeat([]frame{f}, 10)...); err != nil {
			return err
		}
		time.Sleep(time.Second * 10 / time.Duration(n))
	}
	return nil
}

func TestFloodOfFramesCutsItsConnectionOnly(t *testing.T) {
	for name, flood := range map[string]frame{
		"resets":                        resetFrame,
		"pings":                         {length: 8, kind: 6},
		"settings":                      {length: 6, kind: 4},
		"window updates":                {length: 4, kind: 8},
		"continuations":                 {kind: 9, streamID: 1},
		"headers":                       {kind: frameHeaders, streamID: 1},
		"priorities":                    {length: 5, kind: 2, streamID: 1},
		"frames of an unknown kind":     {kind: 99},
		"ends of streams without calls": {kind: frameData, flags: 1, streamID: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fixture := newGateFixture(t, Options{MaxResets: maxResetsOfTests})
				attackerClient, innocentClient := fixture.connect("10.0.0.1"), fixture.connect("10.0.0.1")
				for range 5 {
					require.NoError(t, attackerClient.sendEvenly(300, flood))
				}
				assert.Empty(t, fixture.reasons, "fewer frames than the bound")
				require.NoError(t, innocentClient.send(resetFrame))
				assert.Error(t, attackerClient.sendEvenly(10_000, flood))
				assert.Equal(t, []Reason{ReasonFrames}, fixture.reasons)
				require.NoError(t, innocentClient.send(resetFrame), "the connections of an address have bounds of their own")
			})
		})
	}
}

func TestFramesOfAnsweredStreamCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxResets: maxResetsOfTests})
		client := fixture.connect("10.0.0.1")
		lateFrame := frame{length: 1, kind: frameData, streamID: 1}
		require.NoError(t, client.send(lateFrame))
		client.answer(1)
		require.NoError(t, client.sendEvenly(900, lateFrame))
		assert.Error(t, client.sendEvenly(10_000, lateFrame))
		assert.Equal(t, []Reason{ReasonFrames}, fixture.reasons)
	})
}

// The frames of a reset call are not pending, so only the bound on frames applies to them.
func TestDataOfResetCallsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxResets: maxResetsOfTests, MaxPendingBytes: 1 << 30})
		client := fixture.connect("10.0.0.1")
		stream := uint32(1)
		sendCall := func() error {
			frames := slices.Repeat([]frame{{length: 1, kind: frameData, streamID: stream}}, 96)
			frames = append(frames, frame{length: 4, kind: frameReset, streamID: stream})
			stream += 2
			return client.send(frames...)
		}
		for range 14 {
			require.NoError(t, sendCall())
			time.Sleep(time.Second / 15)
		}
		assert.NoError(t, sendCall())
		assert.Error(t, errors.Join(sendCall(), sendCall()), "more frames than the bound")
		assert.Equal(t, []Reason{ReasonFrames}, fixture.reasons)
	})
}

func TestAnsweredCallsAllowResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxResets: maxResetsOfTests})
		envoy := fixture.connect("10.0.0.1")
		for range 20 {
			for range 10 {
				envoy.answer(3)
			}
			require.NoError(t, envoy.sendEvenly(1500, resetFrame))
		}
		assert.Empty(t, fixture.reasons)
	})
}

// TestResetsAfterStallAreNoFlood sends the calls of a second, in which the server stalls, and the resets of these
// calls at once.
func TestResetsAfterStallAreNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxResets: maxResetsOfTests})
		client := fixture.connect("10.0.0.1")
		call := []frame{{kind: frameHeaders, streamID: 1}, {length: 9, kind: frameData, flags: 1, streamID: 1}}
		for range 2 {
			for range 2000 {
				require.NoError(t, client.send(call...))
				client.answer(1)
			}
			time.Sleep(time.Second)
			for range 2000 {
				require.NoError(t, client.send(append(call, resetFrame)...))
			}
		}
		assert.Empty(t, fixture.reasons)
	})
}

func TestNewConnectionCanHaveAllItsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxResets: 1, MaxStreams: 1024})
		client := fixture.connect("10.0.0.1")
		for range 3 {
			for range 1024 {
				require.NoError(t, client.send(frame{kind: frameHeaders, streamID: 1}, frame{length: 9, kind: frameData, flags: 1, streamID: 1}))
			}
			for range 1024 {
				client.answer(1)
			}
		}
		assert.Empty(t, fixture.reasons)
		for range 400 {
			_ = client.send(resetFrame)
		}
		assert.Empty(t, fixture.reasons, "the answers saved frames for the resets")
		assert.Error(t, client.send(slices.Repeat([]frame{resetFrame}, 3000)...))
	})
}

func TestZeroMaxResetsAllowsAnyNumberOfResets(t *testing.T) {
	fixture := newGateFixture(t, Options{})
	client := fixture.connect("10.0.0.1")
	require.NoError(t, client.send(slices.Repeat([]frame{resetFrame}, 100_000)...))
	assert.Empty(t, fixture.reasons)
}

func TestAddressWithManyCutConnectionsWaitsForNextSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxPendingBytes: 10_000})
		openClient := fixture.connect("10.0.0.1")
		for range maxPeerCuts + 1 {
			_ = fixture.connect("10.0.0.1").send(frame{length: 16_000, kind: frameData, streamID: 1})
		}
		assert.Nil(t, fixture.connect("10.0.0.1"))
		assert.Equal(t, ReasonPeerCuts, fixture.reasons[len(fixture.reasons)-1])
		assert.NotNil(t, fixture.connect("10.0.0.2"))
		assert.NotNil(t, fixture.connect(""), "unix sockets have no address")
		require.NoError(t, openClient.send(frame{length: 100, kind: frameData, streamID: 1}), "open connections go on")
		time.Sleep(time.Second)
		assert.NotNil(t, fixture.connect("10.0.0.1"))
	})
}

func TestAddressThatGetsAnswersCanConnectAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{MaxPendingBytes: 10_000})
		innocentClient := fixture.connect("10.0.0.1")
		for range maxPeerCuts + 1 {
			_ = fixture.connect("10.0.0.1").send(frame{length: 16_000, kind: frameData, streamID: 1})
		}
		assert.Nil(t, fixture.connect("10.0.0.1"), "no connection has got an answer")
		innocentClient.answer(1)
		assert.NotNil(t, fixture.connect("10.0.0.1"))
		require.NoError(t, innocentClient.server.Close())
		assert.Nil(t, fixture.connect("10.0.0.1"), "the answered connection is closed")
	})
}

func TestRefusalsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fixture := newGateFixture(t, Options{Listener: "grpc", MaxPeerConnections: 1})
		fixture.connect("10.0.0.1")
		for range 30 {
			fixture.connect("10.0.0.1")
			time.Sleep(10 * time.Second)
		}
		lines := strings.Split(strings.TrimSpace(fixture.log.String()), "\n")
		assert.Len(t, lines, 5)
		assert.Contains(t, lines[1], `level=WARN msg="connections refused" reason=peer_connections count=6 listener=grpc last_address=10.0.0.1`)
		assert.Len(t, fixture.reasons, 30)
	})
}

func TestEveryReasonHasAName(t *testing.T) {
	for _, r := range Reasons {
		assert.NotEmpty(t, fmt.Sprint(r))
	}
}

func BenchmarkSmallRequest(b *testing.B) {
	var data []byte
	data = appendFrame(data, frame{length: 60, kind: frameHeaders, flags: 4, streamID: 1})
	data = appendFrame(data, frame{length: 120, kind: frameData, flags: 1, streamID: 1})
	answer := appendFrame(nil, frame{length: 20, kind: frameHeaders, flags: 5, streamID: 1})
	c := newStreamConn(nil, &conn{gate: New(Options{MaxResets: 1000})})
	c.readFrames.skipBytes = 0
	b.ReportAllocs()
	for b.Loop() {
		c.readFrames.scan(data, c.countRequest, c.scanMessages)
		c.writeFrames.scan(answer, c.countResponse, nil)
	}
}
