package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"
)

// The bounds on a reply. go-redis allocates the memory of a text or an array before the content arrives, and reads an
// array in an array by recursion. So without bounds, a wrong reply could take all memory.
const (
	maxReplyText     = 4 << 20  // bytes in a text
	maxReplyLine     = 64 << 10 // bytes of a line, such as an error
	maxReplyElements = 1 << 20  // elements of a reply that have not arrived yet
	maxReplyArrays   = 1 << 17  // arrays in a reply
)

// errMaxClients is the answer of a Redis that has as many connections as it may have. Redis closes the connection.
var errMaxClients = errors.New("max number of clients reached")

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// boundReplies returns a function that opens connections with dial. These connections bound the replies.
func boundReplies(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &replyConn{Conn: conn}
		if socket, ok := conn.(syscall.Conn); ok {
			return socketReplyConn{c, socket}, nil
		}
		return c, nil
	}
}

func defaultDial(o *goredis.UniversalOptions) dialFunc {
	return goredis.NewDialer(&goredis.Options{DialTimeout: o.DialTimeout, TLSConfig: o.TLSConfig})
}

// replyConn is a connection to Redis. A read fails if a reply exceeds a bound.
type replyConn struct {
	net.Conn
	scanner replyScanner
}

// socketReplyConn is a replyConn on a socket. go-redis uses the socket to check an idle connection.
type socketReplyConn struct {
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

// The kinds of lines. The first byte of a line is its kind. Some kinds are of RESP 3, which sentinels use.
const (
	lineKinds  = "+-:_,#(" // the value is on the line
	textKinds  = "$!="     // the line has the length of the text that follows
	arrayKinds = "*~>"     // the line has the number of elements that follow
	mapKinds   = "%|"      // the line has the number of pairs that follow
)

// replyScanner follows the replies of a connection (https://redis.io/docs/latest/develop/reference/protocol-spec).
// The zero value expects a reply.
type replyScanner struct {
	line          []byte // the start of a line, until the end of the line arrives
	textBytesLeft int    // bytes of the text that have not arrived
	elementsLeft  int64  // elements of the reply that have not arrived
	arrays        int64  // arrays of the reply that have begun
	err           error
}

// scan reads the next bytes of the connection. After an error, each call returns the error.
func (s *replyScanner) scan(data []byte) error {
	for len(data) > 0 && s.err == nil {
		if s.textBytesLeft > 0 {
			n := min(s.textBytesLeft, len(data))
			data, s.textBytesLeft = data[n:], s.textBytesLeft-n
			continue
		}
		part, nextLines, hasEnd := bytes.Cut(data, []byte("\n"))
		switch {
		case len(s.line)+len(part) > maxReplyLine:
			s.err = fmt.Errorf("%w: got a line of more than %d bytes", errBadReply, maxReplyLine)
		case !hasEnd:
			s.line = append(s.line, part...)
		case len(s.line) == 0:
			s.err = s.scanLine(part)
		default:
			s.err = s.scanLine(append(s.line, part...))
			s.line = s.line[:0]
		}
		data = nextLines
	}
	return s.err
}

func (s *replyScanner) scanLine(line []byte) error {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if bytes.HasPrefix(line, []byte("-ERR max number of clients")) {
		return errMaxClients // go-redis would take the reply for a Redis without HELLO, and go on
	}
	isOneOf := func(kinds string) bool { return len(line) > 0 && strings.IndexByte(kinds, line[0]) >= 0 }
	if !isOneOf(lineKinds + textKinds + arrayKinds + mapKinds) {
		return fmt.Errorf("%w: got a line that begins with %.1q", errBadReply, line)
	}
	if s.elementsLeft == 0 { // a new reply begins
		s.elementsLeft, s.arrays = 1, 0
	}
	s.elementsLeft--
	if isOneOf(lineKinds) {
		return nil
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || line[1] == '+' {
		return fmt.Errorf("%w: got the length %.20q, want a number", errBadReply, line[1:])
	}
	n = min(n, math.MaxInt32) // MaxInt32 exceeds each bound
	switch {
	case n < 0: // -1 stands for a missing value
		return nil
	case isOneOf(mapKinds):
		s.elementsLeft, s.arrays = s.elementsLeft+2*n, s.arrays+1
	case isOneOf(arrayKinds):
		s.elementsLeft, s.arrays = s.elementsLeft+n, s.arrays+1
	default:
		s.textBytesLeft = int(n) + 2 // the text ends with CR and LF
	}
	switch {
	case s.textBytesLeft > maxReplyText+2:
		return fmt.Errorf("%w: got a text of more than %d bytes", errBadReply, maxReplyText)
	case s.elementsLeft > maxReplyElements:
		return fmt.Errorf("%w: got an array of more than %d elements", errBadReply, maxReplyElements)
	case s.arrays > maxReplyArrays:
		return fmt.Errorf("%w: got more than %d arrays", errBadReply, maxReplyArrays)
	}
	return nil
}
