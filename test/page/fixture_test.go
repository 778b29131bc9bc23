package page_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/admin/page"
	"github.com/seed-81f232ab/rls/internal/observe/live"
	"github.com/seed-81f232ab/rls/internal/testkit/pagetest"
	"github.com/seed-81f232ab/rls/internal/whatif/explain"
)

// fixture serves the page with snapshots of the test.
type fixture struct {
	*httptest.Server
	t *testing.T

	mu        sync.Mutex
	snapshot  *live.Snapshot
	changed   chan struct{} // closed at a change
	refusal   string        // of the stream, if not empty
	decisions []string      // lines that the viewer of decisions gets
	sentLines int           // number of decisions that were sent
	query     string        // of the viewer of decisions
	report    *explain.Report
}

func serve(t *testing.T, s *live.Snapshot) *fixture {
	t.Helper()
	f := &fixture{t: t, snapshot: roundAsJSON(t, s), changed: make(chan struct{})}
	mux := http.NewServeMux()
	mux.Handle(page.Path, page.New(page.Options{
		Snapshot: func(*http.Request) *live.Snapshot { return f.currentSnapshot() },
		Rules:    findRules,
		Rule:     f.rule,
		Explain: func(_ *http.Request, domain, descriptor string) (*explain.Report, error) {
			if f.report == nil {
				return nil, errors.New("descriptor: got " + strconv.Quote(descriptor) + ", want KEY=VALUE")
			}
			r := *f.report
			r.Domain = domain
			return &r, nil
		},
		GRPCAddr: "localhost:9081",
	}))
	mux.Handle(page.AssetsPath, page.Assets())
	mux.HandleFunc("/live/stream", f.stream)
	mux.HandleFunc("/live/rules", func(w http.ResponseWriter, r *http.Request) {
		rules, more := findRules(r.FormValue("filter"))
		_ = json.NewEncoder(w).Encode(live.RulesAnswer{Rules: rules, More: more})
	})
	mux.HandleFunc("/decisions", f.streamDecisions)
	f.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// roundAsJSON returns s with the digits that JSON has.
func roundAsJSON(t *testing.T, s *live.Snapshot) *live.Snapshot {
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var r live.Snapshot
	require.NoError(t, json.Unmarshal(text, &r))
	return &r
}

// findRules finds three quiet rules.
func findRules(filter string) (rules []live.Rule, more int) {
	rules = []live.Rule{}
	for i := range 3 {
		r := pagetest.Rule(fmt.Sprintf("partner > quiet=%d", i), "5 per second", "fixed_window", 0, 0, 0)
		r.OK, r.Near, r.Denied, r.Use, r.OKPoints, r.DeniedPoints = 0, 0, 0, live.Unknown, nil, nil
		if strings.Contains(r.Path, filter) {
			rules = append(rules, r)
		}
	}
	return rules, 0
}

// rule finds a rule of the snapshot.
func (f *fixture) rule(_ *http.Request, path string) (live.Rule, live.TopKeys, bool) {
	s := f.currentSnapshot()
	i := slices.IndexFunc(s.Rules.Shown, func(r live.Rule) bool { return r.Path == path })
	if i < 0 {
		return live.Rule{}, live.TopKeys{}, false
	}
	return s.Rules.Shown[i], live.TopKeys{Mode: s.Keys.Mode, Hottest: s.Keys.Hottest[:3]}, true
}

func (f *fixture) currentSnapshot() *live.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

// send shows s to all viewers.
func (f *fixture) send(s *live.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshot = roundAsJSON(f.t, s)
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fixture) stream(w http.ResponseWriter, r *http.Request) {
	if f.refusal != "" {
		http.Error(w, f.refusal, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		f.mu.Lock()
		s, changed := f.snapshot, f.changed
		f.mu.Unlock()
		text, err := json.Marshal(s)
		require.NoError(f.t, err)
		fmt.Fprintf(w, "event: snapshot\ndata: %s\n\n", text)
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-r.Context().Done():
			return
		}
	}
}

// quote returns text as a literal of JavaScript.
func quote(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// sendDecisions sends lines to the viewer of decisions.
func (f *fixture) sendDecisions(lines string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.decisions = append(f.decisions, lines)
}

// sentCount returns how often sendDecisions has reached a viewer.
func (f *fixture) sentCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sentLines
}

// decisionQuery returns the query of the last viewer of decisions.
func (f *fixture) decisionQuery() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.query
}

func (f *fixture) streamDecisions(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.query = r.URL.RawQuery
	f.mu.Unlock()
	for r.Context().Err() == nil {
		f.mu.Lock()
		for _, lines := range f.decisions[f.sentLines:] {
			_, _ = io.WriteString(w, lines)
		}
		f.sentLines = len(f.decisions)
		f.mu.Unlock()
		w.(http.Flusher).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}
