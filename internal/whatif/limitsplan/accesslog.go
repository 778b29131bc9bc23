package limitsplan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/base/fields"
)

// accessReader reads the calls of an access log with a JSON object on each line. It implements Reader.
type accessReader struct {
	lines       *lineReader
	mapping     *Mapping
	calls       sorter[*Call]
	lineCount   uint64 // the number of lines that were read
	unusedCount uint64 // the number of lines without a descriptor

	foundFields    map[string]bool // the fields of the mapping that occur in a line
	firstLineNames []string        // the names of the fields in the first line
}

func newAccessReader(lines *lineReader, mapping *Mapping) *accessReader {
	reader := &accessReader{lines: lines, mapping: mapping, foundFields: map[string]bool{}}
	reader.calls = sorter[*Call]{read: reader.readCall, timeOf: func(c *Call) time.Time { return c.Time }}
	return reader
}

func (a *accessReader) Notes() []string {
	notes := a.lines.notes()
	if a.lineCount == 0 {
		return append(notes, a.lines.name+": the log has no lines")
	}
	for _, field := range a.mapping.fields() {
		if a.foundFields[field] {
			continue
		}
		note := fmt.Sprintf("%s: no line has a value in the field %s of the mapping", a.lines.name, fields.Printable(field))
		if similar := fields.Nearest(field, a.firstLineNames); similar != "" {
			note += fmt.Sprintf("; did you mean %s?", fields.Printable(similar))
		}
		notes = append(notes, note)
	}
	if a.unusedCount > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d of %d lines were left out, because they lack the fields of every descriptor", a.lines.name, a.unusedCount, a.lineCount))
	}
	return notes
}

func (a *accessReader) Next() (*Call, error) { return a.calls.pop() }

func (a *accessReader) readCall() (*Call, error) {
	for {
		var line map[string]any
		if err := a.lines.nextObject(&line, "got no JSON object; an access log has a JSON object on each line"); err != nil {
			return nil, err
		}
		if a.lineCount++; a.lineCount == 1 {
			a.firstLineNames = fieldNames(line, "", nil)
			slices.Sort(a.firstLineNames)
		}
		call, err := a.newCall(line)
		if err != nil {
			return nil, err
		}
		if len(call.Request.Descriptors) > 0 {
			return call, nil
		}
		a.unusedCount++
	}
}

func (a *accessReader) newCall(line map[string]any) (*Call, error) {
	mapping := a.mapping
	call := &Call{Request: &rlsv3.RateLimitRequest{Domain: mapping.Domain}}
	start, hasStart := a.fieldText(line, mapping.Time)
	var ok bool
	switch call.Time, ok = parseTime(start); {
	case !hasStart && line["overall_code"] != nil:
		return nil, a.lines.errorf("got a record of a decision log; leave --access-log out")
	case !hasStart:
		suggestion := ""
		if similar := fields.Nearest(mapping.Time, a.firstLineNames); similar != "" {
			suggestion = fmt.Sprintf("; did you mean %s?", fields.Printable(similar))
		}
		return nil, a.lines.errorf("the line has no field %s with the time%s", fields.Printable(mapping.Time), suggestion)
	case !ok:
		return nil, a.lines.errorf("field %s: got %q, want a time in RFC 3339, or seconds or milliseconds since 1970", mapping.Time, start)
	}
	if err := a.lines.checkTime(mapping.Time, call.Time); err != nil {
		return nil, err
	}
	if mapping.Denied != nil {
		value, _ := a.fieldText(line, mapping.Denied.Field)
		call.Denied = value == mapping.Denied.Equals
	}
	hits := int64(1)
	if mapping.Hits != "" {
		if text, ok := a.fieldText(line, mapping.Hits); ok {
			n, err := strconv.ParseFloat(text, 64)
			if err != nil || math.IsNaN(n) || math.Abs(n) > math.MaxInt32 {
				return nil, a.lines.errorf("field %s: got %q, want a number of hits", mapping.Hits, text)
			}
			hits = int64(n)
		}
	}
	for _, descriptor := range mapping.Descriptors {
		if entries := a.mapEntries(line, descriptor); entries != nil {
			call.addDescriptor(entries, hits, call.Denied)
		}
	}
	return call, nil
}

const maxFieldNames = 1000 // bounds the names of fields that fieldNames returns

func fieldNames(object map[string]any, prefix string, names []string) []string {
	for name, value := range object {
		if len(names) >= maxFieldNames {
			break
		}
		if innerObject, ok := value.(map[string]any); ok {
			names = fieldNames(innerObject, prefix+name+".", names)
		} else {
			names = append(names, prefix+name)
		}
	}
	return names
}

// mapEntries returns the entries that mappings make of a line, or nil if a field is missing.
func (a *accessReader) mapEntries(line map[string]any, mappings []EntryMapping) []*ratelimitv3.RateLimitDescriptor_Entry {
	var entries []*ratelimitv3.RateLimitDescriptor_Entry
	for _, entryMapping := range mappings {
		value, ok := entryMapping.Value, true
		if entryMapping.Field != "" {
			value, ok = a.fieldText(line, entryMapping.Field)
		}
		if ok {
			entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: entryMapping.Key, Value: value})
		}
	}
	if len(entries) < len(mappings) {
		return nil
	}
	return entries
}

// fieldText returns the text of a field, and records that a line has the field.
func (a *accessReader) fieldText(line map[string]any, path string) (text string, ok bool) {
	if text, ok = fieldText(line, path); ok {
		a.foundFields[path] = true
	}
	return text, ok
}

// fieldText returns the text of a field. A dot in path enters an object, unless the line has a field with the whole path
// as its name. Envoy writes null or - for a missing value.
func fieldText(line map[string]any, path string) (text string, ok bool) {
	value, isFound := line[path]
	for !isFound {
		name, innerPath, hasDot := strings.Cut(path, ".")
		object, isObject := line[name].(map[string]any)
		if !hasDot || !isObject {
			return "", false
		}
		line, path = object, innerPath
		value, isFound = line[path]
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

const maxSeconds = 1e11 // the largest number that counts as seconds; a larger number counts as milliseconds

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
	wholeSeconds, fraction := math.Modf(seconds)
	return time.Unix(int64(wholeSeconds), int64(fraction*1e9)).UTC(), true
}
