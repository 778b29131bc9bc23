// Package timeline keeps the last events of the process that an operator asks about after
// an incident: starts, reloads, rejected limits, overrides, outages, drains, certificates.
package timeline

import (
	"slices"
	"strconv"
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

	// Repeats says that the event can come often, such as an outage. It replaces the event with the same text if that is
	// younger than foldTime. Such events never take the place of other events.
	Repeats bool `json:"-"`

	count int       // the number of events that e stands for
	first time.Time // the time of the first of these events
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

const foldTime = 15 * time.Minute

// Timeline keeps the last events. It is safe for concurrent use.
type Timeline struct {
	mu     sync.Mutex
	events []Event // oldest first
	size   int
	lastID uint64
}

// New returns a Timeline that keeps the last size events.
func New(size int) *Timeline { return &Timeline{size: size} }

// Add appends an event. If the Timeline is full, Add removes the oldest event. Events that repeat get at most a quarter
// of the size. Add cuts long texts.
func (t *Timeline) Add(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Text, e.count, e.first = cut(e.Text), 1, e.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Repeats {
		t.makeSpaceForRepeated(&e)
	}
	e.Attrs = slices.Clone(e.Attrs[:min(len(e.Attrs), maxAttrs)])
	for i := range e.Attrs {
		e.Attrs[i].Value = cut(e.Attrs[i].Value)
	}
	t.lastID++
	e.ID = t.lastID
	if len(t.events) == t.size {
		t.events = slices.Delete(t.events, 0, 1)
	}
	t.events = append(t.events, e)
}

// makeSpaceForRepeated removes the event that e replaces, and adds its count to e. If too many events repeat, it removes
// the oldest of them.
func (t *Timeline) makeSpaceForRepeated(e *Event) {
	repeated, oldest := 0, 0
	for i := len(t.events) - 1; i >= 0; i-- {
		old := &t.events[i]
		if !old.Repeats {
			continue
		}
		if old.Text == e.Text && e.Time.Sub(old.Time) < foldTime {
			e.count, e.first = old.count+1, old.first
			e.Attrs = slices.Concat([]Attr{{"times", strconv.Itoa(e.count)}, {"first", e.first.UTC().Format(time.RFC3339)}}, e.Attrs)
			t.events = slices.Delete(t.events, i, i+1)
			return
		}
		repeated, oldest = repeated+1, i
	}
	if repeated > 0 && repeated >= t.size/4 {
		t.events = slices.Delete(t.events, oldest, oldest+1)
	}
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
