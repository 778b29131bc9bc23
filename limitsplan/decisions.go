package limitsplan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/decisionlog"
)

// decisionReader is a Reader of a decision log.
type decisionReader struct {
	lines   *lineReader
	records sorter[*decisionlog.Record]
	head    *decisionlog.Record // first record of the next call; nil if it is not read yet

	dropped     uint64 // records that the log has dropped
	hasDenied   bool   // a record is a denial
	hasAdmitted bool   // a record is no denial
}

func newDecisionReader(lines *lineReader) *decisionReader {
	d := &decisionReader{lines: lines}
	d.records.next = d.readRecord
	return d
}

// Notes implements Reader.
func (d *decisionReader) Notes() []string {
	var notes []string
	if d.dropped > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d records were dropped when the log was written; these calls are missing (DECISION_LOG_MAX_PER_SECOND)", d.lines.name, d.dropped))
	}
	if d.hasDenied && !d.hasAdmitted {
		notes = append(notes, d.lines.name+": the log has denied calls only; a plan needs all calls (DECISION_LOG=all)")
	}
	return notes
}

// readRecord returns the record of the next line that has one.
func (d *decisionReader) readRecord() (timed[*decisionlog.Record], error) {
	for {
		text, err := d.lines.next()
		if err != nil {
			return timed[*decisionlog.Record]{}, err
		}
		line := new(decisionlog.Line)
		if err := json.Unmarshal(text, line); err != nil {
			return timed[*decisionlog.Record]{}, d.lines.errorf("got no record of a decision log: %w", err)
		}
		d.dropped += line.Dropped
		if line.Dropped > 0 || line.Domain == "" || len(line.Descriptor) == 0 {
			continue // no request that a limit could match
		}
		if line.Time.IsZero() {
			return timed[*decisionlog.Record]{}, d.lines.errorf("record has no time; want a line of DECISION_LOG=all")
		}
		d.hasAdmitted = d.hasAdmitted || line.Code == decisionlog.OK
		d.hasDenied = d.hasDenied || line.Code == decisionlog.OverLimit
		return timed[*decisionlog.Record]{line.Time, d.lines.number, &line.Record}, nil
	}
}

// Next implements Reader. The records of a call have the same time and domain.
func (d *decisionReader) Next() (*Call, error) {
	if d.head == nil {
		if err := d.readHead(); err != nil {
			return nil, err
		}
	}
	c := &Call{
		Time:    d.head.Time,
		Request: &rlsv3.RateLimitRequest{Domain: d.head.Domain},
		Denied:  d.head.OverallCode == decisionlog.OverLimit,
	}
	firstLimit := d.head // first record of the current descriptor
	for {
		r := d.head
		isDenied := r.Code == decisionlog.OverLimit && !r.Shadow
		if n := len(c.deniedDescriptors); n == 0 || r.DescriptorIndex != firstLimit.DescriptorIndex {
			firstLimit = r
			c.addDescriptor(requestEntries(r.Descriptor), r.Hits, isDenied)
		} else if isDenied {
			c.deniedDescriptors[n-1] = true
		}
		switch err := d.readHead(); {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return nil, err
		case !sameCall(d.head, firstLimit):
			return c, nil
		}
	}
}

// sameCall reports whether r is of the same call as the record before it. firstLimit is the
// first record of the descriptor of that record.
func sameCall(r, firstLimit *decisionlog.Record) bool {
	if !r.Time.Equal(firstLimit.Time) || r.Domain != firstLimit.Domain || r.TraceID != firstLimit.TraceID {
		return false
	}
	if r.DescriptorIndex != firstLimit.DescriptorIndex {
		return r.DescriptorIndex > firstLimit.DescriptorIndex
	}
	isRepeated := r.Limit == firstLimit.Limit && r.LimitName == firstLimit.LimitName
	return !isRepeated && slices.Equal(r.Descriptor, firstLimit.Descriptor)
}

// readHead reads the next record into d.head.
func (d *decisionReader) readHead() error {
	r, err := d.records.pop()
	d.head = r.value
	return err
}

func requestEntries(entries []decisionlog.Entry) []*ratelimitv3.RateLimitDescriptor_Entry {
	requested := make([]*ratelimitv3.RateLimitDescriptor_Entry, len(entries))
	for i, e := range entries {
		requested[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value}
	}
	return requested
}
