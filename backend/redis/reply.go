package redis

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"
)

// The bounds on a reply. go-redis allocates memory for a text or an array as soon as it has read the length,
// before the content arrives. So without bounds, a wrong length could take all memory.
const (
	maxReplyText     = 4 << 20  // bytes of a text
	maxReplyLine     = 64 << 10 // bytes of a line, such as an error
	maxReplyElements = 1 << 20  // elements of all arrays that have begun, without those that have arrived
	maxReplyDepth    = 32       // depth of arrays in arrays
)

// The first bytes of lines, by what follows the byte.
const (
	lineKinds  = "+-:_,#(" // the rest of the line, and nothing after the line
	textKinds  = "$!="     // the length of a text; the text follows the line
	arrayKinds = "*~>"     // the number of elements; they follow the line
	mapKinds   = "%|"      // the number of pairs of elements; they follow the line
)

func isOneOf(kind byte, kinds string) bool { return strings.IndexByte(kinds, kind) >= 0 }

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// boundReplies returns a function that dials with dial. Its connections bound the replies.
func boundReplies(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &replyConn{Conn: raw}
		if system, ok := raw.(syscall.Conn); ok {
			return systemReplyConn{c, system}, nil
		}
		return c, nil
	}
}

// defaultDial returns the dial function of go-redis.
func defaultDial(o *goredis.UniversalOptions) dialFunc {
	return goredis.NewDialer(&goredis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
}

// replyConn is a connection whose reads fail if a reply exceeds a bound.
type replyConn struct {
	net.Conn
	scanner replyScanner
}

// systemReplyConn is a replyConn on a socket. go-redis uses the socket to check an idle connection.
type systemReplyConn struct {
	*replyConn
	syscall.Conn
}

// Read implements net.Conn.
func (c *replyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if scanErr := c.scanner.scan(p[:n]); scanErr != nil {
		return 0, scanErr
	}
	return n, err
}

// replyScanner follows the replies of a connection (https://redis.io/docs/latest/develop/reference/protocol-spec).
// The zero value expects a reply.
type replyScanner struct {
	kind          byte    // first byte of the line that is being read, or 0 between lines
	length        int64   // length in the line; -1 means that there is no text or array
	lineBytes     int     // bytes of the line so far
	textBytesLeft int64   // bytes of the text that have not arrived
	elementsLeft  []int64 // for each array that has begun, the elements that have not arrived
	allElements   int64   // sum of elementsLeft
	err           error
}

// scan reads the next bytes of the connection. After an error, each call returns the error.
func (s *replyScanner) scan(data []byte) error {
	for len(data) > 0 && s.err == nil {
		switch {
		case s.textBytesLeft > 0:
			n := min(s.textBytesLeft, int64(len(data)))
			data, s.textBytesLeft = data[n:], s.textBytesLeft-n
			if s.textBytesLeft == 0 {
				s.endElement()
			}
		case s.kind == 0:
			if s.kind = data[0]; !isOneOf(s.kind, lineKinds+textKinds+arrayKinds+mapKinds) {
				s.err = fmt.Errorf("%w: got a line that begins with %q", errReply, s.kind)
			}
			s.length, s.lineBytes, data = 0, 0, data[1:]
		default:
			end := bytes.IndexByte(data, '\n') + 1
			if end == 0 {
				s.scanLine(data)
				return s.err
			}
			s.scanLine(data[:end])
			data = data[end:]
			if s.err == nil {
				s.endLine()
			}
		}
	}
	return s.err
}

// scanLine reads a part of a line.
func (s *replyScanner) scanLine(part []byte) {
	if s.lineBytes += len(part); s.lineBytes > maxReplyLine {
		s.err = fmt.Errorf("%w: got a line of more than %d bytes", errReply, maxReplyLine)
		return
	}
	if isOneOf(s.kind, lineKinds) {
		return
	}
	for _, c := range part {
		switch {
		case c >= '0' && c <= '9' && s.length >= 0 && s.length <= maxReplyText:
			s.length = 10*s.length + int64(c-'0')
		case c >= '0' && c <= '9': // the length is -1, or already too large
		case c == '-' && s.length == 0:
			s.length = -1
		case c != '\r' && c != '\n':
			s.err = fmt.Errorf("%w: got a length with %q, want a number", errReply, c)
			return
		}
	}
}

// endLine handles the end of a line.
func (s *replyScanner) endLine() {
	kind, n := s.kind, s.length
	s.kind = 0
	switch {
	case isOneOf(kind, arrayKinds):
		s.startArray(n)
	case isOneOf(kind, mapKinds):
		s.startArray(2 * n)
	case isOneOf(kind, lineKinds), n < 0:
		s.endElement()
	case n > maxReplyText:
		s.err = fmt.Errorf("%w: got a text of more than %d bytes", errReply, maxReplyText)
	default:
		s.textBytesLeft = n + 2 // the text ends with CR and LF
	}
}

// startArray starts an array of n elements.
func (s *replyScanner) startArray(n int64) {
	if n <= 0 {
		s.endElement()
		return
	}
	if s.allElements += n; s.allElements > maxReplyElements {
		s.err = fmt.Errorf("%w: got an array of more than %d elements", errReply, maxReplyElements)
		return
	}
	if len(s.elementsLeft) == maxReplyDepth {
		s.err = fmt.Errorf("%w: got more than %d arrays in arrays", errReply, maxReplyDepth)
		return
	}
	s.elementsLeft = append(s.elementsLeft, n)
}

// endElement ends an element, and each array whose last element it was.
func (s *replyScanner) endElement() {
	for last := len(s.elementsLeft) - 1; last >= 0; last-- {
		s.elementsLeft[last]--
		s.allElements--
		if s.elementsLeft[last] > 0 {
			return
		}
		s.elementsLeft = s.elementsLeft[:last]
	}
}
