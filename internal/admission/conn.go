package admission

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"

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

// Credentials returns inner with the bounds on pending bytes and resets. The connections
// must come from a Listener of a Gate.
func Credentials(inner credentials.TransportCredentials) credentials.TransportCredentials {
	return gatedCredentials{inner}
}

// gatedCredentials reads frames behind the handshake, where they are plain text.
type gatedCredentials struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (t gatedCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	plain, info, err := t.TransportCredentials.ServerHandshake(raw)
	if c, ok := raw.(*conn); ok && err == nil {
		plain = newStreamConn(plain, c)
	}
	return plain, info, err
}

// ClientHandshake implements credentials.TransportCredentials.
func (t gatedCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return t.TransportCredentials.ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (t gatedCredentials) Clone() credentials.TransportCredentials {
	return gatedCredentials{t.TransportCredentials.Clone()}
}

// conn is an admitted connection, as it is on the wire.
type conn struct {
	net.Conn
	gate    *Gate
	address string
	peer    *peer

	pendingBytes atomic.Int64 // of streams; 0 after Close
	closing      sync.Once
	closed       atomic.Bool
}

// Close implements net.Conn. Further calls return net.ErrClosed.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.closing.Do(func() {
		c.closed.Store(true)
		err = c.Conn.Close()
		c.gate.release(c)
		c.gate.addPending(-c.pendingBytes.Swap(0))
	})
	return err
}

// addPending adds n pending bytes.
func (c *conn) addPending(n int64) {
	c.pendingBytes.Add(n)
	if c.closed.Load() { // Close may have missed n
		n -= c.pendingBytes.Swap(0)
	}
	c.gate.addPending(n)
}

const (
	// smallRequest is the size up to which a whole request does not count as pending. grpc
	// bounds such requests by the streams of a connection. Nearly all requests are small, so
	// they take no lock and no memory here.
	smallRequest = 4 << 10

	// frameOverhead is added to each counted frame, because grpc rounds the size of its buffer
	// up. It also makes tiny frames expensive for their sender.
	frameOverhead = 4 << 10

	// rememberedStreams is the number of answered streams whose late frames are ignored.
	rememberedStreams = 16
)

// streamConn is a connection after its handshake. It follows the frames of both directions.
type streamConn struct {
	net.Conn
	outer    *conn
	in, out  frameScanner
	counting atomic.Bool // pending is not empty

	mu       sync.Mutex       // guards the fields below
	pending  map[uint32]int64 // bytes by stream
	answered [rememberedStreams]uint32
	next     int // place in answered
}

func newStreamConn(plain net.Conn, outer *conn) *streamConn {
	return &streamConn{Conn: plain, outer: outer, in: frameScanner{skip: len(clientPreface)}, pending: map[uint32]int64{}}
}

// clientPreface is what an HTTP/2 client sends before its first frame (RFC 9113, 3.4).
const clientPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Read implements net.Conn.
func (c *streamConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.in.scan(p[:n], c.received)
	if c.outer.closed.Load() {
		return 0, net.ErrClosed // grpc need not handle what led to the cut
	}
	return n, err
}

// Write implements net.Conn.
func (c *streamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.out.scan(p[:n], c.sent)
	return n, err
}

// received counts a frame of the client.
func (c *streamConn) received(f frame) {
	switch f.kind {
	case frameData:
		if f.length <= smallRequest && f.endStream() && !c.counting.Load() {
			return
		}
		c.add(f)
	case frameReset:
		c.remove(f.stream)
		c.outer.gate.addReset(c.outer)
	}
}

// sent ends the stream of a frame that is the last one of its stream.
func (c *streamConn) sent(f frame) {
	switch {
	case f.kind == frameHeaders && f.endStream():
		c.outer.peer.answered.Add(1)
		c.remove(f.stream)
	case f.kind == frameReset:
		c.remove(f.stream)
	}
}

// add counts the bytes of f as pending.
func (c *streamConn) add(f frame) {
	c.mu.Lock()
	bytes, known := c.pending[f.stream]
	small := !known && f.length <= smallRequest && f.endStream()
	if small || slices.Contains(c.answered[:], f.stream) {
		c.mu.Unlock()
		return
	}
	n := int64(f.length) + frameOverhead
	c.pending[f.stream] = bytes + n
	c.counting.Store(true)
	c.mu.Unlock()
	c.outer.addPending(n)
}

// remove forgets the bytes of a stream.
func (c *streamConn) remove(stream uint32) {
	if !c.counting.Load() {
		return
	}
	c.mu.Lock()
	bytes, known := c.pending[stream]
	if known {
		delete(c.pending, stream)
		c.counting.Store(len(c.pending) > 0)
		c.answered[c.next] = stream
		c.next = (c.next + 1) % len(c.answered)
	}
	c.mu.Unlock()
	if known {
		c.outer.addPending(-bytes)
	}
}
