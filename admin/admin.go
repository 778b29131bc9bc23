// Package admin is the HTTP API for operators, below /admin/ on the debug listener. It
// overrides limits at run time, and reads and resets counters.
//
// Terms:
//
//   - target: the name of a descriptor (descriptors.Target) in the query parameter
//     target, such as shop|tenant=acme. The target of an override has keys and values of
//     limits files or requests. The target of a counter has those of a request.
//   - caller: a client with a token, or with a client certificate that TLS has verified.
//   - audit: a log line for each change, with the name of the caller.
//
// All answers are JSON. The answer to a rejected call has a list of problems.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/descriptors/override"
)

// Prefix is the start of the paths of all endpoints.
const Prefix = "/admin/"

// MaxTarget is the largest length of the target of an override, in bytes.
const MaxTarget = 4 << 10

// Options are the options of New.
type Options struct {
	// Callers are the callers that may use the API. The audit shows their names.
	Callers

	// Overrides stores overrides. If it is nil, calls about overrides are answered with
	// 501.
	Overrides Overrides

	Counters Counters

	// Log gets the audit and unauthorized calls; default none.
	Log *slog.Logger
}

// Overrides stores overrides for all replicas.
type Overrides interface {
	// States returns the states of all overrides, sorted by target.
	States() []override.State

	// DryRun returns the state that an override would have, and stores nothing.
	DryRun(target, value string) override.State

	// Put sets the value of a target, and Delete removes it. Both return the old value, if
	// any. The change is in force on this replica when they return.
	Put(ctx context.Context, target, value string) (old string, existed bool, err error)
	Delete(ctx context.Context, target string) (old string, existed bool, err error)
}

// New returns the handler of the API. Requests must have their whole path.
func New(o Options) http.Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Counters.Now == nil {
		o.Counters.Now = time.Now
	}
	return &handler{o: o, unauthorizedLogs: rate.NewLimiter(rate.Every(time.Second), 1)}
}

type handler struct {
	o                Options
	unauthorizedLogs *rate.Limiter
}

// endpoint is a method of a path.
type endpoint struct {
	method, path, help string
	params             []string // of the query
	serve              func(h *handler, c *call) answer
}

// answer is a status and a body, which is encoded as JSON.
type answer struct {
	code int
	body any
}

var endpoints = []endpoint{
	{"GET", Prefix + "overrides", "returns all overrides, or the override of ?target=", []string{"target"}, (*handler).getOverrides},
	{"PUT", Prefix + "overrides", "overrides the limits of ?target= by the JSON object in the body; ?dry_run=true changes nothing", []string{"target", "dry_run"}, (*handler).putOverride},
	{"DELETE", Prefix + "overrides", "deletes the override of ?target=", []string{"target"}, (*handler).deleteOverride},
	{"GET", Prefix + "counters", "returns the counters of requests with the keys and values of ?target=", []string{"target"}, (*handler).getCounter},
	{"DELETE", Prefix + "counters", "resets these counters", []string{"target"}, (*handler).resetCounter},
}

// call is a request of an authorized caller.
type call struct {
	*http.Request
	by    string // the caller's name
	query url.Values
}

func (c *call) target() string { return c.query.Get("target") }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	by, ok := h.o.Name(r)
	if !ok {
		h.unauthorized(w, r)
		return
	}
	var methods, help []string
	for _, e := range endpoints {
		help = append(help, e.method+" "+e.path+": "+e.help)
		if e.path != r.URL.Path {
			continue
		}
		if e.method == r.Method {
			respond(w, h.serve(&e, &call{Request: r, by: by}))
			return
		}
		methods = append(methods, e.method)
	}
	if len(methods) > 0 {
		allowed := strings.Join(methods, ", ")
		w.Header().Set("Allow", allowed)
		respond(w, problem(http.StatusMethodNotAllowed, "%s: got method %s, want %s", r.URL.Path, truncate(r.Method), allowed))
		return
	}
	respond(w, answer{http.StatusNotFound, Problems{[]string{"unknown path " + r.URL.Path}, help}})
}

// serve answers a call. It rejects unknown parameters, so that a misspelt one changes
// nothing.
func (h *handler) serve(e *endpoint, c *call) answer {
	var err error
	if c.query, err = url.ParseQuery(c.URL.RawQuery); err != nil {
		return problem(http.StatusBadRequest, "invalid query: %s", err)
	}
	for name, values := range c.query {
		if !slices.Contains(e.params, name) {
			return problem(http.StatusBadRequest, "unknown parameter %q; want %s", truncate(name), strings.Join(e.params, ", "))
		}
		if len(values) > 1 {
			return problem(http.StatusBadRequest, "parameter %s is given more than once", name)
		}
	}
	if e.path == Prefix+"overrides" && h.o.Overrides == nil {
		return problem(http.StatusNotImplemented, "overrides are off; set OVERRIDES_ENABLED=true to store them in Redis")
	}
	return e.serve(h, c)
}

func respond(w http.ResponseWriter, a answer) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // paths of limits contain >
	e.SetIndent("", "  ")
	_ = e.Encode(a.body) // an error means that the caller has gone
}

// problem returns an answer with one problem.
func problem(code int, format string, args ...any) answer {
	return answer{code, Problems{Problems: []string{fmt.Sprintf(format, args...)}}}
}
