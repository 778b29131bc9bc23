package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/observe/decisionlog"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// syncBuffer is a buffer for two goroutines.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// lineServer is a debug listener. Each of its streams has one line and then ends.
type lineServer struct {
	lines []string // one for each connection; later connections are refused
}

func (s *lineServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if len(s.lines) == 0 {
		http.Error(w, "live decisions: got 17 subscribers, want at most 16", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", decisionlog.ContentType)
	_, _ = w.Write([]byte(s.lines[0] + "\n"))
	s.lines = s.lines[1:]
}

const deniedLine = `{"time":"2026-11-20T10:00:37.5Z","domain":"shop","descriptor":[{"key":"tenant","value":"\u001b[2Ja,b"}],"descriptor_index":0,"rule":"shop > tenant",` +
	`"limit":"2 per minute","limit_name":"two\u009b","requests_per_unit":2,"code":"OVER_LIMIT","overall_code":"OVER_LIMIT","hits":3,"remaining":0,` +
	`"source":"fallback","degraded":true,"reason":"late","mode":"local","shadow":false,"caller":"10.0.0.1 e\u009b","duration_us":1500}`

// runTail runs rls tail with a stream that ends in a refusal.
func runTail(t *testing.T, change func(*tail), lines ...string) (out, notes string, err error) {
	t.Helper()
	server := httptest.NewServer(&lineServer{lines: lines})
	defer server.Close()
	var outBuffer, errBuffer syncBuffer
	c := &tail{out: &outBuffer, errOut: &errBuffer, reconnectPauses: wait.Backoff{Initial: time.Millisecond, Max: time.Millisecond}}
	c.addr = server.URL
	if change != nil {
		change(c)
	}
	err = c.run(t.Context())
	return strings.ReplaceAll(outBuffer.String(), server.URL, "URL"), strings.ReplaceAll(errBuffer.String(), strings.TrimPrefix(server.URL, "http://"), "HOST"), err
}

func TestTailPrintsOneLineForEachDecision(t *testing.T) {
	t.Parallel()
	timeText := formatTime(time.Date(2026, 11, 20, 10, 0, 37, 500_000_000, time.UTC))
	out, _, _ := runTail(t, nil, deniedLine+"\n\n"+
		`{"time":"2026-11-20T10:00:37.5Z","domain":"shop","descriptor":[{"key":"other","value":"x"}],"code":"OK","overall_code":"OK"}`+"\n"+
		`{"time":"2026-11-20T10:00:37.5Z","domain":"shop","code":"OK","overall_code":"OK","switch":{"descriptor":0,"path":"shop > tenant","by":"ann","reason":"x\u009b","expires_at":"2026-11-20T11:00:37.5Z"}}`+"\n"+
		`{"time":"2026-11-20T10:00:37.5Z","domain":"","code":"ERROR","overall_code":"ERROR","error":"no domain"}`+"\n"+
		`{"time":"2026-11-20T10:00:37.5Z","dropped":12,"reason":"reader too slow"}`)
	assert.Equal(t, timeText+`  OVER_LIMIT  "tenant=\x1b[2Ja\\,b"  shop > tenant: 2 per minute  "two\u009b"  3 hits  0 left  fallback  (late, local)  from "10.0.0.1 e\u009b"  1.5ms`+"\n"+
		timeText+"  OK          other=x  shop: no rule  0s\n"+
		timeText+`  OK          -  OFF: shop > tenant, by ann, ends in 1h, reason: "x\u009b"  0s`+"\n"+
		timeText+"  ERROR       -  -: no rule  no domain  0s\n"+
		timeText+"  12 decisions dropped: reader too slow\n", out)
}

func TestTailInColourMarksTheCode(t *testing.T) {
	t.Parallel()
	shadowLine := strings.Replace(deniedLine, `"shadow":false`, `"shadow":true`, 1)
	out, _, _ := runTail(t, func(c *tail) { c.hasColours = true }, deniedLine+"\n"+shadowLine)
	assert.Contains(t, out, "\x1b[31mOVER_LIMIT\x1b[0m")
	assert.Contains(t, out, "\x1b[33mOVER_LIMIT\x1b[0m")
	assert.NotContains(t, out, "\x1b[2Ja")
}

func TestTailPrintsJSONWithoutTerminalEscapes(t *testing.T) {
	t.Parallel()
	lineWithControlCharacters := strings.NewReplacer(`\u009b`, "\u009b").Replace(deniedLine)
	droppedLine := `{"time":"2026-11-20T10:00:37.5Z","dropped":12,"reason":"reader too slow"}`
	out, _, _ := runTail(t, func(c *tail) { c.asJSON = true }, lineWithControlCharacters+"\n"+droppedLine)
	assert.Equal(t, deniedLine+"\n"+droppedLine+"\n", out)
}

func TestTailConnectsAgain(t *testing.T) {
	t.Parallel()
	out, notes, err := runTail(t, nil, deniedLine, deniedLine)
	assert.Equal(t, 2, strings.Count(out, "OVER_LIMIT"))
	assert.Equal(t, "rls: HOST: stream ended by the service; connecting again\nrls: connected again\n"+
		"rls: HOST: stream ended by the service; connecting again\n", notes)
	require.ErrorContains(t, err, ": live decisions: got 17 subscribers, want at most 16")
}

func TestTailKeepsConnectingUntilInterrupted(t *testing.T) {
	t.Parallel()
	var attempts atomic.Int32
	stream := &lineServer{lines: []string{deniedLine}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) > 1 {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		stream.ServeHTTP(w, r)
	}))
	defer server.Close()
	var out, notes syncBuffer
	c := &tail{out: &out, errOut: &notes, reconnectPauses: wait.Backoff{Initial: time.Millisecond, Max: time.Millisecond}}
	c.addr = server.URL
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.run(ctx) }()
	polltest.Until(t, maxWait, func() bool { return attempts.Load() > 5 })
	cancel()
	require.NoError(t, <-done, "an interrupt is no error")
	assert.Equal(t, 1, strings.Count(notes.String(), "connecting again"), notes.String())
}

func TestTailFailsIfTheFirstConnectionFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"another service": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }, "got no stream of decisions; check that --admin is the debug listener of an rls with /decisions"},
		"no token": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Unauthorized: send a token", http.StatusUnauthorized)
		}, "Unauthorized: send a token"},
		"hostile answer": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "\x1b[2J", http.StatusInternalServerError) }, `"\x1b[2J"`},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			_, errOut, code := rls(t, "tail", "--admin", server.URL)
			assert.Equal(t, 1, code)
			assert.Contains(t, errOut, test.want)
		})
	}
	_, errOut, code := rls(t, "tail", "--admin", "127.0.0.1:1")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "connection refused; set --admin to the debug listener")
	_, errOut, code = rls(t, "tail", "--code", "LATE")
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, `filter code: got "LATE", want one of [OK OVER_LIMIT ERROR]`)
}
