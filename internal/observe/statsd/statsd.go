// Package statsd sends the metrics of the process to a statsd server, to DogStatsD or to the log. The metrics have
// the names of envoyproxy/ratelimit. Calls never wait for this package, because it reads the metrics at intervals.
package statsd

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

const warningPause = time.Minute // the shortest time between two warnings about a server

// Options are the options of New.
type Options struct {
	Gatherer  prometheus.Gatherer                // gathers all metrics except the counts of rules
	Rules     func() iter.Seq[metrics.KeyCounts] // returns the counts of all rules
	Server    *Server                            // if Server is nil, the metrics go to the log
	ExtraTags map[string]string
	Interval  time.Duration
	Log       *slog.Logger
}

// Server is a statsd server.
type Server struct {
	Network string // tcp or udp
	Host    string
	Port    int

	DogStatsD  bool        // reports whether the server understands tags
	Mogrifiers []Mogrifier // rename metrics; only for DogStatsD
}

func (s *Server) address() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

type sink interface {
	// flush sends the points that readPoints returns. If flush fails before it calls readPoints, the
	// next flush sends the points. If flush fails later, the points are lost, because the server
	// would count the hits of a repeated point twice.
	flush(ctx context.Context, readPoints func() (iter.Seq[point], error)) error
}

// Exporter sends the metrics at intervals.
type Exporter struct {
	reader   pointReader
	sink     sink
	interval time.Duration
	log      *slog.Logger

	lastWarning time.Time
	hasWarned   bool // reports whether a warning was logged since the last flush that worked

	cancel    context.CancelFunc
	goroutine sync.WaitGroup
}

// New returns an Exporter that sends the metrics until Close.
func New(options Options) *Exporter {
	e := newExporter(options)
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.goroutine.Go(func() { e.run(ctx) })
	return e
}

// newExporter returns an Exporter that does not run.
func newExporter(options Options) *Exporter {
	exporter := &Exporter{reader: pointReader{gatherer: options.Gatherer, rules: options.Rules}, interval: options.Interval, log: options.Log}
	tags := sortedTags(options.ExtraTags)
	if options.Server == nil {
		exporter.sink = &logSink{log: options.Log, extraTags: tags, lastGauges: map[string]float64{}}
		return exporter
	}
	exporter.log = options.Log.With("statsd", options.Server.address())
	exporter.sink = &serverSink{options.Server, tags}
	return exporter
}

// Close sends the changes since the last flush, and stops e.
func (e *Exporter) Close() {
	e.cancel()
	e.goroutine.Wait()
}

func (e *Exporter) run(ctx context.Context) {
	for wait.Sleep(ctx, e.interval) {
		e.flush(ctx)
	}
	e.flush(context.WithoutCancel(ctx))
}

func (e *Exporter) flush(ctx context.Context) {
	switch err := e.sink.flush(ctx, e.reader.points); {
	case err == nil && e.hasWarned:
		e.hasWarned = false
		e.log.Info("metrics sent again")
	case err != nil && time.Since(e.lastWarning) >= warningPause:
		e.hasWarned, e.lastWarning = true, time.Now()
		e.log.Warn("metrics not sent", "error", err)
	}
}
