package changes

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
)

// Memory is a source of overrides without Redis. Its zero value is empty. It is safe for concurrent use.
type Memory struct {
	// Expired reports whether a value has expired at now. Run deletes such values each minute.
	Expired func(value string, now time.Time) bool

	// Report returns the report of this process, without its version.
	Report func() Replica

	mu      sync.Mutex
	fields  map[string]string // the map is never modified
	version int64
	history []Entry                   // the newest first
	apply   func(source.Update) error // nil while Run isn't running
}

var _ source.Source = (*Memory)(nil)

// Run implements source.Source.
func (m *Memory) Run(ctx context.Context, apply func(source.Update) error) error {
	m.mu.Lock()
	m.apply = apply
	m.set(Applied(m.fields, nil))
	m.mu.Unlock()
	for wait.Sleep(ctx, time.Minute) {
		now := time.Now()
		m.mu.Lock()
		kept := maps.Clone(m.fields)
		maps.DeleteFunc(kept, func(_, value string) bool { return m.Expired(value, now) })
		m.set(kept)
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply = nil
	return ctx.Err()
}

// set replaces all fields. The caller holds the mutex.
func (m *Memory) set(fields map[string]string) {
	m.fields = fields
	if m.apply != nil {
		_ = m.apply(source.Update{Overrides: fields})
	}
}

// MakeChange makes a change, or returns a ConflictError.
func (m *Memory) MakeChange(_ context.Context, c Change) (Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Result{Version: m.version + 1}
	for _, w := range c.Writes {
		var old *string
		if value, ok := m.fields[w.Field]; ok {
			old = &value
		}
		if !w.Condition.Holds(old) {
			return Result{}, &ConflictError{w.Field, old}
		}
		r.OldValues = append(r.OldValues, old)
	}
	m.version = r.Version
	m.history = slices.Insert(m.history, 0, EntryOf(c, r))
	m.history = m.history[:min(len(m.history), MaxHistory)]
	m.set(Applied(m.fields, c.Writes))
	return r, nil
}

// Set sets a field without a trace in the history, as redis-cli does.
func (m *Memory) Set(field, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(Applied(m.fields, []Write{{Field: field, Value: &value}}))
}

// Fields returns all fields. The map is never modified.
func (m *Memory) Fields() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Applied(m.fields, nil)
}

// Version returns the version of the last change.
func (m *Memory) Version() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// History returns the last changes, the newest first.
func (m *Memory) History(context.Context) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.history), nil
}

// Replicas returns this process alone.
func (m *Memory) Replicas(context.Context) ([]Replica, error) {
	r := m.Report()
	r.Version = m.Version()
	return []Replica{r}, nil
}

// Applied returns a copy of fields after writes.
func Applied(fields map[string]string, writes []Write) map[string]string {
	all := map[string]string{}
	maps.Copy(all, fields)
	for _, w := range writes {
		if w.Value == nil {
			delete(all, w.Field)
		} else {
			all[w.Field] = *w.Value
		}
	}
	return all
}
