package admission

import (
	"encoding/binary"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Listener returns l with the bounds on connections. Refused connections are closed.
func (g *Gate) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	gate *Gate
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.gate.admit(raw); c != nil {
			return c, nil
		}
	}
}

// Credentials returns inner with the bounds on pending bytes and frames, for connections of a Listener of a Gate.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return gatedCredentials{inner}
}

// gatedCredentials counts the frames of a connection after TLS has decrypted them.
type gatedCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (t gatedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	decrypted, info, err := t.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*conn); ok && err == nil {
		decrypted = newStreamConn(decrypted, c)
	}
	return decrypted, info, err
}

// Clone implements credentials.TransportCredentials.
func (t gatedCredentials) Clone() credentials.TransportCredentials {
	return gatedCredentials{t.TransportCredentials.Clone()}
}

// conn is an admitted connection. With TLS, its bytes are encrypted.
type conn struct {
	net.Conn
	gate    *Gate
	address string

	pendingBytes atomic.Int64 // request bytes of unanswered calls; 0 after Close
	answers      atomic.Int64 // answered calls
	closed       atomic.Bool
}

// Close implements net.Conn. Further calls return net.ErrClosed.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	err := c.Conn.Close()
	c.gate.release(c)
	c.gate.pendingBytes.Add(-c.pendingBytes.Swap(0))
	return err
}

func (c *conn) addPending(n int64) {
	c.pendingBytes.Add(n)
	if c.closed.Load() { // Close may have missed n
		n -= c.pendingBytes.Swap(0)
	}
	c.gate.addPending(n)
}

const (
	// smallRequest is the size up to which a request in one frame does not count as pending, because grpc bounds
	// the streams of a connection. Nearly all requests are small, so they take no lock and no memory here.
	smallRequest = 4 << 10

	// frameOverhead is added to each counted frame, because grpc rounds up the size of its buffer.
	frameOverhead = 4 << 10

	// rememberedStreams is the number of answered streams whose late frames are ignored.
	rememberedStreams = 16
)

// streamConn is a connection after its handshake. It follows the frames of both directions.
type streamConn struct {
	net.Conn
	admittedConn            *conn
	readFrames, writeFrames frameScanner
	frameBudget             frameBudget
	hasPending              atomic.Bool // streamBytes is not empty

	mu              sync.Mutex       // guards the fields below
	streamBytes     map[uint32]int64 // pending bytes by stream
	answeredStreams [rememberedStreams]uint32
	oldestIndex     int // index of the oldest stream in answeredStreams, which the next one replaces
}

func newStreamConn(decrypted net.Conn, admittedConn *conn) *streamConn {
	return &streamConn{
		Conn: decrypted, admittedConn: admittedConn,
		readFrames:  frameScanner{skip: len(clientPreface)},
		frameBudget: newFrameBudget(&admittedConn.gate.o, time.Now()),
		streamBytes: map[uint32]int64{},
	}
}

// clientPreface is what an HTTP/2 client sends before its first frame (RFC 9113, 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Read implements net.Conn.
func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.readFrames.scan(p[:n], c.countRequest)
	if c.admittedConn.closed.Load() {
		return 0, net.ErrClosed // grpc must not handle the bytes of a cut connection
	}
	return n, err
}

// Write implements net.Conn.
func (c *streamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.writeFrames.scan(p[:n], c.countResponse)
	return n, err
}

func (c *streamConn) countRequest(f frame) {
	frames := int64(1)
	switch f.kind {
	case frameData:
		c.add(f)
	case frameReset:
		c.remove(f.stream)
		frames = resetFrames
	}
	if a := c.admittedConn; !c.frameBudget.take(frames) && !c.frameBudget.refillAndTake(frames, a.answers.Load(), time.Now()) {
		a.gate.cut(a, Frames)
	}
}

func (c *streamConn) countResponse(f frame) {
	switch {
	case f.kind == frameHeaders && f.endStream():
		c.admittedConn.answers.Add(1)
		c.remove(f.stream)
	case f.kind == frameReset:
		c.remove(f.stream)
	}
}

// add counts the bytes of f as pending, except those of a small request or of an answered call.
func (c *streamConn) add(f frame) {
	if f.length <= smallRequest && f.endStream() && !c.hasPending.Load() {
		return
	}
	c.mu.Lock()
	bytes, known := c.streamBytes[f.stream]
	small := !known && f.length <= smallRequest && f.endStream()
	if small || slices.Contains(c.answeredStreams[:], f.stream) {
		c.mu.Unlock()
		return
	}
	n := int64(f.length) + frameOverhead
	c.streamBytes[f.stream] = bytes + n
	c.hasPending.Store(true)
	c.mu.Unlock()
	c.admittedConn.addPending(n)
}

