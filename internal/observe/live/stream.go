package live

import (
	"errors"
	"sync"
)

// maxViewers is the maximum number of viewers of the stream.
const maxViewers = 20

// hub sends events to viewers. All viewers share one snapshot and its event.
type hub struct {
	mu      sync.Mutex
	viewers map[*viewer]bool
}

// viewer is a reader of the stream.
type viewer struct {
	events   chan []byte // the last event that the viewer has not read
	seesKeys bool
}

var errManyViewers = errors.New("live stream: 20 viewers are connected, which is the maximum; close another page or rls top")

// addViewer adds a viewer.
func (h *hub) addViewer(seesKeys bool) (*viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.viewers) >= maxViewers {
		return nil, errManyViewers
	}
	if h.viewers == nil {
		h.viewers = map[*viewer]bool{}
	}
	v := &viewer{events: make(chan []byte, 1), seesKeys: seesKeys}
	h.viewers[v] = true
	return v, nil
}

func (h *hub) removeViewer(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
}

// sendEvent sends an event to all viewers. If a viewer has not read the event before, the newer
// event replaces it. Without viewers, send does nothing.
func (h *hub) sendEvent(event func(seesKeys bool) []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var events [2][]byte // by seesKeys
	for v := range h.viewers {
		i := 0
		if v.seesKeys {
			i = 1
		}
		if events[i] == nil {
			events[i] = event(v.seesKeys)
		}
		select {
		case <-v.events:
		default:
		}
		v.events <- events[i]
	}
}
