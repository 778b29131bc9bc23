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

// Listener returns a listener that accepts the connections of l within the bounds of the Gate.
func (g *Gate) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	gate *Gate
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		rawConn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.gate.admit(rawConn); c != nil {
			return c, nil
		}
	}
}

// Credentials returns inner with the bounds on pending bytes and frames. The bounds apply to the connections of
// Gate.Listener.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return gatedCredentials{inner}
}

// gatedCredentials counts the frames of a connection after TLS has decrypted them.
type gatedCredentials struct {
	credentials.TransportCredentials
}

func (t gatedCredentials) ServerHandshake(rawConn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	decryptedConn, info, err := t.TransportCredentials.ServerHandshake(rawConn)
	if c, ok := rawConn.(*conn); ok && err == nil {
		decryptedConn = newStreamConn(decryptedConn, c)
	}
	return decryptedConn, info, err
}

func (t gatedCredentials) Clone() credentials.TransportCredentials {
	return gatedCredentials{t.TransportCredentials.Clone()}
}

// conn is an admitted connection. With TLS, Read and Write handle encrypted bytes.
type conn struct {
	net.Conn
	gate    *Gate
	address string

	pendingBytes atomic.Int64 // request bytes of unanswered calls; 0 after Close
	answers      atomic.Int64 // the number of answered calls
	isClosed     atomic.Bool
}

// Close implements net.Conn. Further calls return net.ErrClosed.
func (c *conn) Close() error {
	if c.isClosed.Swap(true) {
		return net.ErrClosed
	}
	err := c.Conn.Close()
	c.gate.release(c)
	c.gate.pendingBytes.Add(-c.pendingBytes.Swap(0))
	return err
}

func (c *conn) addPendingBytes(n int64) {
	c.pendingBytes.Add(n)
	if c.isClosed.Load() { // Close may have run before n was added
		n -= c.pendingBytes.Swap(0)
	}
	c.gate.addPendingBytes(n)
}

const (
	// maxSmallRequest is the size of the largest small request. A small request in one frame does not count as pending,
	// because grpc bounds the streams of a connection. So nearly all requests need no lock and no memory of this package.
	maxSmallRequest = 4 << 10

	// frameOverhead is the number of bytes to add for each counted frame, because grpc rounds up the size of a buffer.
	frameOverhead = 4 << 10

	// maxAnsweredStreams is the number of answered streams that a streamConn remembers, to ignore their late frames.
	maxAnsweredStreams = 16
)

// streamConn is a connection after the handshake. It counts the frames of both directions.
type streamConn struct {
	net.Conn
	admittedConn            *conn
	readFrames, writeFrames frameScanner
	frameBudget             frameBudget
	hasStreams              atomic.Bool // streams is not empty

	dataStream *pendingStream // gets the content of the frame that arrives; nil if nobody needs the content

	mu              sync.Mutex // guards the fields below, and the pendingStreams
	streams         map[uint32]*pendingStream
	answeredStreams [maxAnsweredStreams]uint32
	oldestIndex     int // the index in answeredStreams of the oldest stream, which the next answered stream replaces
}

func newStreamConn(decryptedConn net.Conn, admittedConn *conn) *streamConn {
	return &streamConn{
		Conn: decryptedConn, admittedConn: admittedConn,
		readFrames:  frameScanner{skipBytes: len(clientPreface)},
		frameBudget: newFrameBudget(&admittedConn.gate.options, time.Now()),
		streams:     map[uint32]*pendingStream{},
	}
}

// clientPreface is the text that an HTTP/2 client sends before the first frame (RFC 9113, 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.readFrames.scan(p[:n], c.countRequest, c.scanMessages)
	if c.admittedConn.isClosed.Load() {
		return 0, net.ErrClosed // grpc must not handle the bytes of a cut connection
	}
	return n, err
}

func (c *streamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.writeFrames.scan(p[:n], c.countResponse, nil)
	return n, err
}

func (c *streamConn) countRequest(f frame) {
	frames := int64(1)
	c.dataStream = nil
	switch f.kind {
	case frameData:
		c.addFrame(f)
	case frameReset:
		c.removeStream(f.streamID)
		frames = resetFrames
		c.admittedConn.gate.options.OnReset()
	}
	admittedConn := c.admittedConn
	if !c.frameBudget.take(frames) && !c.frameBudget.refillAndTake(frames, admittedConn.answers.Load(), time.Now()) {
		admittedConn.gate.cut(admittedConn, ReasonFrames)
	}
}

