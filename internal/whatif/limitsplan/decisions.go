package limitsplan

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
)

type decisionReader struct {
	lines   *lineReader
	records sorter[*decisionlog.Record]
	head    *decisionlog.Record // first record of the next call; nil if it is not read yet

	dropped     uint64 // records that the log has dropped
	rejected    uint64 // calls that the service has rejected
	rejection   string // error of the first rejected call
	hasDenied   bool   // a record is a denial
	hasAdmitted bool   // a record is no denial
}

func newDecisionReader(lines *lineReader) *decisionReader {
	d := &decisionReader{lines: lines}
	d.records = sorter[*decisionlog.Record]{next: d.readRecord, timeOf: func(r *decisionlog.Record) time.Time { return r.Time }}
	return d
}

func (d *decisionReader) Notes() []string {
	notes := d.lines.notes()
	if d.dropped > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d records were dropped when the log was written; these calls are missing (DECISION_LOG_MAX_PER_SECOND)", d.lines.name, d.dropped))
	}
	if d.rejected > 0 {
		notes = append(notes, fmt.Sprintf("%s: the service rejected %d calls, and they are left out; the first error is: %s", d.lines.name, d.rejected, d.rejection))
	}
	switch {
	case d.hasDenied && !d.hasAdmitted:
		notes = append(notes, d.lines.name+": the log has denied calls only; a plan needs all calls (DECISION_LOG=all)")
	case !d.hasDenied && !d.hasAdmitted:
		notes = append(notes, d.lines.name+": the log has no record of a decision; a plan needs the log of DECISION_LOG=all, or an access log and --access-log")
	}
	return notes
}

// noRecord is the error of a line that is not a record of a decision log.
const noRecord = "got no record of a decision log; want a line of DECISION_LOG=all; for an access log, give --access-log and a file that maps its fields"

// readRecord returns the record of the next line that has one.
func (d *decisionReader) readRecord() (*decisionlog.Record, error) {
	for {
		line := new(decisionlog.Line)
		if err := d.lines.nextObject(line, noRecord); err != nil {
			return nil, err
		}
		d.dropped += line.Dropped
		switch {
		case line.Dropped > 0:
			continue
		case line.Code == "":
			return nil, d.lines.errorf(noRecord)
		case line.Domain == "" || len(line.Descriptor) == 0:
			continue // no request that a limit could match
		case line.Time.IsZero():
			return nil, d.lines.errorf("record has no time; want a line of DECISION_LOG=all")
		}
		if err := d.lines.checkTime("time", line.Time); err != nil {
			return nil, err
		}
		d.hasAdmitted = d.hasAdmitted || line.Code == decisionlog.OK
		d.hasDenied = d.hasDenied || line.Code == decisionlog.OverLimit
		return &line.Record, nil
	}
}

func (d *decisionReader) Next() (*Call, error) {
	for {
		c, isRejected, err := d.readCall()
		if err != nil || !isRejected {
			return c, err
		}
		d.rejected++
	}
}

// readCall returns the next call, whose records have the same time and domain. isRejected reports that it was invalid
// or refused, and charged nothing.
func (d *decisionReader) readCall() (c *Call, isRejected bool, err error) {
	if d.head == nil {
		if err := d.readHead(); err != nil {
			return nil, false, err
		}
	}
	c = &Call{
		Time:    d.head.Time,
		Request: &rlsv3.RateLimitRequest{Domain: d.head.Domain},
		Denied:  d.head.OverallCode == decisionlog.OverLimit,
	}
	isRejected = d.head.OverallCode == decisionlog.Failed
	failure := d.head.Error
	firstLimit := d.head // first record of the current descriptor
	for {
		r := d.head
		isOverLimit := r.Code == decisionlog.OverLimit && !r.Shadow
		if n := len(c.overLimit); n == 0 || r.DescriptorIndex != firstLimit.DescriptorIndex {
			firstLimit = r
			c.addDescriptor(decisionlog.RequestEntries(r.Descriptor), r.Hits, isOverLimit)
			c.places = append(c.places, r.DescriptorIndex)
		} else if isOverLimit {
			c.overLimit[n-1] = true
		}
		if r.Limit != "" {
			c.decisions = append(c.decisions, r)
			isRejected = isRejected && r.Code != decisionlog.Failed // a backend that fails can have charged the hits
		}
		err := d.readHead()
		if err == nil && sameCall(d.head, firstLimit) {
			continue
		}
		if isRejected && d.rejected == 0 {
			d.rejection = failure
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return c, isRejected, err
	}
}

// sameCall reports whether r is of the same call as the record before it, whose descriptor begins with firstLimit.
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

func (d *decisionReader) readHead() (err error) {
	d.head, err = d.records.pop()
	return err
}
