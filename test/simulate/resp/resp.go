// Package resp reads and writes the protocol of Redis, RESP2.
package resp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Types of replies. The other replies are int64, string (a bulk string), nil, and []any with
// replies.
type (
	// Status is a reply such as OK.
	Status string

	// Failure is an error as a reply.
	Failure string
)

// errProtocol is the error of bytes that are no command.
var errProtocol = errors.New("resp: no command of the protocol RESP")

// maxArguments bounds the arguments of a command, and maxArgument the bytes of an argument.
const (
	maxArguments = 1 << 20
	maxArgument  = 512 << 20
)

// ReadCommand reads the next command of a client.
func ReadCommand(r *bufio.Reader) ([]string, error) {
	count, err := readLength(r, '*', maxArguments)
	if err != nil {
		return nil, err
	}
	args := make([]string, count)
	for i := range args {
		size, err := readLength(r, '$', maxArgument)
		if err != nil {
			return nil, unexpectedEnd(err)
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(r, text); err != nil {
			return nil, unexpectedEnd(err)
		}
		args[i] = string(text[:size])
	}
	return args, nil
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readLength reads a line with a mark and a number.
func readLength(r *bufio.Reader, mark byte, bound int) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 4 || line[0] != mark {
		return 0, fmt.Errorf("%w: got %q, want %q and a number", errProtocol, line, mark)
	}
	n, err := strconv.Atoi(line[1 : len(line)-2])
	if err != nil || n < 0 || n > bound {
		return 0, fmt.Errorf("%w: got length %q, want 0 to %d", errProtocol, line[1:len(line)-2], bound)
	}
	return n, nil
}

// AppendCommand appends the bytes of a command to b.
func AppendCommand(b []byte, args []string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// AppendReply appends the bytes of a reply to b.
func AppendReply(b []byte, reply any) []byte {
	switch r := reply.(type) {
	case nil:
		return append(b, "$-1\r\n"...)
	case int64:
		return fmt.Appendf(b, ":%d\r\n", r)
	case Status:
		return fmt.Appendf(b, "+%s\r\n", string(r))
	case Failure:
		return fmt.Appendf(b, "-%s\r\n", string(r))
	case string:
		return fmt.Appendf(b, "$%d\r\n%s\r\n", len(r), r)
	case []any:
		b = fmt.Appendf(b, "*%d\r\n", len(r))
		for _, element := range r {
			b = AppendReply(b, element)
		}
		return b
	}
	panic(fmt.Sprintf("resp: no reply is a %T", reply))
}

// Mode is the number of a mode of the model of Redis.
type Mode uint8

// The modes.
const (
	Normal   Mode = iota
	ReadOnly      // a Redis replica refuses writes
	Loading       // a Redis that reads its data refuses all commands but PING
)
