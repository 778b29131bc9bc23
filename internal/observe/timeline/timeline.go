// Package timeline keeps the last events of the process that an operator asks about after
// an incident: starts, reloads, rejected limits, overrides, outages, drains, certificates.
package timeline

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is the kind of an Event.
type Kind string

// The kinds of events.
const (
	Start       Kind = "start"
	Reload      Kind = "reload"      // limits came into force
	Refusal     Kind = "refusal"     // limits, an override or calls were refused
	Override    Kind = "override"    // an override was set, changed or ended
	Breaker     Kind = "breaker"     // Redis went down or came up
	Source      Kind = "source"      // a source of limits went down or came up
	Drain       Kind = "drain"       // the process stops
	Certificate Kind = "certificate" // TLS files were reloaded or rejected
)

// Event is an event of the process.
type Event struct {
	ID     uint64    `json:"id"`   // the number of the event, from 1 on; set by Add
	Time   time.Time `json:"time"` // if it is zero, Add sets it to the current time
	Kind   Kind      `json:"kind"`
	Text   string    `json:"text"`             // one line in words, such as "limits in force"
	Failed bool      `json:"failed,omitempty"` // the event is a problem, such as an outage
	Attrs  []Attr    `json:"attrs,omitempty"`  // details; viewers show them in this order
}

// Attr is a detail of an Event. Value can have several lines.
type Attr struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Bounds of an event.
const (
	maxAttrs     = 20
	maxTextBytes = 2 << 10 // longer texts and values are cut
)

// Timeline keeps the last events. It is safe for concurrent use.
type Timeline struct {
	mu     sync.Mutex
	events []Event // oldest first
	size   int
	lastID uint64
}

// New returns a Timeline that keeps the last size events.
func New(size int) *Timeline { return &Timeline{size: size} }

// Add appends an event. If the Timeline is full, Add removes the oldest event. Add cuts long texts.
func (t *Timeline) Add(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Text = cut(e.Text)
	e.Attrs = slices.Clone(e.Attrs[:min(len(e.Attrs), maxAttrs)])
	for i := range e.Attrs {
		e.Attrs[i].Value = cut(e.Attrs[i].Value)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastID++
	e.ID = t.lastID
	if len(t.events) == t.size {
		t.events = slices.Delete(t.events, 0, 1)
	}
	t.events = append(t.events, e)
}

// Events returns the events, newest first.
func (t *Timeline) Events() []Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := slices.Clone(t.events)
	slices.Reverse(events)
	return events
}

func cut(text string) string {
	if len(text) <= maxTextBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxTextBytes], "") + "…"
}
