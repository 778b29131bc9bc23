// Package admin is the HTTP API for operators, below /admin/ on the debug listener. It
// overrides limits, creates rules and switches limits off at run time, and reads and resets
// counters.
//
// Terms:
//
//   - target: the name of a descriptor (descriptors.Target) in the query parameter
//     target, such as shop|tenant=acme. The target of an override has keys and values of
//     limits files or requests. The target of a counter has those of a request.
//   - change, version, history, tag: as in package changes;
//   - caller: a client with a token, or with a client certificate that TLS has verified.
//   - audit: a log line for each change, and for each refused change, with the name of the caller.
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
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/source/changes"
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

	// Log gets the audit and unauthorized calls; default none. AuditLog gets the audit too, unless
	// it is nil.
	Log, AuditLog *slog.Logger
}

// Overrides stores overrides, rules and switches for all replicas.
type Overrides interface {
	// States returns the states of all fields, sorted by field.
	States() []override.State

	// DryRun returns the state that the value of a field would have, and stores nothing.
	DryRun(field, value string) override.State

	// Make makes a change. It is in force on this replica when Make returns. If a condition
	// of the change doesn't hold, the error is a changes.ConflictError.
	Make(context.Context, changes.Change) (changes.Result, error)

	// History returns the last changes, the newest first.
	History(context.Context) ([]changes.Entry, error)

	// Replicas returns what the replicas last reported, sorted by name.
	Replicas(context.Context) ([]changes.Replica, error)
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

	kind      override.Kind // of the fields
	counters  bool          // needs no Overrides
	hasTarget bool          // a caller needs access to the domain of the target
}

// answer is a status and a body, which is encoded as JSON.
type answer struct {
	code int
	body any
	tag  string // the ETag, or empty
}

// kindEndpoints are the paths of the kinds of fields, with the help of their methods.
var kindEndpoints = []struct {
	kind              override.Kind
	path              string
	params            []string
	read, put, remove string
}{
	{
		override.KindOverride, Prefix + "overrides",
		[]string{"target"},
		"returns all overrides, or the override of ?target=",
		"overrides the limits of ?target= by the JSON object in the body", "deletes the override of ?target=",
	},
	{
		override.KindRule, Prefix + "rules",
		[]string{"target"},
		"returns all rules of run time, or the rule of ?target=",
		"creates a rule for ?target= with the fields of a descriptor in the body", "deletes the rule of ?target=",
	},
	{
		override.KindSwitch, Prefix + "switches",
		[]string{"target"},
		"returns all switches, or the switch of ?target=",
		"takes the limits of ?target= out of force: a rule, a domain, or all if it is empty", "puts the limits of ?target= in force again",
	},
	{
		override.KindShadowMode, Prefix + "shadow-mode", nil, "returns the switch that replaces SHADOW_MODE",
		`replaces SHADOW_MODE by the body, such as {"shadow_mode": true}`, "restores SHADOW_MODE",
	},
}

var endpoints = func() []endpoint {
	all := []endpoint{
		{method: "GET", path: Prefix + "limits", help: "returns all overrides, rules and switches", serve: (*handler).getAll},
		{method: "GET", path: Prefix + "status", help: "returns the replicas, the version of each, and the switches", serve: (*handler).getStatus},
		{method: "GET", path: Prefix + "history", help: "returns the last changes, the newest first; ?target= of one target, ?count=20", params: []string{"target", "count"}, serve: (*handler).getHistory},
		{method: "POST", path: Prefix + "rollback", help: "restores the limits before the last change, or those of ?version=; ?dry_run=true changes nothing, ?force=true replaces values that the history does not have", params: []string{"version", "dry_run", "force", "reason"}, serve: (*handler).rollBack, kind: override.KindOverride},
		{method: "GET", path: Prefix + "counters", help: "returns the counters of requests with the keys and values of ?target=", params: []string{"target"}, serve: (*handler).getCounter, kind: override.KindOverride, counters: true, hasTarget: true},
		{method: "DELETE", path: Prefix + "counters", help: "resets these counters; ?prefix= in place of ?target= resets all counters that start with its entries, at most ?max=10000, and ?dry_run=true only counts them", params: []string{"target", "prefix", "max", "dry_run"}, serve: (*handler).resetAny, kind: override.KindOverride, counters: true, hasTarget: true},
	}
	for _, k := range kindEndpoints {
		all = append(all,
			endpoint{method: "GET", path: k.path, help: k.read, params: k.params, serve: (*handler).getFields, kind: k.kind, hasTarget: true},
			endpoint{method: "PUT", path: k.path, help: k.put + "; ?dry_run=true changes nothing", params: append(k.params, "dry_run"), serve: (*handler).putField, kind: k.kind, hasTarget: true},
			endpoint{method: "DELETE", path: k.path, help: k.remove, params: append(k.params, "reason"), serve: (*handler).deleteField, kind: k.kind, hasTarget: true},
		)
	}
	return all
}()

// call is a request of an authorized caller.
type call struct {
	*http.Request
	by    Caller
	query url.Values
	kind  override.Kind
}

// target returns the target of the call, or else its prefix. Both start with a domain.
func (c *call) target() string { return cmp.Or(c.query.Get("target"), c.query.Get("prefix")) }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	by, ok := h.o.Authorize(r)
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
			respond(w, h.serve(&e, &call{Request: r, by: by, kind: e.kind}))
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
	respond(w, answer{code: http.StatusNotFound, body: Problems{[]string{"unknown path " + r.URL.Path}, help}})
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
	if !e.counters && h.o.Overrides == nil {
		return problem(http.StatusNotImplemented, "overrides are off; set OVERRIDES_ENABLED=true to store them in Redis")
	}
	if e.method != http.MethodGet && !e.counters && slices.Contains(e.params, "target") && !c.query.Has("target") {
		return problem(http.StatusBadRequest, "parameter target is missing")
	}
	if refusal := c.refusal(e); refusal != "" {
		if e.method != http.MethodGet {
			h.audit(c, strings.ToLower(e.method), "outcome", "refused", "problem", refusal)
		}
		return problem(http.StatusForbidden, "%s", refusal)
	}
	return e.serve(h, c)
}

// refusal returns why the caller may not use an endpoint, or an empty text.
func (c *call) refusal(e *endpoint) string {
	if c.by.ReadOnly && e.method != http.MethodGet {
		return fmt.Sprintf("caller %s may only read", c.by.Name)
	}
	if isList := e.method == http.MethodGet && !c.query.Has("target"); e.hasTarget && !isList {
		return c.refusalOf(override.Field(e.kind, c.target()))
	}
	return ""
}

// refusalOf returns why the caller may not use a field, or an empty text.
func (c *call) refusalOf(field string) string {
	if c.by.mayUse(field) {
		return ""
	}
	return fmt.Sprintf("caller %s may only use the domains %s", c.by.Name, strings.Join(c.by.Domains, ", "))
}

func respond(w http.ResponseWriter, a answer) {
	if a.tag != "" {
		w.Header().Set("ETag", strconv.Quote(a.tag))
	}
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
	return answer{code: code, body: Problems{Problems: []string{fmt.Sprintf(format, args...)}}}
}
