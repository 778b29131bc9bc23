package decisionlog

import (
	"bytes"
	"context"
	"hash/maphash"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/service"
)

// LogOptions are the options of NewLog.
type LogOptions struct {
	LogsAll      bool         // the log gets all records; if false, only denials and errors
	SampledShare float64      // the share of calls with written records, from 0 to 1
	MaxPerSecond int          // the maximum number of records in a second; 0 means no maximum
	Path         string       // the path of the file; the log appends to this file
	Writer       io.Writer    // gets the lines if Path is empty
	Hash         *Hash        // replaces values of requests by hashes; nil replaces nothing
	Log          *slog.Logger // gets the errors of writes
}

// DropReason is the reason why a record was dropped from the log.
type DropReason uint8

// The reasons of dropped records.
const (
	DroppedByRate   DropReason = iota // the record exceeded its share of LogOptions.MaxPerSecond
	DroppedByBuffer                   // the log is written too slowly
	DroppedByWrite                    // the disk is full, or the file can't be opened

	dropReasonCount // the number of drop reasons
)

// String returns the name of r in lines of the log and in metrics.
func (r DropReason) String() string {
	return [...]string{"rate", "buffer_full", "write_error"}[r]
}

// Stats are numbers of records since the start of a Log.
type Stats struct {
	Written uint64
	Dropped [dropReasonCount]uint64 // the index is the DropReason
}

// Log is a service.Observer that writes records as lines of JSON. A call only puts its records into a buffer for Run.
type Log struct {
	options        LogOptions
	records        chan Record
	reopenRequests chan struct{}

	currentSecond atomic.Pointer[secondCounts] // the numbers of records in this second

	writtenCount  atomic.Uint64
	droppedCounts [dropReasonCount]atomic.Uint64

	// Only Run uses the fields below.
	output        *output
	lines         bytes.Buffer
	reportedDrops [dropReasonCount]uint64
}

var _ service.Observer = (*Log)(nil)

const (
	maxBufferedRecords = 4096    // bounds the records that wait for Run
	flushBytes         = 1 << 16 // Run writes its lines when they have this number of bytes, or when no record waits
)

// NewLog returns a Log. The Log writes nothing before Run.
func NewLog(o LogOptions) *Log {
	logOutput := &output{path: o.Path, writer: o.Writer, log: o.Log}
	l := &Log{options: o, output: logOutput, records: make(chan Record, maxBufferedRecords), reopenRequests: make(chan struct{}, 1)}
	l.currentSecond.Store(newSecondCounts())
	return l
}

// Stats returns the current numbers of records.
func (l *Log) Stats() Stats {
	s := Stats{Written: l.writtenCount.Load()}
	for reason := range l.droppedCounts {
		s.Dropped[reason] = l.droppedCounts[reason].Load()
	}
	return s
}

// Reopen opens the file at the path again, for example after a program has moved the old file away.
func (l *Log) Reopen() { wait.Signal(l.reopenRequests) }

// CallAnswered implements service.Observer.
func (l *Log) CallAnswered(ctx context.Context, call *service.Call) {
	var now time.Time // zero until the first record
	for outcome := newOutcomes(call); outcome.advance(); {
		if outcome.code == OK && !l.options.LogsAll {
			continue
		}
		if now.IsZero() {
			if l.options.SampledShare < 1 && rand.Float64() >= l.options.SampledShare {
				return
			}
			now = time.Now()
		}
		if second := l.currentSecond.Load(); l.options.MaxPerSecond > 0 && !second.addRecord(outcome.hash(second.seed), l.options.MaxPerSecond) {
			l.droppedCounts[DroppedByRate].Add(1)
			continue
		}
		select {
		case l.records <- outcome.record(ctx, now.Sub(call.Start)):
		default:
			l.droppedCounts[DroppedByBuffer].Add(1)
		}
	}
}

// secondCounts has the numbers of records in a second. It is safe for concurrent use.
type secondCounts struct {
	seed      maphash.Seed // is new in each second, so that the groups of keys change
	total     atomic.Int64
	keyCounts [4096]atomic.Int64 // a group of keys shares a count; the index is the hash of the key modulo 4096
}

func newSecondCounts() *secondCounts { return &secondCounts{seed: maphash.MakeSeed()} }

// addRecord counts a record of the key with this hash. It returns false if the count of the key has reached the number of
// records that are left for all keys. For example, one busy key gets 500 of 1000 records, because 500 are then left.
func (c *secondCounts) addRecord(hash uint64, maxRecords int) bool {
	keyCount := &c.keyCounts[hash%uint64(len(c.keyCounts))]
	if keyCount.Load() >= int64(maxRecords)-c.total.Load() {
		return false
	}
	keyCount.Add(1)
	return c.total.Add(1) <= int64(maxRecords)
}

// Run writes records until ctx is done. Then it writes the records in the buffer and returns. Run must be called once.
func (l *Log) Run(ctx context.Context) {
	l.output.reopen()
	defer l.output.close()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case r := <-l.records:
			l.writeRecords(r)
		case <-l.reopenRequests:
			l.output.reopen()
		case <-ticker.C:
			l.currentSecond.Store(newSecondCounts())
			l.output.reopenIfMoved()
			l.reportDrops()
		case <-ctx.Done():
			for len(l.records) > 0 {
				l.writeRecords(<-l.records)
			}
			l.reportDrops()
			return
		}
	}
}

// writeRecords writes record and records from the buffer. It drops these records if the write fails.
func (l *Log) writeRecords(record Record) {
	l.lines.Reset()
	count := uint64(0)
	for {
		l.options.Hash.replaceValues(&record)
		appendLine(&l.lines, &record)
		count++
		if len(l.records) == 0 || l.lines.Len() >= flushBytes {
			break
		}
		record = <-l.records
	}
	if l.output.write(l.lines.Bytes()) {
		l.writtenCount.Add(count)
	} else {
		l.droppedCounts[DroppedByWrite].Add(count)
	}
}

func (l *Log) reportDrops() {
	l.lines.Reset()
	drops := l.Stats().Dropped
	for reason, count := range drops {
		if count > l.reportedDrops[reason] {
			appendLine(&l.lines, Drops{time.Now().UTC(), count - l.reportedDrops[reason], DropReason(reason).String()})
		}
	}
	if l.lines.Len() > 0 && l.output.write(l.lines.Bytes()) {
		l.reportedDrops = drops
	}
}
