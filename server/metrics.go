package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
)

// MetricsListener is a plain-text HTTP listener that serves metrics only. It is for
// deployments that scrape a separate port.
type MetricsListener struct {
	Addr
	Path    string // the whole path; default "/metrics"
	Handler http.Handler
}

// listenMetrics binds the address of m. An address in use is an error, unlike for the
// debug listener. Missing metrics would otherwise be noticed only when they are needed.
func listenMetrics(m *MetricsListener, log *slog.Logger) (*httpListener, error) {
	path := cmp.Or(m.Path, "/metrics")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("metrics listener: path %q must begin with /", path)
	}
	if m.Handler == nil {
		return nil, errors.New("metrics listener: no handler")
	}
	return listenHTTP("metrics", m.Addr, nil, onlyAt(path, m.Handler), log)
}

// onlyAt serves h at path. Other paths get a 404 that names path. A ServeMux would take
// path as a pattern and panic on a bad one.
func onlyAt(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			httpError(w, http.StatusNotFound, "metrics are at "+path)
			return
		}
		h.ServeHTTP(w, r)
	})
}
