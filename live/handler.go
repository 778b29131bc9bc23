package live

import (
	"encoding/json"
	"net/http"
)

// SnapshotHandler answers with a Snapshot as JSON.
func (l *Live) SnapshotHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		e := json.NewEncoder(w)
		e.SetEscapeHTML(true) // an answer that a browser takes for HTML does no harm
		_ = e.Encode(l.Snapshot())
	})
}
