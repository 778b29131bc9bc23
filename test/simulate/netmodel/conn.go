package netmodel

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// errReset is the error of a connection that the network or the other end has broken.
var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

// Conn is one end of a connection. Both ends are a Conn.
type Conn struct {
	in, out *stream
	link    *Link
	isEnded func() // called by Close
}

var _ net.Conn = (*Conn)(nil)

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) { return c.in.read(b) }

// Write implements net.Conn. It never waits, as the buffers of the network have no bound.
func (c *Conn) Write(b []byte) (int, error) { return c.WriteAt(b, time.Now()) }

// WriteAt is a Write at a time, which may be a little in the past. So a server answers in time
// even if the simulated machines get no CPU time.
func (c *Conn) WriteAt(b []byte, at time.Time) (int, error) {
	if err := c.out.write(b, at); err != nil {
		return 0, err
	}
	return len(b), nil
}

// ArrivalTime returns when the last bytes that were read have arrived.
func (c *Conn) ArrivalTime() time.Time { return c.in.arrivalTime() }

// Close ends the connection. The other end still reads the bytes that were written, then EOF.
func (c *Conn) Close() error {
	c.out.end(io.EOF)
	c.in.reset(net.ErrClosed)
	c.isEnded()
	return nil
}

// reset breaks the connection. Bytes that neither end has read are lost.
func (c *Conn) reset() {
	c.in.reset(errReset)
	c.out.reset(errReset)
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn. It does nothing, as Write never waits.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr(c.link.name) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.link.name) }

// addr is the name of a link as an address.
type addr string

func (a addr) Network() string { return "simulated" }
func (a addr) String() string  { return string(a) }

// IsEnd reports whether err is the regular or the forced end of a connection.
func IsEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}
