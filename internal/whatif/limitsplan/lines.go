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

var (
	minTime = time.Unix(0, 0)
	maxTime = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

type lineReader struct {
	name       string
	scanner    *bufio.Scanner
	lineNumber int // the number of the last line, from 1

	cutLines, firstCutLine int // the number of lines without an end, and the line number of the first such line
}

func newLineReader(name string, r io.Reader) (*lineReader, error) {
	bufferedLog := bufio.NewReaderSize(r, 1<<16)
	var text io.Reader = bufferedLog
	const gzipMark = "\x1f\x8b" // the first bytes of a gzip file
	if firstBytes, _ := bufferedLog.Peek(len(gzipMark)); string(firstBytes) == gzipMark {
		gzipReader, err := gzip.NewReader(bufferedLog)
		if err != nil {
			return nil, fmt.Errorf("%s: not a whole gzip file: %w", name, err)
		}
		text = gzipReader
	}
	scanner := bufio.NewScanner(text)
	scanner.Buffer(make([]byte, 1<<16), maxLineBytes)
	return &lineReader{name: name, scanner: scanner}, nil
}

// nextObject decodes the next line into v. It skips empty lines, and lines without an end, because the writer of the log
// can crash or be writing a line. The error of a line that does not fit v begins with expectation.
func (r *lineReader) nextObject(v any, expectation string) error {
	for r.scanner.Scan() {
		r.lineNumber++
		text := bytes.TrimSpace(r.scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		err := decoder.Decode(v)
		if _, endErr := decoder.Token(); err == nil && !errors.Is(endErr, io.EOF) {
			return r.errorf("%s: the line has more than one object", expectation)
		}
		if err == nil {
			return nil
		}
		if text[0] != '{' || !errors.Is(err, io.ErrUnexpectedEOF) {
			return r.errorf("%s", expectation)
		}
		if r.cutLines++; r.cutLines == 1 {
			r.firstCutLine = r.lineNumber
		}
	}
	switch err := r.scanner.Err(); {
	case err == nil:
		return io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: line is longer than %d bytes", r.name, r.lineNumber+1, maxLineBytes)
	default:
		return fmt.Errorf("%s:%d: %w", r.name, r.lineNumber+1, err)
	}
}

func (r *lineReader) notes() []string {
	if r.cutLines == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d lines have no end and were left out, the first is line %d", r.name, r.cutLines, r.firstCutLine)}
}

func (r *lineReader) checkTime(field string, t time.Time) error {
	if t.Before(minTime) || !t.Before(maxTime) {
		return r.errorf("field %s: got %s, want a time from 1970 to 2199", field, t.Format(time.RFC3339))
	}
	return nil
}

func (r *lineReader) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", r.name, r.lineNumber, fmt.Errorf(format, args...))
}
