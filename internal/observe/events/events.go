// Package events reports what the parts of the service observe. It writes log lines, events of the timeline, notes of
// /healthcheck and metrics, and describes the state for the live page.
package events

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
	"github.com/seed-81f232ab/rls/internal/server"
)

// Options are the options of New.
type Options struct {
	Metrics *metrics.Metrics
	Health  *server.Health
	Log     *slog.Logger

	Version, Backend string // details of the first event
}

// Events reports events. It is safe for concurrent use.
type Events struct {
	*timeline.Timeline
	Options

	mu            sync.Mutex
	rejectedFiles map[string]string // see RejectedFiles
}

const maxTimelineEvents = 200 // bounds the events that the timeline keeps

// New returns an Events, whose first event is the start of the service.
func New(o Options) *Events {
	serviceEvents := &Events{Timeline: timeline.New(maxTimelineEvents), Options: o, rejectedFiles: map[string]string{}}
	serviceEvents.Add(timeline.Event{Kind: timeline.Start, Text: "service started", Attrs: details("version", o.Version, "backend", o.Backend)})
	return serviceEvents
}

// details returns details of an event. pairs has names, each followed by its value. details leaves out empty values.
func details(pairs ...any) []timeline.Attr {
	var attrs []timeline.Attr
	for i := 0; i < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			attrs = append(attrs, timeline.Attr{Name: strings.ReplaceAll(pairs[i].(string), "_", " "), Value: value})
		}
	}
	return attrs
}

// DrainStarted implements server.Observer.
func (e *Events) DrainStarted(callsInFlight int64) {
	e.Add(timeline.Event{Kind: timeline.Drain, Text: "drain started", Attrs: details("calls in flight", callsInFlight)})
}

// DrainFinished implements server.Observer.
func (e *Events) DrainFinished(cutCalls int64) {
	e.Add(timeline.Event{Kind: timeline.Drain, Failed: cutCalls > 0, Text: "drain finished", Attrs: details("calls cut", cutCalls)})
}

// TLSReloaded implements server.Observer.
func (e *Events) TLSReloaded(listener, subject string, err error) {
	e.addReload("TLS files reloaded: "+listener, details("subject", subject), "TLS files rejected: "+listener, err)
}

// CertificateInForce implements server.Observer.
func (e *Events) CertificateInForce(listener string, expiry time.Time) {
	e.Metrics.SetCertificateExpiry(strings.ToLower(listener), expiry)
}

// FileReloaded reports that the new content of file is in force, or the error of rejected content. contentName says what
// the file has, such as "callers".
func (e *Events) FileReloaded(contentName, file string, err error) {
	e.addReload(contentName+" reloaded", details("file", file), contentName+" rejected", err)
}

// RejectedFiles returns the errors of files whose newest content is not in force. The key says what was rejected, such as
// "callers rejected".
func (e *Events) RejectedFiles() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.rejectedFiles)
}

// addReload adds an event with text and attrs. If err is not nil, addReload adds an event with errText and err instead.
func (e *Events) addReload(text string, attrs []timeline.Attr, errText string, err error) {
	e.mu.Lock()
	delete(e.rejectedFiles, errText)
	if err != nil {
		text, attrs = errText, details("error", err)
		e.rejectedFiles[errText] = err.Error()
	}
	e.mu.Unlock()
	e.Add(timeline.Event{Kind: timeline.Certificate, Failed: err != nil, Text: text, Attrs: attrs})
}
