// Package timeline keeps the last events of the process that an operator asks about after
// an incident: starts, reloads, rejected limits, overrides, outages, drains, certificates.
package timeline

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/fields"
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

	// Repeats says that the event can come often, such as an outage. If the Timeline has an event with the same text that
	// is younger than mergeTime, the new event replaces the old event. Events that repeat never remove other events.
	Repeats bool `json:"-"`

	mergedEvents int       // the number of events that this event stands for
	firstTime    time.Time // the time of the first of these events
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

const mergeTime = 15 * time.Minute

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
func (t *Timeline) Add(event Event) {
	if event.Time.IsZero() {
		event.Time = time.Now()
	}
	event.Text, event.mergedEvents, event.firstTime = fields.Cut(event.Text, maxTextBytes), 1, event.Time
	t.mu.Lock()
	defer t.mu.Unlock()
	if event.Repeats {
		t.removeOldEvent(&event)
	}
	event.Attrs = slices.Clone(event.Attrs[:min(len(event.Attrs), maxAttrs)])
	for i := range event.Attrs {
		event.Attrs[i].Value = fields.Cut(event.Attrs[i].Value, maxTextBytes)
	}
	t.lastID++
	event.ID = t.lastID
	if len(t.events) == t.size {
		t.events = slices.Delete(t.events, 0, 1)
	}
	t.events = append(t.events, event)
}

// removeOldEvent removes the old event that event replaces, and adds the mergedEvents of the old event to event. If event
// replaces no event and too many events repeat, removeOldEvent removes the oldest event that repeats.
func (t *Timeline) removeOldEvent(event *Event) {
	repeatedCount, oldestIndex := 0, 0
	for i := len(t.events) - 1; i >= 0; i-- {
		oldEvent := &t.events[i]
		if !oldEvent.Repeats {
			continue
		}
		if oldEvent.Text == event.Text && event.Time.Sub(oldEvent.Time) < mergeTime {
			event.mergedEvents, event.firstTime = oldEvent.mergedEvents+1, oldEvent.firstTime
			event.Attrs = slices.Concat([]Attr{{"times", strconv.Itoa(event.mergedEvents)}, {"first", event.firstTime.UTC().Format(time.RFC3339)}}, event.Attrs)
			t.events = slices.Delete(t.events, i, i+1)
			return
		}
		repeatedCount, oldestIndex = repeatedCount+1, i
	}
	if repeatedCount > 0 && repeatedCount >= t.size/4 {
		t.events = slices.Delete(t.events, oldestIndex, oldestIndex+1)
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
