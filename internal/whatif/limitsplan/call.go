// Package limitsplan replays recorded calls against other limits on a virtual clock. Its
// report shows which calls the other limits deny, and which calls the recorded limits denied.
//
// Terms:
//
//   - recorded call: a call that a decision log or an access log describes;
//   - newly denied: admitted when the call was recorded, denied by the new limits;
//   - newly admitted: denied when the call was recorded, admitted by the new limits.
package limitsplan

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/limit"
)

// Call is a recorded call.
type Call struct {
	Time    time.Time
	Request *rlsv3.RateLimitRequest
	Denied  bool // the recorded answer was a denial

	// isOverLimit reports for each descriptor of the request whether a limit that can deny was
	// exceeded. An access log does not say which descriptor was denied. So if a call was denied,
	// all its descriptors count as over their limits.
	isOverLimit []bool

	decisions []*decisionlog.Record // the decisions in the order of the request; empty for an access log
	replica   int                   // the index of the log among the merged logs
}

func (c *Call) addDescriptor(entries []*ratelimitv3.RateLimitDescriptor_Entry, hits int64, isOverLimit bool) {
	d := &ratelimitv3.RateLimitDescriptor{Entries: entries}
	if hits < 0 {
		d.IsNegativeHits, hits = true, -hits
	}
	if hits != 1 {
		d.HitsAddend = wrapperspb.UInt64(uint64(min(hits, limit.MaxHits)))
	}
	c.Request.Descriptors = append(c.Request.Descriptors, d)
	c.isOverLimit = append(c.isOverLimit, isOverLimit)
}

// Reader reads the recorded calls of a log.
type Reader interface {
	// Next returns the next call, or io.EOF after the last call. Another error names the line that can't be read.
	Next() (*Call, error)

	// Notes returns reasons why figures can be wrong, or why there are no calls.
	Notes() []string
}

// NewReader returns a Reader of a decision log, or of an access log if mapping is not nil. Errors contain the name of the log.
func NewReader(name string, log io.Reader, mapping *Mapping) (Reader, error) {
	lines, err := newLineReader(name, log)
	if err != nil {
		return nil, err
	}
	if mapping != nil {
		return newAccessReader(lines, mapping), nil
	}
	return newDecisionReader(lines), nil
}

type mergedReader struct {
	readers   []Reader
	nextCalls []*Call // the next call of each reader that has another call
}

// Merge returns a Reader of the calls of several replicas, in the order of time.
func Merge(readers ...Reader) (Reader, error) {
	reader := &mergedReader{readers: readers}
	for i := range readers {
		if err := reader.readNextCall(i); err != nil {
			return nil, err
		}
	}
	return reader, nil
}

func (m *mergedReader) readNextCall(i int) error {
	call, err := m.readers[i].Next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		call.replica = i
		m.nextCalls = append(m.nextCalls, call)
	}
	return err
}

func (m *mergedReader) Next() (*Call, error) {
	if len(m.nextCalls) == 0 {
		return nil, io.EOF
	}
	firstCall := slices.MinFunc(m.nextCalls, func(a, b *Call) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.replica, b.replica)) })
	m.nextCalls = slices.DeleteFunc(m.nextCalls, func(c *Call) bool { return c == firstCall })
	return firstCall, m.readNextCall(firstCall.replica)
}

func (m *mergedReader) Notes() []string {
	var notes []string
	for _, r := range m.readers {
		notes = append(notes, r.Notes()...)
	}
	return notes
}
