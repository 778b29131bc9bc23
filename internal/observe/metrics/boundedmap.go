package metrics

import (
	"maps"
	"slices"
	"sync"
)

// boundedMap maps texts of requests to values. It takes at most maxTexts texts.
type boundedMap[T any] struct {
	maxTexts int

	mu     sync.RWMutex
	values map[string]*T
}

// findOrCreate returns the value of text. If text is new, its value is the result of create. If text is new and the map
// is full, findOrCreate returns nil.
func (m *boundedMap[T]) findOrCreate(text []byte, create func() *T) *T {
	m.mu.RLock()
	value, isFull := m.values[string(text)], len(m.values) >= m.maxTexts
	m.mu.RUnlock()
	if value != nil || isFull {
		return value
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	value = m.values[string(text)]
	if value == nil && len(m.values) < m.maxTexts {
		if m.values == nil {
			m.values = map[string]*T{}
		}
		value = create()
		m.values[string(text)] = value
	}
	return value
}

func (m *boundedMap[T]) isFull() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.values) >= m.maxTexts
}

func (m *boundedMap[T]) deleteFunc(isOld func(*T) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.values, func(_ string, value *T) bool { return isOld(value) })
}

func (m *boundedMap[T]) allValues() []*T {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.values))
}
