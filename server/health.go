package server

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// healthServices are the names under which gRPC health answers: "" is the
// whole server, "ratelimit" is the name deployments of the incumbent probe.
// Both follow Health; the incumbent's "" is SERVING whatever happens.
var healthServices = []string{"", "ratelimit"}

// Health is the state of the process as the sum of named components: it is
// healthy while no component has reported a fault. It answers gRPC health and
// GET /healthcheck. Safe for concurrent use; make one with NewHealth.
type Health struct {
	grpc *health.Server

	mu     sync.Mutex
	faults map[string]string // component → what is wrong with it
	notes  map[string]string // component → what there is to know
}

// NewHealth returns a Health without components, which is healthy. A component
// that has to come up first is set to false before Serve.
func NewHealth() *Health {
	h := &Health{grpc: health.NewServer(), faults: make(map[string]string), notes: make(map[string]string)}
	h.publish()
	return h
}

// Set records the state of a component. detail says what is wrong, for
// operators to read at /healthcheck; it is not used when ok.
func (h *Health) Set(component string, ok bool, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		delete(h.faults, component)
	} else {
		h.faults[component] = detail
	}
	h.publish()
}

// Note records something to know about a component that makes nothing unhealthy,
// for operators to read at /healthcheck; empty ends it.
func (h *Health) Note(component, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if text == "" {
		delete(h.notes, component)
	} else {
		h.notes[component] = text
	}
}

// OK tells whether every component is in order.
func (h *Health) OK() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.faults) == 0
}

// Faults lists "component: detail" for every component that is not in order,
// sorted by component.
func (h *Health) Faults() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return lines(h.faults)
}

// Notes lists the notes in the same way.
func (h *Health) Notes() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return lines(h.notes)
}

func lines(texts map[string]string) []string {
	all := make([]string, 0, len(texts))
	for _, component := range slices.Sorted(maps.Keys(texts)) {
		all = append(all, component+": "+texts[component])
	}
	return all
}

// publish hands the state to gRPC health. It runs under mu, so that two
// changes cannot reach watchers in the wrong order.
func (h *Health) publish() {
	state := healthpb.HealthCheckResponse_SERVING
	if len(h.faults) > 0 {
		state = healthpb.HealthCheckResponse_NOT_SERVING
	}
	for _, name := range healthServices {
		h.grpc.SetServingStatus(name, state)
	}
}
