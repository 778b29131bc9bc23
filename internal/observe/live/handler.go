package live

import (
	"encoding/json"
	"net/http"
	"time"
)

// Paths of the handlers.
const (
	SnapshotPath = "/live"
	StreamPath   = "/live/stream"
	RulesPath    = "/live/rules"
	RulePath     = "/live/rule"
)

// RulesAnswer is the answer of RulesHandler.
type RulesAnswer struct {
	Rules []Rule `json:"rules"`
	More  int    `json:"more"` // rules that Rules leaves out
}

// RuleAnswer is the answer of RuleHandler.
type RuleAnswer struct {
	Rule Rule    `json:"rule"`
	Keys TopKeys `json:"keys"` // of this rule
}

// snapshotFor returns the snapshot for a viewer. Its keys are hashed if the viewer must not see
// values of requests.
func (l *Live) snapshotFor(seesKeys bool) *Snapshot {
	s := l.Snapshot()
	if seesKeys {
		return s
	}
	public := *s
	public.Keys = l.hashedKeys(s.Keys)
	return &public
}

// snapshotEvent returns the snapshot for a viewer as a server-sent event.
func (l *Live) snapshotEvent(seesKeys bool) []byte {
	return append(append([]byte("event: snapshot\ndata: "), l.snapshotJSON(seesKeys)...), "\n\n"...)
}

// snapshotJSON returns the snapshot for a viewer as JSON.
func (l *Live) snapshotJSON(seesKeys bool) []byte {
	text, err := json.Marshal(l.snapshotFor(seesKeys)) // escapes <, > and &
	if err != nil {
		panic(err) // a Snapshot has no value that JSON can't express
	}
	return text
}

// Handlers answer viewers. SeesKeys reports whether the caller may see values of requests.
// Other callers get hashed keys.
type Handlers struct {
	*Live
	SeesKeys func(*http.Request) bool
}

// SnapshotFor returns the Snapshot for the caller of r.
func (h Handlers) SnapshotFor(r *http.Request) *Snapshot { return h.snapshotFor(h.SeesKeys(r)) }

// RuleFor returns the rule of a path, and its busiest keys for the caller of r.
func (h Handlers) RuleFor(r *http.Request, path string) (rule Rule, keys TopKeys, isKnown bool) {
	rule, keys, isKnown = h.Live.Rule(path)
	if isKnown && !h.SeesKeys(r) {
		keys = h.hashedKeys(keys)
	}
	return rule, keys, isKnown
}

// Snapshot answers with the Snapshot as JSON.
func (h Handlers) Snapshot() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond(w, h.snapshotJSON(h.SeesKeys(r)))
	})
}

// Rules answers with the rules whose path or limit contains the parameter filter. Quiet
// rules are included.
func (h Handlers) Rules() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rules, more := h.Live.Rules(r.URL.Query().Get("filter"))
		respondJSON(w, RulesAnswer{append([]Rule{}, rules...), more})
	})
}

// Rule answers with the rule of the parameter path, and with its busiest keys.
func (h Handlers) Rule() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rule, keys, isKnown := h.RuleFor(r, r.URL.Query().Get("path"))
		if !isKnown {
			http.Error(w, "no rule in force has this path; /live/rules lists all rules", http.StatusNotFound)
			return
		}
		respondJSON(w, RuleAnswer{rule, keys})
	})
}

func respondJSON(w http.ResponseWriter, answer any) {
	text, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	respond(w, text)
}

func respond(w http.ResponseWriter, text []byte) {
	setHeaders(w, "application/json")
	_, _ = w.Write(append(text, '\n'))
}

func setHeaders(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// writeTimeout is how long a viewer may take to read a snapshot of the stream.
const writeTimeout = 10 * time.Second

// Stream sends a snapshot each second as a server-sent event named snapshot, until the
// client leaves. If there are maxViewers, Stream answers 503.
func (h Handlers) Stream() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seesKeys := h.SeesKeys(r)
		v, err := h.hub.addViewer(seesKeys)
		if err != nil {
			w.Header().Set("Retry-After", "10")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer h.hub.removeViewer(v)
		setHeaders(w, "text/event-stream")
		w.Header().Set("X-Accel-Buffering", "no") // for proxies
		response := http.NewResponseController(w)
		send := func(text []byte) error {
			_ = response.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := w.Write(text); err != nil {
				return err
			}
			return response.Flush()
		}
		err = send(append([]byte("retry: 2000\n\n"), h.snapshotEvent(seesKeys)...))
		for err == nil {
			select {
			case <-r.Context().Done():
				return
			case event := <-v.events:
				err = send(event)
			}
		}
	})
}
