package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
)

// MetricsListener is a plain-text HTTP listener with nothing on it but metrics,
// for deployments that scrape a port of their own.
type MetricsListener struct {
	Addr
	Path    string // matched exactly; default "/metrics"
	Handler http.Handler
}

// listenMetrics returns nil for nil. Unlike debug, an address that is taken is
// an error: that nobody sees the metrics is noticed when they are needed.
func listenMetrics(m *MetricsListener, log *slog.Logger) (*httpListener, error) {
	if m == nil {
		return nil, nil
	}
	path := cmp.Or(m.Path, "/metrics")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("metrics listener: path %q does not begin with /", path)
	}
	if m.Handler == nil {
		return nil, errors.New("metrics listener: the handler is missing")
	}
	return listenHTTP("metrics", m.Addr, nil, onlyAt(path, m.Handler), log)
}

// onlyAt serves h at path and says at every other where metrics are. It is not
// a ServeMux, which takes patterns and panics on a bad one.
func onlyAt(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			httpError(w, http.StatusNotFound, "metrics are at "+path)
			return
		}
		h.ServeHTTP(w, r)
	})
}
