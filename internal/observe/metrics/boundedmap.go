package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
)

// boundedMap maps texts of requests to values. It takes a bounded number of texts, so that a
// flood of new texts can't fill the memory. A text that has been found often enough is found
// without a lock. No text takes a lock once the map is full.
type boundedMap[T any] struct {
	maxTexts int

	// published has the texts that are found without a lock. It never changes.
	published atomic.Pointer[map[string]*T]

	mu     sync.Mutex
	all    map[string]*T // published and newer texts
	misses int           // lookups since the last publication that published did not answer
	isFull atomic.Bool   // set after the last publication
}

// find returns the value of text. If text is new, find adds the result of create. find
// returns nil for a new text if the map is full.
func (m *boundedMap[T]) find(text []byte, create func() *T) *T {
	isFull := m.isFull.Load() // before published, which has all texts if the map is full
	if published := m.published.Load(); published != nil {
		if value := (*published)[string(text)]; value != nil {
			return value
		}
	}
	if isFull {
		return nil
	}
	return m.findOrAdd(text, create)
}

func (m *boundedMap[T]) findOrAdd(text []byte, create func() *T) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	value := m.all[string(text)]
	if value == nil && len(m.all) < m.maxTexts {
		if m.all == nil {
			m.all = map[string]*T{}
		}
		value = create()
		m.all[string(text)] = value
	}
	m.misses++
	switch {
	case value == nil:
		m.publish()
		m.isFull.Store(true)
	case m.misses > len(m.all):
		m.publish()
	}
	return value
}

// publish lets all texts be found without a lock. The caller holds m.mu.
func (m *boundedMap[T]) publish() {
	published := maps.Clone(m.all)
	m.published.Store(&published)
	m.misses = 0
}

// deleteFunc deletes the texts for whose values isOld returns true.
func (m *boundedMap[T]) deleteFunc(isOld func(*T) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.all, func(_ string, value *T) bool { return isOld(value) })
	m.publish()
	m.isFull.Store(len(m.all) >= m.maxTexts)
}

// values returns all values.
func (m *boundedMap[T]) values() []*T {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := make([]*T, 0, len(m.all))
	for _, value := range m.all {
		values = append(values, value)
	}
	return values
}
