package limitsplan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// accessReader is a Reader of an access log with a JSON object on each line.
type accessReader struct {
	lines   *lineReader
	mapping *Mapping
	calls   sorter[*Call]
	unused  uint64 // lines without a descriptor
}

func newAccessReader(lines *lineReader, m *Mapping) *accessReader {
	a := &accessReader{lines: lines, mapping: m}
	a.calls.next = a.readCall
	return a
}

// Notes implements Reader.
func (a *accessReader) Notes() []string {
	if a.unused == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %d of %d lines have no field of a descriptor and were left out", a.lines.name, a.unused, a.lines.number)}
}

// Next implements Reader.
func (a *accessReader) Next() (*Call, error) {
	c, err := a.calls.pop()
	return c.value, err
}

// readCall returns the call of the next line that has a descriptor.
func (a *accessReader) readCall() (timed[*Call], error) {
	for {
		text, err := a.lines.next()
		if err != nil {
			return timed[*Call]{}, err
		}
		c, err := a.newCall(text)
		if err != nil {
			return timed[*Call]{}, err
		}
		if len(c.Request.Descriptors) > 0 {
			return timed[*Call]{c.Time, a.lines.number, c}, nil
		}
		a.unused++
	}
}

// newCall returns the call that a line describes.
func (a *accessReader) newCall(text []byte) (*Call, error) {
	var line map[string]any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&line); err != nil {
		return nil, a.lines.errorf("got no JSON object: %w", err)
	}
	m := a.mapping
	c := &Call{Request: &rlsv3.RateLimitRequest{Domain: m.Domain}}
	start, _ := fieldText(line, m.Time)
	var ok bool
	if c.Time, ok = parseTime(start); !ok {
		return nil, a.lines.errorf("field %s: got %q, want a time in RFC 3339, or seconds or milliseconds since 1970", m.Time, start)
	}
	if m.Denied != nil {
		value, _ := fieldText(line, m.Denied.Field)
		c.Denied = value == m.Denied.Equals
	}
	hits := int64(1)
	if m.Hits != "" {
		if text, ok := fieldText(line, m.Hits); ok {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(n) || math.Abs(n) > math.MaxInt32 {
				return nil, a.lines.errorf("field %s: got %q, want a number of hits", m.Hits, text)
			}
			hits = int64(n)
		}
	}
	for _, mapped := range m.Descriptors {
		if entries := mapEntries(line, mapped); entries != nil {
			c.addDescriptor(entries, hits, c.Denied)
		}
	}
	return c, nil
}

// mapEntries returns the entries of a descriptor, or nil if a field is missing.
func mapEntries(line map[string]any, mapped []EntryMapping) []*ratelimitv3.RateLimitDescriptor_Entry {
	entries := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(mapped))
	for i, e := range mapped {
		value := e.Value
		if e.Field != "" {
			var ok bool
			if value, ok = fieldText(line, e.Field); !ok {
				return nil
			}
		}
		entries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: value}
	}
	return entries
}

// fieldText returns the text of a field. A dot in the path enters an object, unless the line
// has a field of the whole path. Envoy writes null or - for a missing value.
func fieldText(line map[string]any, path string) (text string, ok bool) {
	value, found := line[path]
	for rest := path; !found; {
		name, inner, hasDot := strings.Cut(rest, ".")
		object, isObject := line[name].(map[string]any)
		if !hasDot || !isObject {
			return "", false
		}
		line, rest = object, inner
		value, found = line[rest]
	}
	switch v := value.(type) {
	case string:
		return v, v != "" && v != "-"
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// maxSeconds is the largest number of a time in seconds; larger numbers are milliseconds.
const maxSeconds = 1e11

// parseTime returns the time that text describes.
func parseTime(text string) (t time.Time, ok bool) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t.UTC(), true
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0 && seconds < maxSeconds*1000) {
		return time.Time{}, false
	}
	if seconds >= maxSeconds {
		seconds /= 1000
	}
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(fraction*1e9)).UTC(), true
}
