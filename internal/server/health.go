package server

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// healthServices are the service names for which gRPC health answers. "" means the whole server, and "ratelimit" is the
// name in the incumbent.
var healthServices = []string{"", "ratelimit"}

// Health is the state of the process. The process is healthy if no component has a fault. Health answers gRPC health
// and GET /healthcheck. It is safe for concurrent use.
type Health struct {
	grpc *health.Server

	mu     sync.Mutex
	log    *slog.Logger      // gets the changes of the state of the process; nil before logTo
	faults map[string]string // the key is the name of a component
	notes  map[string]string // the key is the name of a component
}

// NewHealth returns a Health without faults and notes.
func NewHealth() *Health {
	h := &Health{grpc: health.NewServer(), faults: make(map[string]string), notes: make(map[string]string)}
	h.Set("server", true, "") // makes gRPC health answer SERVING
	return h
}

// Set records whether a component is healthy. If isHealthy is false, /healthcheck shows detail as the fault. Clients that
// watch gRPC health see changes in the order of the calls of Set.
func (h *Health) Set(component string, isHealthy bool, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wasHealthy := len(h.faults) == 0
	if isHealthy {
		delete(h.faults, component)
	} else {
		h.faults[component] = detail
	}
	state := healthpb.HealthCheckResponse_SERVING
	if len(h.faults) > 0 {
		state = healthpb.HealthCheckResponse_NOT_SERVING
	}
	for _, name := range healthServices {
		h.grpc.SetServingStatus(name, state)
	}
	if isNowHealthy := len(h.faults) == 0; h.log != nil && isNowHealthy != wasHealthy {
		h.logState()
	}
}

// logTo logs the current faults to logger. Later, Set logs to logger when the process becomes healthy or unhealthy.
func (h *Health) logTo(logger *slog.Logger) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = logger
	if len(h.faults) > 0 {
		h.logState()
	}
}

func (h *Health) logState() {
	if len(h.faults) == 0 {
		h.log.Info("readiness changed", "ready", true)
		return
	}
	h.log.Warn("readiness changed", "ready", false, "reason", strings.Join(sortedLines(h.faults), "; "))
}

// Note records a note on a component. /healthcheck shows the note. An empty text removes the note.
func (h *Health) Note(component, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if text == "" {
		delete(h.notes, component)
	} else {
		h.notes[component] = text
	}
}

// Lines returns "component: text" for each fault and each note, sorted by component.
func (h *Health) Lines() (faults, notes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return sortedLines(h.faults), sortedLines(h.notes)
}

func sortedLines(texts map[string]string) []string {
	lines := make([]string, 0, len(texts))
	for _, component := range slices.Sorted(maps.Keys(texts)) {
		lines = append(lines, component+": "+texts[component])
	}
	return lines
}
