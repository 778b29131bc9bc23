// Package limitsplan replays recorded calls against other limits on a virtual clock. Its
// report shows which calls those limits would have denied, beside what happened.
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

	// overLimit reports for each descriptor of the request whether a limit that can deny was
	// exceeded. An access log does not say which descriptor was denied, so a denied call has all
	// descriptors over their limits.
	overLimit []bool

	decisions []*decisionlog.Record // in the order of the request; an access log has none
	places    []int                 // of the descriptors in the recorded request, which can have more of them than the log
	replica   int                   // index of the log among the merged logs
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
	c.overLimit = append(c.overLimit, isOverLimit)
}

// Reader reads the recorded calls of a log.
type Reader interface {
	// Next returns the next call, or io.EOF after the last one. Another error names the line that cannot be read.
	Next() (*Call, error)

	// Notes says what makes figures wrong, or why there are no calls.
	Notes() []string
}

// NewReader returns a Reader of a decision log, or of an access log if m is not nil. Errors call it name.
func NewReader(name string, log io.Reader, m *Mapping) (Reader, error) {
	lines, err := newLineReader(name, log)
	if err != nil {
		return nil, err
	}
	if m != nil {
		return newAccessReader(lines, m), nil
	}
	return newDecisionReader(lines), nil
}

type mergedReader struct {
	readers []Reader
	heads   []*Call // next call of each reader that has not ended
}

// Merge returns a Reader of the calls of several replicas, in the order of time.
func Merge(readers ...Reader) (Reader, error) {
	m := &mergedReader{readers: readers}
	for i := range readers {
		if err := m.readHead(i); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *mergedReader) readHead(i int) error {
	c, err := m.readers[i].Next()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		c.replica = i
		m.heads = append(m.heads, c)
	}
	return err
}

func (m *mergedReader) Next() (*Call, error) {
	if len(m.heads) == 0 {
		return nil, io.EOF
	}
	first := slices.MinFunc(m.heads, func(a, b *Call) int { return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.replica, b.replica)) })
	m.heads = slices.DeleteFunc(m.heads, func(c *Call) bool { return c == first })
	return first, m.readHead(first.replica)
}

func (m *mergedReader) Notes() []string {
	var notes []string
	for _, r := range m.readers {
		notes = append(notes, r.Notes()...)
	}
	return notes
}
