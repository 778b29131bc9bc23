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
	lines      *lineReader
	records    sorter[*decisionlog.Record]
	nextRecord *decisionlog.Record // the first record of the next call, or nil if no record is read

	droppedRecords    uint64 // the number of records that the log has dropped
	rejectedCalls     uint64 // the number of calls that the service has rejected
	firstRejection    string // the error of the first rejected call
	hasDeniedRecord   bool
	hasAdmittedRecord bool
}

func newDecisionReader(lines *lineReader) *decisionReader {
	reader := &decisionReader{lines: lines}
	reader.records = sorter[*decisionlog.Record]{read: reader.readRecord, timeOf: func(r *decisionlog.Record) time.Time { return r.Time }}
	return reader
}

func (d *decisionReader) Notes() []string {
	notes := d.lines.notes()
	if d.droppedRecords > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d records were dropped when the log was written; these calls are missing (DECISION_LOG_MAX_PER_SECOND)", d.lines.name, d.droppedRecords))
	}
	if d.rejectedCalls > 0 {
		notes = append(notes, fmt.Sprintf("%s: the service rejected %d calls, and they are left out; the first error is: %s", d.lines.name, d.rejectedCalls, d.firstRejection))
	}
	switch {
	case d.hasDeniedRecord && !d.hasAdmittedRecord:
		notes = append(notes, d.lines.name+": the log has denied calls only; a plan needs all calls (DECISION_LOG=all)")
	case !d.hasDeniedRecord && !d.hasAdmittedRecord:
		notes = append(notes, d.lines.name+": the log has no record of a decision; a plan needs the log of DECISION_LOG=all, or an access log and --access-log")
	}
	return notes
}

const noRecordText = "got no record of a decision log; want a line of DECISION_LOG=all; for an access log, give --access-log and a file that maps its fields"

func (d *decisionReader) readRecord() (*decisionlog.Record, error) {
	for {
		line := new(decisionlog.Line)
		if err := d.lines.nextObject(line, noRecordText); err != nil {
			return nil, err
		}
		d.droppedRecords += line.Dropped
		switch {
		case line.Dropped > 0:
			continue
		case line.Code == "":
			return nil, d.lines.errorf(noRecordText)
		case line.Domain == "" || len(line.Descriptor) == 0:
			continue // no limit can match such a request
		case line.Time.IsZero():
			return nil, d.lines.errorf("record has no time; want a line of DECISION_LOG=all")
		}
		if err := d.lines.checkTime("time", line.Time); err != nil {
			return nil, err
		}
		d.hasAdmittedRecord = d.hasAdmittedRecord || line.Code == decisionlog.OK
		d.hasDeniedRecord = d.hasDeniedRecord || line.Code == decisionlog.OverLimit
		return &line.Record, nil
	}
}

func (d *decisionReader) Next() (*Call, error) {
	for {
		c, isRejected, err := d.readCall()
		if err != nil || !isRejected {
			return c, err
		}
		d.rejectedCalls++
	}
}

// readCall returns the next call. The records of a call have the same time and domain. isRejected reports whether the
// service rejected the call and charged nothing.
func (d *decisionReader) readCall() (call *Call, isRejected bool, err error) {
	if d.nextRecord == nil {
		if err := d.readNextRecord(); err != nil {
			return nil, false, err
		}
	}
	call = &Call{
		Time:    d.nextRecord.Time,
		Request: &rlsv3.RateLimitRequest{Domain: d.nextRecord.Domain},
		Denied:  d.nextRecord.OverallCode == decisionlog.OverLimit,
	}
	isRejected = d.nextRecord.OverallCode == decisionlog.Failed
	recordedError := d.nextRecord.Error
	firstRecord := d.nextRecord // the first record of the current descriptor
	for {
		record := d.nextRecord
		isOverLimit := record.Code == decisionlog.OverLimit && !record.Shadow
		if n := len(call.isOverLimit); n == 0 || record.DescriptorIndex != firstRecord.DescriptorIndex {
			firstRecord = record
			call.addDescriptor(decisionlog.RequestEntries(record.Descriptor), record.Hits, isOverLimit)
		} else if isOverLimit {
			call.isOverLimit[n-1] = true
		}
		if record.Limit != "" {
			call.decisions = append(call.decisions, record)
			isRejected = isRejected && record.Code != decisionlog.Failed // a failed backend can have charged the hits
		}
		err := d.readNextRecord()
		if err == nil && isSameCall(d.nextRecord, firstRecord) {
			continue
		}
		if isRejected && d.rejectedCalls == 0 {
			d.firstRejection = recordedError
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return call, isRejected, err
	}
}

// isSameCall reports whether record belongs to the same call as the previous record. firstRecord is the first record of the
// descriptor of the previous record. A call has only one record of each limit of a descriptor.
func isSameCall(record, firstRecord *decisionlog.Record) bool {
	if !record.Time.Equal(firstRecord.Time) || record.Domain != firstRecord.Domain || record.TraceID != firstRecord.TraceID {
		return false
	}
	if record.DescriptorIndex != firstRecord.DescriptorIndex {
		return record.DescriptorIndex > firstRecord.DescriptorIndex
	}
	isRepeated := record.Limit == firstRecord.Limit && record.LimitName == firstRecord.LimitName
	return !isRepeated && slices.Equal(record.Descriptor, firstRecord.Descriptor)
}

func (d *decisionReader) readNextRecord() (err error) {
	d.nextRecord, err = d.records.pop()
	return err
}