func (c *streamConn) countResponse(f frame) {
	switch {
	case f.kind == frameHeaders && f.endsStream():
		c.admittedConn.answers.Add(1)
		c.removeStream(f.streamID)
	case f.kind == frameReset:
		c.removeStream(f.streamID)
	case f.kind == frameData:
		c.subtractMessages(f.streamID)
	}
}

// addFrame counts the bytes of f as pending, unless f is a small request or belongs to an answered call.
func (c *streamConn) addFrame(f frame) {
	if f.length <= maxSmallRequest && f.endsStream() && !c.hasStreams.Load() {
		return
	}
	c.mu.Lock()
	stream := c.streams[f.streamID]
	isSmallRequest := stream == nil && f.length <= maxSmallRequest && f.endsStream()
	if isSmallRequest || slices.Contains(c.answeredStreams[:], f.streamID) {
		c.mu.Unlock()
		return
	}
	if stream == nil {
		stream = &pendingStream{}
		c.streams[f.streamID] = stream
		c.hasStreams.Store(true)
	}
	n := int64(f.length) + frameOverhead
	stream.beginFrame(f)
	c.dataStream = stream
	c.mu.Unlock()
	c.admittedConn.addPendingBytes(n)
}

func (c *streamConn) scanMessages(data []byte) {
	if c.dataStream != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dataStream.scan(data)
	}
}

// subtractMessages subtracts the complete messages of a stream from the pending bytes, because rls has sent a part of the
// answer.
func (c *streamConn) subtractMessages(streamID uint32) {
	if !c.hasStreams.Load() {
		return
	}
	c.mu.Lock()
	stream, releasedBytes := c.streams[streamID], int64(0)
	if stream != nil {
		releasedBytes = stream.bytes - stream.partialBytes
		stream.bytes = stream.partialBytes
	}
	c.mu.Unlock()
	c.admittedConn.addPendingBytes(-releasedBytes)
}

func (c *streamConn) removeStream(streamID uint32) {
	if !c.hasStreams.Load() {
		return
	}
	c.mu.Lock()
	stream := c.streams[streamID]
	bytes := int64(0)
	if stream != nil {
		bytes = stream.bytes
		delete(c.streams, streamID)
		c.hasStreams.Store(len(c.streams) > 0)
		c.answeredStreams[c.oldestIndex] = streamID
		c.oldestIndex = (c.oldestIndex + 1) % len(c.answeredStreams)
	}
	c.mu.Unlock()
	if stream != nil {
		c.admittedConn.addPendingBytes(-bytes)
	}
}

// pendingStream has the pending bytes of a call that has not ended. A call can have many messages, each with an answer.
// So pendingStream finds the ends of the messages.
type pendingStream struct {
	bytes            int64 // all pending bytes
	partialBytes     int64 // the pending bytes of the message that is not complete
	frameBytesLeft   int64 // the bytes of the frame that have not arrived
	messageBytesLeft int64 // the bytes of the message that have not arrived; 0 before the message has begun
	prefix           [messagePrefixSize]byte
	prefixBytes      int  // the number of bytes in prefix
	isPadded         bool // a frame was padded, so the ends of the messages are unknown
}

// messagePrefixSize is the size of a message's prefix in gRPC: a byte for the compression, and the size of the message.
const messagePrefixSize = 5

func (s *pendingStream) beginFrame(f frame) {
	n := int64(f.length) + frameOverhead
	s.bytes += n
	s.partialBytes += n
	s.frameBytesLeft = int64(f.length)
	s.isPadded = s.isPadded || f.flags&paddedFlag != 0
}

// scan finds the ends of messages in data, which is a part of a frame.
func (s *pendingStream) scan(data []byte) {
	for len(data) > 0 && !s.isPadded {
		var n int
		if s.messageBytesLeft > 0 {
			n = int(min(s.messageBytesLeft, int64(len(data))))
			s.messageBytesLeft -= int64(n)
		} else {
			n = copy(s.prefix[s.prefixBytes:], data)
			if s.prefixBytes += n; s.prefixBytes == messagePrefixSize {
				s.messageBytesLeft, s.prefixBytes = int64(binary.BigEndian.Uint32(s.prefix[1:])), 0
			}
		}
		data, s.frameBytesLeft = data[n:], s.frameBytesLeft-int64(n)
		if s.messageBytesLeft == 0 && s.prefixBytes == 0 {
			s.partialBytes = 0
			if s.frameBytesLeft > 0 {
				s.partialBytes = s.frameBytesLeft + frameOverhead
			}
		}
	}
}

