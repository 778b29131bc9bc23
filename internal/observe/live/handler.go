package live

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// Paths of the handlers.
const (
	SnapshotPath = "/live"
	StreamPath   = "/live/stream"
	RulesPath    = "/live/rules"
	RulePath     = "/live/rule"
)

// RulesAnswer is the answer of Handlers.Rules.
type RulesAnswer struct {
	Rules []Rule `json:"rules"`
	More  int    `json:"more"` // the number of rules that Rules leaves out

	Problems []string `json:"problems,omitempty"` // why the newest limits or overrides are not in force
}

// RuleAnswer is the answer of Handlers.Rule.
type RuleAnswer struct {
	Rule Rule    `json:"rule"`
	Keys TopKeys `json:"keys"` // the busiest keys of this rule
}

// Handlers answer viewers. SeesKeys reports whether the caller may see values of requests and not only hashes.
type Handlers struct {
	*Live
	SeesKeys func(*http.Request) bool
}

// SnapshotFor returns the Snapshot for the caller of r, with hashed keys if the caller must not see values.
func (h Handlers) SnapshotFor(r *http.Request) *Snapshot {
	snapshot := *h.Live.Snapshot()
	snapshot.Keys = h.keysFor(r, snapshot.Keys)
	return &snapshot
}

// RuleFor returns the rule of a path, and its busiest keys for the caller of r.
func (h Handlers) RuleFor(r *http.Request, path string) (rule Rule, keys TopKeys, isKnown bool) {
	rule, keys, isKnown = h.Live.Rule(path)
	return rule, h.keysFor(r, keys), isKnown
}

func (h Handlers) keysFor(r *http.Request, keys TopKeys) TopKeys {
	if h.SeesKeys(r) {
		return keys
	}
	return h.hashedKeys(keys)
}

// Snapshot answers with the Snapshot as JSON.
func (h Handlers) Snapshot(w http.ResponseWriter, r *http.Request) { respond(w, h.SnapshotFor(r)) }

// Rules answers with the rules that have the parameter filter in their path or in a limit. Quiet rules are included.
func (h Handlers) Rules(w http.ResponseWriter, r *http.Request) {
	rules, hiddenRules := h.Live.Rules(r.URL.Query().Get("filter"))
	problems := h.Live.options.Limits().Problems
	respond(w, RulesAnswer{append([]Rule{}, rules...), hiddenRules, problems[:min(len(problems), maxProblems)]})
}

// Rule answers with the rule whose path is the parameter path, and with the busiest keys of that rule.
func (h Handlers) Rule(w http.ResponseWriter, r *http.Request) {
	rule, keys, isKnown := h.RuleFor(r, r.URL.Query().Get("path"))
	if !isKnown {
		http.Error(w, "no rule in force has this path; /live/rules lists all rules", http.StatusNotFound)
		return
	}
	respond(w, RuleAnswer{rule, keys})
}

// encode returns answer as JSON. It escapes <, > and &.
func encode(answer any) []byte {
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err) // JSON can express all values of an answer
	}
	return text
}

func respond(w http.ResponseWriter, answer any) {
	setHeaders(w, "application/json")
	_, _ = w.Write(append(encode(answer), '\n'))
}

func setHeaders(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

const (
	maxViewers = 20

	// writeTimeout is the time that a viewer may take to read a snapshot of the stream.
	writeTimeout = 10 * time.Second
)

// Stream sends a snapshot each second as a server-sent event, until the client leaves. If maxViewers viewers are connected,
// it refuses further viewers.
func (h Handlers) Stream(w http.ResponseWriter, r *http.Request) {
	select {
	case h.viewers <- struct{}{}:
		defer func() { <-h.viewers }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "live stream: 20 viewers are connected, which is the maximum; close another page or rls top", http.StatusServiceUnavailable)
		return
	}
	setHeaders(w, "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass each event on at once
	response := http.NewResponseController(w)
	for retry := "retry: 2000\n\n"; ; retry = "" { // a browser that loses the stream connects again after 2,000 ms
		event := retry + "event: snapshot\ndata: " + string(encode(h.SnapshotFor(r))) + "\n\n"
		_ = response.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write([]byte(event)); err != nil || response.Flush() != nil {
			return
		}
		if !wait.Sleep(r.Context(), time.Second) {
			return
		}
	}
}
