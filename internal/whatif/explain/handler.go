package explain

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// Path is the path of the handler on the debug listener.
const Path = "/explain"

// usage is the text that follows the error of a query.
const usage = "ask as /explain?domain=DOMAIN&descriptor=KEY=VALUE,KEY=VALUE… and repeat descriptor for each descriptor of the request;\n" +
	"limit=100/minute states a limit in the request; format=json or Accept: application/json returns JSON"

// ServeHTTP answers GET /explain in text, or in JSON with ?format=json or Accept: application/json.
func (e *Explainer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	wantsJSON := strings.Contains(r.Header.Get("Accept"), "application/json")
	query, err := url.ParseQuery(r.URL.RawQuery)
	var req *rlsv3.RateLimitRequest
	code := http.StatusBadRequest
	switch format := query.Get(FormatParam); {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		code, err = http.StatusMethodNotAllowed, errors.New("method: want GET")
	case len(r.URL.RawQuery) > MaxQueryBytes:
		code, err = http.StatusRequestURITooLong, fmt.Errorf("query: got %d bytes, want at most %d", len(r.URL.RawQuery), MaxQueryBytes)
	case err != nil:
		err = fmt.Errorf("invalid query: %w", err)
	case format != "" && format != "json" && format != "text":
		err = errors.New("format: want json or text")
	default:
		wantsJSON = format == "json" || format == "" && wantsJSON
		req, err = ParseQuery(query)
	}
	switch {
	case err != nil && wantsJSON:
		writeJSON(w, code, map[string]any{"problems": []string{err.Error()}})
	case err != nil:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(code)
		fmt.Fprintf(w, "%s\n\n%s\n", err, usage)
	case wantsJSON:
		writeJSON(w, http.StatusOK, e.Explain(r.Context(), req))
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_ = e.Explain(r.Context(), req).WriteText(w) // an error means that the caller has closed the connection
	}
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = reports.JSON(w, body) // an error means that the caller has closed the connection
}
