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
	// IsExpired reports whether a value has expired at now. Run deletes expired values each minute.
	IsExpired func(value string, now time.Time) bool

	// Report returns the report of this process for the list of replicas. Memory sets the field Version.
	Report func() Replica

	mu      sync.Mutex
	fields  map[string]string // overrides, rules and switches, as in the hash in Redis; the map is never modified
	version int64
	history []Entry                   // the newest first
	apply   func(source.Update) error // nil while Run isn't running
}

var _ source.Source = (*Memory)(nil)

// Run implements source.Source.
func (m *Memory) Run(ctx context.Context, apply func(source.Update) error) error {
	m.mu.Lock()
	m.apply = apply
	m.set(ApplyWrites(m.fields, nil))
	m.mu.Unlock()
	for wait.Sleep(ctx, time.Minute) {
		now := time.Now()
		m.mu.Lock()
		unexpiredFields := maps.Clone(m.fields)
		maps.DeleteFunc(unexpiredFields, func(_, value string) bool { return m.IsExpired(value, now) })
		m.set(unexpiredFields)
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
		var oldValue *string
		if value, ok := m.fields[w.Field]; ok {
			oldValue = &value
		}
		if !w.Condition.Holds(oldValue) {
			return Result{}, &ConflictError{w.Field, oldValue}
		}
		r.OldValues = append(r.OldValues, oldValue)
	}
	m.version = r.Version
	m.history = slices.Insert(m.history, 0, NewEntry(c, r))
	m.history = m.history[:min(len(m.history), MaxHistory)]
	m.set(ApplyWrites(m.fields, c.Writes))
	return r, nil
}

// Set sets a field, but adds no entry to the history, as a change with redis-cli does.
func (m *Memory) Set(field, value string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set(ApplyWrites(m.fields, []Write{{Field: field, Value: &value}}))
}

// Fields returns all fields. The map is never modified.
func (m *Memory) Fields() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ApplyWrites(m.fields, nil)
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

// Replicas returns the report of this process.
func (m *Memory) Replicas(context.Context) ([]Replica, error) {
	r := m.Report()
	r.Version = m.Version()
	return []Replica{r}, nil
}

// ApplyWrites returns a copy of fields with the changes of writes.
func ApplyWrites(fields map[string]string, writes []Write) map[string]string {
	newFields := map[string]string{}
	maps.Copy(newFields, fields)
	for _, w := range writes {
		if w.Value == nil {
			delete(newFields, w.Field)
		} else {
			newFields[w.Field] = *w.Value
		}
	}
	return newFields
}
