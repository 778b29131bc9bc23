package server

import "net/http"

// MetricsListener is a plain-text HTTP listener that serves metrics only.
type MetricsListener struct {
	Addr
	Path    string // the whole path, such as "/metrics", which is the default
	Handler http.Handler
}

// onlyAt serves h at path only. A ServeMux would take path as a pattern and panic on a bad one.
func onlyAt(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			httpError(w, http.StatusNotFound, "metrics are at "+path)
			return
		}
		h.ServeHTTP(w, r)
	})
}
