package decisionlog

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/service"
)

// LogOptions are the options of NewLog.
type LogOptions struct {
	All          bool         // write all records, and not only denials and errors
	Sample       float64      // share of the calls whose records are written, from 0 to 1
	MaxPerSecond int          // maximum of records; 0 means no maximum
	Path         string       // of the file that the log appends to
	Writer       io.Writer    // gets the lines if Path is empty
	Hash         *Hash        // replaces values in records, unless it is nil
	Log          *slog.Logger // gets the errors of writing
}

// DropReason is why a record was dropped from the log.
type DropReason uint8

// The reasons of dropped records.
const (
	DroppedByRate   DropReason = iota // more than LogOptions.MaxPerSecond
	DroppedByBuffer                   // the log is written too slowly
	DroppedByWrite                    // the disk is full, or the file can't be opened

	dropReasons // the number of reasons
)

// String returns the reason in lines of the log and in metrics.
func (r DropReason) String() string {
	return [...]string{"rate", "buffer_full", "write_error"}[r]
}

// Stats are numbers of records since the start of a Log.
type Stats struct {
	Written uint64
	Dropped [dropReasons]uint64 // by DropReason
}

// Log is a service.Observer that writes records as lines of JSON. A call only puts them into a buffer for Run.
type Log struct {
	options LogOptions
	records chan Record
	reopen  chan struct{}

	rateMu        sync.Mutex // guards the fields below
	second        int64      // of the newest record, since 1970
	secondRecords int        // in this second

	written atomic.Uint64
	dropped [dropReasons]atomic.Uint64

	// Run uses the fields below.
	out           *output
	lines         bytes.Buffer
	reportedDrops [dropReasons]uint64
}

var _ service.Observer = (*Log)(nil)

const (
	logBuffer = 4096    // records
	maxWrite  = 1 << 16 // bytes after which lines are written
)

// NewLog returns a Log. Nothing is written before Run.
func NewLog(o LogOptions) *Log {
	out := &output{path: o.Path, w: o.Writer, log: o.Log}
	return &Log{options: o, out: out, records: make(chan Record, logBuffer), reopen: make(chan struct{}, 1)}
}

// Stats returns the numbers of this moment.
func (l *Log) Stats() Stats {
	s := Stats{Written: l.written.Load()}
	for reason := range l.dropped {
		s.Dropped[reason] = l.dropped[reason].Load()
	}
	return s
}

// Reopen opens the file again, after a program has moved it away.
func (l *Log) Reopen() {
	select {
	case l.reopen <- struct{}{}:
	default: // one is pending
	}
}

// Answered implements service.Observer.
func (l *Log) Answered(ctx context.Context, c *service.Call) {
	var now time.Time // read at the first record
	for o := newOutcomes(c); o.next(); {
		if o.code == OK && !l.options.All {
			continue
		}
		if now.IsZero() {
			if l.options.Sample < 1 && rand.Float64() >= l.options.Sample {
				return
			}
			now = time.Now()
		}
		if !l.isWithinRate(now) {
			l.dropped[DroppedByRate].Add(1)
			continue
		}
		select {
		case l.records <- o.record(ctx, now.Sub(c.Start)):
		default:
			l.dropped[DroppedByBuffer].Add(1)
		}
	}
}

// isWithinRate reports whether MaxPerSecond allows one more record at now, and counts the record if so.
func (l *Log) isWithinRate(now time.Time) bool {
	if l.options.MaxPerSecond <= 0 {
		return true
	}
	const maxDisorder = 2 // seconds; if a record is older, the clock went back
	l.rateMu.Lock()
	defer l.rateMu.Unlock()
	if second := now.Unix(); second > l.second || second < l.second-maxDisorder {
		l.second, l.secondRecords = second, 0
	}
	isWithin := l.secondRecords < l.options.MaxPerSecond
	if isWithin {
		l.secondRecords++
	}
	return isWithin
}

// Run writes records until ctx is done, and then the records that are in the buffer. It must be called once.
func (l *Log) Run(ctx context.Context) {
	l.out.reopen()
	defer l.out.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case r := <-l.records:
			l.writeRecords(r)
		case <-l.reopen:
			l.out.reopen()
		case <-tick.C:
			l.out.reopenIfMoved()
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

// writeRecords writes r and records from the buffer. They are dropped if the write fails.
func (l *Log) writeRecords(r Record) {
	l.lines.Reset()
	count := uint64(0)
	for {
		l.options.Hash.replaceValues(&r)
		appendLine(&l.lines, &r)
		count++
		if len(l.records) == 0 || l.lines.Len() >= maxWrite {
			break
		}
		r = <-l.records
	}
	if l.out.write(l.lines.Bytes()) {
		l.written.Add(count)
	} else {
		l.dropped[DroppedByWrite].Add(count)
	}
}

// reportDrops writes a line for each reason with drops since the last report.
func (l *Log) reportDrops() {
	l.lines.Reset()
	dropped := l.Stats().Dropped
	for reason, count := range dropped {
		if count > l.reportedDrops[reason] {
			appendLine(&l.lines, Drops{time.Now().UTC(), count - l.reportedDrops[reason], DropReason(reason).String()})
		}
	}
	if l.lines.Len() > 0 && l.out.write(l.lines.Bytes()) {
		l.reportedDrops = dropped
	}
}
