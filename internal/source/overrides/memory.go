package overrides

import (
	"context"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/changes"
)

// Memory is a source of overrides that has them in memory, for a service without Redis. It is
// safe for concurrent use.
type Memory struct {
	expired func(value string, now time.Time) bool
	report  func() changes.Replica

	mu     sync.Mutex
	memory changes.Memory
	apply  func(source.Update) error // nil while Run isn't running
}

var _ source.Source = (*Memory)(nil)

// NewMemory returns a Memory without overrides. expired reports whether a value has expired at
// now. Memory deletes such values each minute. report returns the report of this process.
func NewMemory(expired func(value string, now time.Time) bool, report func() changes.Replica) *Memory {
	return &Memory{expired: expired, report: report}
}

// Run implements source.Source.
func (m *Memory) Run(ctx context.Context, apply func(source.Update) error) error {
	m.change(func() { m.apply = apply })
	for wait.Sleep(ctx, time.Minute) {
		now := time.Now()
		m.change(func() {
			m.memory.Delete(func(_, value string) bool { return m.expired(value, now) })
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.apply = nil
	return ctx.Err()
}

// change calls f and applies all overrides.
func (m *Memory) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	if m.apply != nil {
		_ = m.apply(source.Update{Overrides: m.memory.Fields()})
	}
}

// MakeChange makes a change. If a condition doesn't hold, the error is a changes.ConflictError.
func (m *Memory) MakeChange(_ context.Context, c changes.Change) (r changes.Result, err error) {
	m.change(func() { r, err = m.memory.MakeChange(c) })
	return r, err
}

// History returns the last changes, the newest first.
func (m *Memory) History(context.Context) ([]changes.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memory.History(), nil
}

// Version returns the version of the last change.
func (m *Memory) Version() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.memory.Version()
}

// Replicas returns this process alone.
func (m *Memory) Replicas(context.Context) ([]changes.Replica, error) {
	r := m.report()
	r.Version = m.Version()
	return []changes.Replica{r}, nil
}
