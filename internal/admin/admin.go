// Package admin is the HTTP API for operators, below /admin/ on the debug listener. It overrides limits, creates
// rules and switches limits off at run time, and reads and resets counters.
//
// Terms:
//
//   - target: the name of a descriptor (descriptors.Target) in the query parameter
//     target, such as shop|tenant=acme. The target of an override has keys and values of
//     limits files or requests. The target of a counter has keys and values of a request.
//   - field, change, version, history, tag: have the same meaning as in package changes.
//   - caller: a client with a token, or with a client certificate that TLS has verified.
//   - audit: a log line for each change, and for each refused change, with the name of the caller.
//
// All answers are JSON. The answer to a rejected call has a list of problems.
package admin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-81f232ab/rls/descriptors/override"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/whatif/reports"
)

// Prefix is the start of the paths of all endpoints.
const Prefix = "/admin/"

// MaxTargetBytes is the largest length of the target of an override.
const MaxTargetBytes = 4 << 10

// Options are the options of New.
type Options struct {
	Callers             // the callers that may use the API
	Overrides Overrides // if nil, calls about overrides are answered with 501
	Counters  Counters

	// LimitsVersions returns the last versions of the limits without overrides, the newest first. It is nil if nobody
	// stores these versions.
	LimitsVersions func(context.Context) ([]changes.LimitsVersion, error)

	Log *slog.Logger // gets the audit, and lines about unauthorized calls; may be nil
}

// Overrides stores overrides, rules and switches for all replicas.
type Overrides interface {
	// States returns the states of all fields, sorted by field.
	States() []override.State

	// Outage returns why changes of other replicas can't be read, or nil.
	Outage() error

	// DryRun returns the state that the value of a field would have, and stores nothing.
	DryRun(field, value string) override.State

	// MakeChange makes a change. The change is in force on this replica when MakeChange returns. If a condition
	// of the change doesn't hold, the error is a changes.ConflictError.
	MakeChange(context.Context, changes.Change) (changes.Result, error)

	// History returns the last changes, the newest first.
	History(context.Context) ([]changes.Entry, error)

	// Replicas returns the last reports of the replicas, sorted by name.
	Replicas(context.Context) ([]changes.Replica, error)
}

// New returns the handler of the API. Requests must have their whole path.
func New(options Options) http.Handler {
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	return &handler{options: options, unauthorizedLogs: rate.NewLimiter(rate.Every(time.Second), 1)}
}

type handler struct {
	options          Options
	unauthorizedLogs *rate.Limiter
}

// answer is a status and a body, which is encoded as JSON.
type answer struct {
	code int
	body any // if body is an Override, the header has its ETag too
}

type call struct {
	*http.Request
	caller    Caller
	query     url.Values
	kind      override.Kind
	condition changes.Condition // the condition in If-Match and If-None-Match

	// The other parameters of the query.
	isDryRun, isForced bool
	count, maxCounters int64
	version            int64 // noVersion without the parameter
	reason             string
}

// target returns the target of the call. If the call has no target, target returns the prefix. Both start with a domain.
func (c *call) target() string { return cmp.Or(c.query.Get("target"), c.query.Get("prefix")) }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	caller, ok := h.options.Authorize(r)
	if !ok {
		h.answerUnauthorized(w, r)
		return
	}
	var methods, help []string
	for _, e := range endpoints {
		help = append(help, e.Method+" "+e.Path+": "+e.Help)
		if e.Path != r.URL.Path {
			continue
		}
		if e.Method == r.Method {
			call := &call{Request: r, caller: caller, kind: e.Kind, count: defaultHistoryCount, maxCounters: DefaultMaxCounters, version: noVersion}
			respond(w, h.serve(&e, call))
			return
		}
		methods = append(methods, e.Method)
	}
	if len(methods) > 0 {
		allowedMethods := strings.Join(methods, ", ")
		w.Header().Set("Allow", allowedMethods)
		respond(w, problem(http.StatusMethodNotAllowed, "%s: got method %s, want %s", r.URL.Path, truncate(r.Method), allowedMethods))
		return
	}
	respond(w, answer{code: http.StatusNotFound, body: Problems{[]string{"unknown path " + r.URL.Path}, help}})
}

func (h *handler) serve(endpoint *Endpoint, call *call) answer {
	if err := call.readParams(endpoint); err != nil {
		return problem(http.StatusBadRequest, "%s", err)
	}
	if !endpoint.isForCounters && h.options.Overrides == nil {
		return problem(http.StatusNotImplemented, "overrides are off; set OVERRIDES_ENABLED=true to store them in Redis")
	}
	refusal := ""
	isRead := endpoint.Method == http.MethodGet
	if call.caller.ReadOnly && !isRead {
		refusal = fmt.Sprintf("caller %s may only read", call.caller.Name)
	} else if isList := isRead && !call.query.Has("target"); endpoint.hasTarget && !isList {
		refusal = call.fieldRefusal(call.field())
	}
	if refusal != "" {
		if !isRead {
			h.audit(call, strings.ToLower(endpoint.Method), "outcome", "refused", "problem", refusal)
		}
		return problem(http.StatusForbidden, "%s", refusal)
	}
	return endpoint.serve(h, call)
}

func (c *call) fieldRefusal(field string) string {
	if c.caller.mayUseField(field) {
		return ""
	}
	return fmt.Sprintf("caller %s may only use the domains %s", c.caller.Name, strings.Join(c.caller.Domains, ", "))
}

func respond(w http.ResponseWriter, a answer) {
	if o, isOverride := a.body.(Override); isOverride && o.ETag != "" {
		w.Header().Set("ETag", strconv.Quote(o.ETag))
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.code)
	_ = reports.JSON(w, a.body) // an error means that the caller has closed the connection
}

func problem(code int, format string, args ...any) answer {
	return answer{code: code, body: Problems{Problems: []string{fmt.Sprintf(format, args...)}}}
}

func okAnswer(body any) answer { return answer{code: http.StatusOK, body: body} }
