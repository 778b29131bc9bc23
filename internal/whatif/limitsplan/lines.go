package limitsplan

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const maxLineBytes = 1 << 20

// The times of calls are in this range.
var (
	firstTime = time.Unix(0, 0)
	endOfTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

type lineReader struct {
	name    string
	scanner *bufio.Scanner
	number  int // of the last line, from 1

	cutLines, firstCutLine int // how many lines have no end, and the number of the first of them
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

// nextObject decodes the next line that is not empty and not cut into v. A line is cut if its writer has ended, or is
// not done. wanted says what a line is.
func (r *lineReader) nextObject(v any, wanted string) error {
	for r.scanner.Scan() {
		r.number++
		text := bytes.TrimSpace(r.scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		err := d.Decode(v)
		if _, end := d.Token(); err == nil && !errors.Is(end, io.EOF) {
			return r.errorf("%s: the line has more than one object", wanted)
		}
		if err == nil {
			return nil
		}
		if text[0] != '{' || !errors.Is(err, io.ErrUnexpectedEOF) {
			return r.errorf("%s", wanted)
		}
		if r.cutLines++; r.cutLines == 1 {
			r.firstCutLine = r.number
		}
	}
	switch err := r.scanner.Err(); {
	case err == nil:
		return io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: line is longer than %d bytes", r.name, r.number+1, maxLineBytes)
	default:
		return fmt.Errorf("%s:%d: %w", r.name, r.number+1, err)
	}
}

// notes returns a sentence about cut lines, if there are any.
func (r *lineReader) notes() []string {
	if r.cutLines == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d lines have no end and were left out, the first is line %d", r.name, r.cutLines, r.firstCutLine)}
}

// checkTime returns an error if a call is at a time that no log has.
func (r *lineReader) checkTime(field string, t time.Time) error {
	if t.Before(firstTime) || !t.Before(endOfTime) {
		return r.errorf("field %s: got %s, want a time from 1970 to 2199", field, t.Format(time.RFC3339))
	}
	return nil
}

func (r *lineReader) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, r.number, fmt.Errorf(format, args...))
}