// frame is the header of an HTTP/2 frame (RFC 9113, 4.1).
type frame struct {
	length   int
	kind     uint8
	flags    uint8
	streamID uint32
}

// The frames that a Gate counts (RFC 9113, 6).
const (
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3

	paddedFlag = 8 // a DATA frame with this flag has padding after its content
)

// endsStream reports whether a DATA or HEADERS frame is the last frame of its stream in this direction.
func (f frame) endsStream() bool { return f.flags&1 != 0 }

const frameHeaderSize = 9

type frameScanner struct {
	skipBytes   int // the number of bytes before the next frame
	header      [frameHeaderSize]byte
	headerBytes int // the number of bytes in header
}

// scan calls handleFrame for each frame whose header ends in data. Then it calls handleContent with the bytes of the frame
// that are in data.
func (s *frameScanner) scan(data []byte, handleFrame func(frame), handleContent func([]byte)) {
	for {
		n := min(s.skipBytes, len(data))
		if n > 0 && handleContent != nil {
			handleContent(data[:n])
		}
		data, s.skipBytes = data[n:], s.skipBytes-n
		if len(data) == 0 {
			return
		}
		n = copy(s.header[s.headerBytes:], data)
		data, s.headerBytes = data[n:], s.headerBytes+n
		if s.headerBytes < frameHeaderSize {
			return
		}
		h := binary.BigEndian.Uint64(s.header[:]) // 24 bits of length, 8 bits of kind, 8 bits of flags, and a part of the stream
		f := frame{
			length:   int(h >> 40),
			kind:     uint8(h >> 32),
			flags:    uint8(h >> 24),
			streamID: binary.BigEndian.Uint32(s.header[5:]) &^ (1 << 31),
		}
		s.headerBytes, s.skipBytes = 0, f.length
		handleFrame(f)
	}
}

const (
	// framesPerCall is the number of frames of a small call: HEADERS and DATA.
	framesPerCall = 2

	// An RST_STREAM frame counts as resetFrames frames.
	resetFrames = 4

	// framesPerReset is the cost of a small call that the client resets.
	framesPerReset = framesPerCall + resetFrames

	// resetsPerAnswer is the number of resets that an answered call allows. An Envoy sends the calls of all its clients on
	// one connection. If hostile clients cancel many calls, the answers to other clients keep the connection open.
	resetsPerAnswer = 100

	// maxSavedSeconds bounds the unused frames that a connection keeps: at most the frames of 30 seconds. After a stall of
	// rls, the connection needs these frames, because many clients have given up, and all their resets arrive at once.
	maxSavedSeconds = 30

	// initialSeconds bounds the frames that a new connection can send at once: the frames of an eighth of a second.
	// initialSeconds is small, because a hostile client can open many connections.
	initialSeconds = 0.125
)

// frameBudget bounds the frames that a client sends without an answer, because each frame costs CPU time.
type frameBudget struct {
	framesPerSecond float64 // the frames that the budget gets in each second; 0 means no bound
	callFrames      float64 // the frames of all calls that can be in flight
	framesLeft      int64   // the frames that the client can send before the next refill
	refilledAt      time.Time
	answersAtRefill int64 // the number of answered calls of the connection at refilledAt
}

func newFrameBudget(o *Options, now time.Time) frameBudget {
	b := frameBudget{framesPerSecond: float64(o.MaxResets * framesPerReset), callFrames: float64(o.MaxStreams * framesPerCall), refilledAt: now}
	b.framesLeft = int64(b.framesPerSecond*initialSeconds + b.callFrames)
	return b
}

func (b *frameBudget) take(n int64) bool {
	if b.framesLeft < n {
		return false
	}
	b.framesLeft -= n
	return true
}

func (b *frameBudget) refillAndTake(n, answers int64, now time.Time) bool {
	if b.framesPerSecond == 0 {
		b.framesLeft = math.MaxInt64
		return true
	}
	framesForTime := min(now.Sub(b.refilledAt).Seconds(), 1) * b.framesPerSecond
	framesForAnswers := float64(answers-b.answersAtRefill) * resetsPerAnswer * framesPerReset
	b.framesLeft = int64(min(framesForTime+framesForAnswers, maxSavedSeconds*b.framesPerSecond+b.callFrames))
	b.refilledAt, b.answersAtRefill = now, answers
	return b.take(n)
}
