// Package admin is the HTTP API by which operators override limits at run time, and
// see and reset counters. It is for the debug listener, below /admin/.
//
// Terms:
//
//   - target: the name of a descriptor (descriptors.Target), as the query parameter
//     target: shop|tenant=acme. For an override its keys and values are those of the
//     limits files, or of requests; for a counter those of a request;
//   - caller: who has shown a token, or a client certificate that TLS has verified;
//   - audit: one log line for each change that was made, and who made it.
//
// All answers are JSON. Those that refuse have problems, a list of texts.
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

	"github.com/seed-81f232ab/rls/descriptors"
)

// Prefix is what the paths of all endpoints begin with.
const Prefix = "/admin/"

// MaxTarget is how many bytes the target of an override can have.
const MaxTarget = 4 << 10

// Options of New.
type Options struct {
	// Tokens are those that may call, by the name that the audit gives them. An empty
	// one lets nobody in.
	Tokens map[string]string

	// ClientCerts lets callers in whose certificate TLS has verified. Their name is
	// its common name, else its first DNS name or URI.
	ClientCerts bool

	// Overrides is nil where there can't be any: calls for them are then answered
	// with 501.
	Overrides Overrides

	Counters Counters

	// Log gets the audit and the calls that are refused; nil: nobody does.
	Log *slog.Logger
}

// Overrides holds overrides for all replicas.
type Overrides interface {
	// States tells of all of them, by target. It is cheap.
	States() []descriptors.OverrideState

	// Try tells what would become of one, without keeping it.
	Try(target, value string) descriptors.OverrideState

	// Put sets the value of a target, Delete removes it. They return what was there
	// before, if there was something. What they did is in force here when they return.
	Put(ctx context.Context, target, value string) (old string, had bool, err error)
	Delete(ctx context.Context, target string) (old string, had bool, err error)
}

// New returns the API. It takes requests with their whole path.
func New(o Options) http.Handler {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Counters.Now == nil {
		o.Counters.Now = time.Now
	}
	return &handler{o: o, keys: newKeyring(o.Tokens), refusals: rate.NewLimiter(rate.Every(time.Second), 1)}
}

type handler struct {
	o        Options
	keys     keyring
	refusals *rate.Limiter // of their log lines
}

// endpoint is one method of one path. serve returns the status and what to encode.
type endpoint struct {
	method, path, help string
	params             []string // of the query
	serve              func(h *handler, c *call) (int, any)
}

var endpoints = []endpoint{
	{"GET", Prefix + "overrides", "all overrides, or that of ?target=", []string{"target"}, (*handler).getOverrides},
	{"PUT", Prefix + "overrides", "override the limits of ?target= by the JSON object in the body; ?dry_run=true only tells what would be", []string{"target", "dry_run"}, (*handler).putOverride},
	{"DELETE", Prefix + "overrides", "remove the override of ?target=", []string{"target"}, (*handler).deleteOverride},
	{"GET", Prefix + "counters", "what requests with the keys and values of ?target= have spent", []string{"target"}, (*handler).getCounter},
	{"DELETE", Prefix + "counters", "give back all of it", []string{"target"}, (*handler).resetCounter},
}

// call is a request of a caller.
type call struct {
	*http.Request
	by    string // the caller's name
	query url.Values
}

func (c *call) target() string { return c.query.Get("target") }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	by, ok := h.caller(r)
	if !ok {
		h.refuse(w, r)
		return
	}
	var methods []string
	for _, e := range endpoints {
		if e.path != r.URL.Path {
			continue
		}
		if e.method == r.Method {
			code, answer := h.serve(&e, &call{Request: r, by: by})
			respond(w, code, answer)
			return
		}
		methods = append(methods, e.method)
	}
	if len(methods) > 0 {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		code, answer := problem(http.StatusMethodNotAllowed, "%s takes %s", r.URL.Path, strings.Join(methods, ", "))
		respond(w, code, answer)
		return
	}
	answer := Problems{Problems: []string{"there is nothing at " + r.URL.Path}}
	for _, e := range endpoints {
		answer.Endpoints = append(answer.Endpoints, e.method+" "+e.path+": "+e.help)
	}
	respond(w, http.StatusNotFound, answer)
}

// serve reads the query, so that a misspelt parameter changes nothing.
func (h *handler) serve(e *endpoint, c *call) (int, any) {
	var err error
	if c.query, err = url.ParseQuery(c.URL.RawQuery); err != nil {
		return problem(http.StatusBadRequest, "the query can't be read: %s", err)
	}
	for name, values := range c.query {
		if !slices.Contains(e.params, name) {
			return problem(http.StatusBadRequest, "unknown parameter %q; there can be %s", cut(name), strings.Join(e.params, ", "))
		}
		if len(values) > 1 {
			return problem(http.StatusBadRequest, "%s is given more than once", name)
		}
	}
	return e.serve(h, c)
}

func respond(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // limits have a > in their paths
	e.SetIndent("", "  ")
	_ = e.Encode(answer) // the caller is gone: nobody to tell
}

// problem is the answer that says one thing.
func problem(code int, format string, args ...any) (int, any) {
	return code, Problems{Problems: []string{fmt.Sprintf(format, args...)}}
}
