package decisionlog

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/seed-81f232ab/rls/service"
)

// LogOptions are the options of NewLog.
type LogOptions struct {
	// All writes all records. Otherwise the log has denials and errors only.
	All bool

	// Sample is the share of the calls whose records are written, from 0 to 1.
	Sample float64

	// MaxPerSecond is the maximum number of records in a second; 0 means no maximum.
	MaxPerSecond int

	// Path is the file that the log appends to. If it is empty, the log writes to Writer.
	Path   string
	Writer io.Writer

	// Hash replaces values in records, unless it is nil.
	Hash *Hash

	// Observer counts records. It is required.
	Observer LogObserver

	// Log gets the errors of writing. It is required.
	Log *slog.Logger

	// Now is the clock of the service; default time.Now.
	Now func() time.Time
}

// LogObserver counts the records of a Log. One goroutine at a time calls it.
type LogObserver interface {
	RecordsWritten(count uint64)
	RecordsDropped(reason DropReason, count uint64)
}

// DropReason is why a record was dropped from the log.
type DropReason string

// The reasons of dropped records.
const (
	DroppedByRate   DropReason = "rate"        // more than LogOptions.MaxPerSecond
	DroppedByBuffer DropReason = "buffer_full" // the log is written too slowly
	DroppedByWrite  DropReason = "write_error"
)

// DropReasons lists all reasons.
var DropReasons = []DropReason{DroppedByRate, DroppedByBuffer, DroppedByWrite}

// Log writes records as lines of JSON. It is a service.Observer. A call only puts its
// records into a buffer, and Run writes them.
type Log struct {
	options LogOptions
	records chan Record
	reopen  chan struct{}
	rate    rateCap

	droppedByBuffer atomic.Uint64
}

var _ service.Observer = (*Log)(nil)

const (
	logBuffer   = 4096    // records
	maxLogWrite = 1 << 16 // bytes after which lines are written
)

// NewLog returns a Log. Nothing is written before Run.
func NewLog(o LogOptions) *Log {
	if o.Now == nil {
		o.Now = time.Now
	}
	l := &Log{options: o, records: make(chan Record, logBuffer), reopen: make(chan struct{}, 1)}
	l.rate.max = uint64(max(o.MaxPerSecond, 0))
	return l
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
			now = l.options.Now()
		}
		if !l.rate.allow(now) {
			continue
		}
		select {
		case l.records <- o.record(ctx, now.Sub(c.Start)):
		default:
			l.droppedByBuffer.Add(1)
		}
	}
}

// Run writes records until ctx is done, and then the records that are in the buffer.
func (l *Log) Run(ctx context.Context) {
	w := logWriter{Log: l, out: &output{path: l.options.Path, w: l.options.Writer, log: l.options.Log}}
	w.out.open()
	defer w.out.close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case r := <-l.records:
			w.addRecord(&r)
			for len(l.records) > 0 && w.lines.Len() < maxLogWrite {
				r = <-l.records
				w.addRecord(&r)
			}
			w.writeLines()
		case <-l.reopen:
			w.out.reopen()
		case <-tick.C:
			w.out.reopenIfMoved()
			w.reportDrops()
		case <-ctx.Done():
			for len(l.records) > 0 {
				r := <-l.records
				w.addRecord(&r)
			}
			w.writeLines()
			w.reportDrops()
			return
		}
	}
}

// logWriter is the state of Run.
type logWriter struct {
	*Log
	out   *output
	lines bytes.Buffer
	count uint64 // of records in lines

	reportedRateDrops, reportedBufferDrops uint64
	droppedByWrite                         uint64 // since the last report
}

func (w *logWriter) addRecord(r *Record) {
	w.options.Hash.replaceValues(r)
	appendLine(&w.lines, r)
	w.count++
}

// writeLines writes the lines. Their records are dropped if the write fails.
func (w *logWriter) writeLines() {
	if w.count == 0 {
		return
	}
	if w.out.write(w.lines.Bytes()) {
		w.options.Observer.RecordsWritten(w.count)
	} else {
		w.droppedByWrite += w.count
		w.options.Observer.RecordsDropped(DroppedByWrite, w.count)
	}
	w.lines.Reset()
	w.count = 0
}

// reportDrops writes a line for each reason with drops since the last report.
func (w *logWriter) reportDrops() {
	// While a call starts the next second, the count can be too small for a moment.
	byRate, byBuffer := max(w.rate.refusedCount(w.options.Now()), w.reportedRateDrops), w.droppedByBuffer.Load()
	w.countDrops(DroppedByRate, byRate-w.reportedRateDrops)
	w.countDrops(DroppedByBuffer, byBuffer-w.reportedBufferDrops)
	w.reportedRateDrops, w.reportedBufferDrops = byRate, byBuffer
	w.addDropsLine(DroppedByWrite, w.droppedByWrite)
	if w.lines.Len() > 0 && w.out.write(w.lines.Bytes()) {
		w.droppedByWrite = 0
	}
	w.lines.Reset()
}

func (w *logWriter) countDrops(reason DropReason, count uint64) {
	if count > 0 {
		w.options.Observer.RecordsDropped(reason, count)
	}
	w.addDropsLine(reason, count)
}

func (w *logWriter) addDropsLine(reason DropReason, count uint64) {
	if count > 0 {
		appendLine(&w.lines, Drops{w.options.Now().UTC(), count, string(reason)})
	}
}
