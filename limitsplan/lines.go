package limitsplan

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// maxLineBytes bounds a line of a log.
const maxLineBytes = 1 << 20

// lineReader reads the lines of a log.
type lineReader struct {
	name    string
	scanner *bufio.Scanner
	number  int // of the last line, from 1
}

// newLineReader returns a reader of a log, which may be compressed by gzip.
func newLineReader(name string, r io.Reader) (*lineReader, error) {
	buffered := bufio.NewReaderSize(r, 1<<16)
	var plain io.Reader = buffered
	if magic, _ := buffered.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, fmt.Errorf("%s: not a whole gzip file: %w", name, err)
		}
		plain = unzipped
	}
	s := bufio.NewScanner(plain)
	s.Buffer(make([]byte, 1<<16), maxLineBytes)
	return &lineReader{name: name, scanner: s}, nil
}

// next returns the next line that is not empty. It is valid until the following call.
func (r *lineReader) next() ([]byte, error) {
	for r.scanner.Scan() {
		r.number++
		if line := r.scanner.Bytes(); len(line) > 0 {
			return line, nil
		}
	}
	switch err := r.scanner.Err(); {
	case err == nil:
		return nil, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: line is longer than %d bytes", r.name, r.number+1, maxLineBytes)
	default:
		return nil, fmt.Errorf("%s:%d: %w", r.name, r.number+1, err)
	}
}

// errorf returns an error about the last line.
func (r *lineReader) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, r.number, fmt.Errorf(format, args...))
}
