package changes

import (
	"maps"
	"slices"
)

// Memory keeps fields and their history in memory. Its zero value is empty. It is not safe for
// concurrent use.
type Memory struct {
	fields  map[string]string
	version int64
	history []Entry // the newest first
}

// MakeChange makes a change, or returns a ConflictError.
func (m *Memory) MakeChange(c Change) (Result, error) {
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
	m.fields = Applied(m.fields, c.Writes)
	m.history = slices.Insert(m.history, 0, EntryOf(c, r))
	m.history = m.history[:min(len(m.history), MaxHistory)]
	return r, nil
}

// Set sets a field without a trace in the history, as redis-cli does.
func (m *Memory) Set(field, value string) {
	m.fields = Applied(m.fields, []Write{{Field: field, Value: &value}})
}

// Delete removes fields without a trace in the history.
func (m *Memory) Delete(isGone func(field, value string) bool) {
	m.fields = maps.Clone(m.fields)
	maps.DeleteFunc(m.fields, isGone)
}

// Fields returns all fields. The map is never modified.
func (m *Memory) Fields() map[string]string {
	if m.fields == nil {
		return map[string]string{}
	}
	return m.fields
}

// Version returns the version of the last change.
func (m *Memory) Version() int64 { return m.version }

// History returns the history, the newest change first.
func (m *Memory) History() []Entry { return slices.Clone(m.history) }

// Applied returns a copy of fields after writes.
func Applied(fields map[string]string, writes []Write) map[string]string {
	all := maps.Clone(fields)
	if all == nil {
		all = map[string]string{}
	}
	for _, w := range writes {
		if w.Value == nil {
			delete(all, w.Field)
		} else {
			all[w.Field] = *w.Value
		}
	}
	return all
}
