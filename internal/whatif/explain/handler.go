package explain

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// Path is the path of the handler on the debug listener.
const Path = "/explain"

// usage is shown beside the problem of a query.
const usage = "ask as /explain?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE… and repeat descriptor for each descriptor of the request;\n" +
	"limit=100/minute states a limit in the request; format=json or Accept: application/json returns JSON"

// ServeHTTP answers GET /explain. The answer is text, or JSON with ?format=json or
// Accept: application/json.
func (x *Explainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	wantsJSON := strings.Contains(r.Header.Get("Accept"), "application/json")
	respondError := func(code int, reason string) {
		if wantsJSON {
			writeJSON(w, code, map[string]any{"problems": []string{reason}})
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(code)
		fmt.Fprintf(w, "%s\n\n%s\n", reason, usage)
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		respondError(http.StatusMethodNotAllowed, "method: want GET")
		return
	}
	if len(r.URL.RawQuery) > MaxQueryBytes {
		respondError(http.StatusRequestURITooLong, fmt.Sprintf("query: got %d bytes, want at most %d", len(r.URL.RawQuery), MaxQueryBytes))
		return
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		respondError(http.StatusBadRequest, "invalid query: "+err.Error())
		return
	}
	switch format := q.Get(FormatParam); format {
	case "":
	case "json", "text":
		wantsJSON = format == "json"
	default:
		respondError(http.StatusBadRequest, "format: want json or text")
		return
	}
	req, err := ParseQuery(q)
	if err != nil {
		respondError(http.StatusBadRequest, err.Error())
		return
	}
	report := x.Explain(r.Context(), req)
	if wantsJSON {
		writeJSON(w, http.StatusOK, report)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = report.WriteText(w) // an error means that the caller has gone
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = reports.JSON(w, body) // an error means that the caller has gone
}