// remove takes the bytes of a stream off the pending bytes, and remembers the stream as answered.
func (c *streamConn) remove(stream uint32) {
	if !c.hasPending.Load() {
		return
	}
	c.mu.Lock()
	bytes, known := c.streamBytes[stream]
	if known {
		delete(c.streamBytes, stream)
		c.hasPending.Store(len(c.streamBytes) > 0)
		c.answeredStreams[c.oldestIndex] = stream
		c.oldestIndex = (c.oldestIndex + 1) % len(c.answeredStreams)
	}
	c.mu.Unlock()
	if known {
		c.admittedConn.addPending(-bytes)
	}
}

// frame is the header of an HTTP/2 frame (RFC 9113, 4.1).
type frame struct {
	length int
	kind   uint8
	flags  uint8
	stream uint32
}

// The frames that a Gate counts (RFC 9113, 6).
const (
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3
)

// endStream reports whether a DATA or HEADERS frame is the last one in its direction.
func (f frame) endStream() bool { return f.flags&1 != 0 }

const frameHeaderSize = 9

// frameScanner finds the frames in one direction of a connection.
type frameScanner struct {
	skip   int // bytes up to the next frame
	header [frameHeaderSize]byte
	filled int // bytes of header
}

// scan calls found for each frame whose header ends in data.
func (s *frameScanner) scan(data []byte, found func(frame)) {
	for {
		if s.skip >= len(data) {
			s.skip -= len(data)
			return
		}
		data, s.skip = data[s.skip:], 0
		n := copy(s.header[s.filled:], data)
		data, s.filled = data[n:], s.filled+n
		if s.filled < frameHeaderSize {
			return
		}
		h := binary.BigEndian.Uint64(s.header[:])
		f := frame{
			length: int(h >> 40),
			kind:   uint8(h >> 32),
			flags:  uint8(h >> 24),
			stream: binary.BigEndian.Uint32(s.header[5:]) &^ (1 << 31),
		}
		s.filled, s.skip = 0, f.length
		found(f)
	}
}

const (
	// framesPerCall is the number of frames of a small call: HEADERS and DATA.
	framesPerCall = 2

	// resetFrames is the number of frames that RST_STREAM counts as.
	resetFrames = 4

	framesPerReset = framesPerCall + resetFrames

	// resetsPerAnswer is the number of resets that an answered call allows. Behind an Envoy, hostile clients can
	// cancel many calls on the connection of all others, whose answers keep it open.
	resetsPerAnswer = 100

	// maxSavedSeconds bounds the frames that a connection can save for later, in seconds. After a stall of rls, all
	// resets of the clients that gave up arrive at once.
	maxSavedSeconds = 30

	// firstSeconds is the time whose frames a new connection can send at once. It is short, because a hostile
	// client can open many connections.
	firstSeconds = 0.125
)

// frameBudget bounds the frames that a client sends without answers. They cost CPU time.
type frameBudget struct {
	perSecond  float64 // 0 means no bound
	callFrames float64 // frames of the calls that can be in flight
	framesLeft int64
	refilledAt time.Time
	answers    int64 // answered calls of the connection at refilledAt
}

func newFrameBudget(o *Options, now time.Time) frameBudget {
	b := frameBudget{perSecond: float64(o.MaxResets * framesPerReset), callFrames: float64(o.MaxStreams * framesPerCall), refilledAt: now}
	b.framesLeft = int64(b.perSecond*firstSeconds + b.callFrames)
	return b
}

func (b *frameBudget) take(n int64) bool {
	if b.framesLeft < n {
		return false
	}
	b.framesLeft -= n
	return true
}

// refillAndTake adds the frames for the time and the answers since the last refill, and is then take.
func (b *frameBudget) refillAndTake(n, answers int64, now time.Time) bool {
	if b.perSecond == 0 {
		b.framesLeft = math.MaxInt64
		return true
	}
	framesForTime := min(now.Sub(b.refilledAt).Seconds(), 1) * b.perSecond
	framesForAnswers := float64(answers-b.answers) * resetsPerAnswer * framesPerReset
	b.framesLeft = int64(min(framesForTime+framesForAnswers, maxSavedSeconds*b.perSecond+b.callFrames))
	b.refilledAt, b.answers = now, answers
	return b.take(n)
}
