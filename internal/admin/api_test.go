package admin_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/testkit/admintest"
)

const (
	token = "t0p-secret"

	limits = `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
    descriptors:
      - key: path
        value: /api/*
        share_threshold: true
        rate_limit: {unit: hour, requests_per_unit: 20, algorithm: sliding_log}
  - key: ip
    rate_limits:
      - {unit: second, requests_per_unit: 5, name: ip-second}
      - {unit: hour, requests_per_unit: 50, algorithm: token_bucket, burst: 80}
      - {unit: day, requests_per_unit: 500, algorithm: sliding_window, scope: instance}
  - key: free
    rate_limit: {unlimited: true}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: quiet
`
)

// testAPI is the API with limits, a store of overrides and counters.
type testAPI struct {
	*testing.T
	overrides *admintest.Overrides
	counters  backend.Limiter
	now       time.Time // the time at which the API reads and resets counters
	log       *bytes.Buffer
	handler   http.Handler
}

// newTestAPI returns an API. Each change modifies the options of the API.
func newTestAPI(t *testing.T, change ...func(*admin.Options)) *testAPI {
	t.Helper()
	r := &testAPI{
		T:         t,
		overrides: admintest.NewOverrides(t, limits),
		counters:  local.New(local.Options{}),
		now:       time.Now(),
		log:       new(bytes.Buffer),
	}
	o := admin.Options{
		Callers:   admin.Callers{Tokens: map[string]string{"ops": token}},
		Overrides: r.overrides,
		Counters: admin.Counters{
			Limits: &r.overrides.Limits,
			Layer:  backend.Counters{Limiter: r.counters},
			Now:    func() time.Time { return r.now },
		},
		Log: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, f := range change {
		f(&o)
	}
	r.handler = admin.New(o)
	return r
}

// send sends a request without adding the token.
func (r *testAPI) send(req *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	return w
}

// call sends a call with the token to a path below /admin/, and returns the status. If answer is not nil, call
// decodes the body into answer.
func (r *testAPI) call(method, path, target, body string, answer any) int {
	r.Helper()
	u := admin.Prefix + path
	if target != "" {
		u += "?" + url.Values{"target": {target}}.Encode()
	}
	return r.callURL(method, u, body, answer)
}

func (r *testAPI) callURL(method, u, body string, answer any) int {
	r.Helper()
	req := httptest.NewRequest(method, u, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+token)
	resp := r.send(req)
	text := resp.Body.Bytes()
	require.Equal(r, "application/json", resp.Header().Get("Content-Type"))
	require.Equal(r, "no-store", resp.Header().Get("Cache-Control"))
	require.True(r, json.Valid(text), "%s", text)
	if answer != nil {
		require.NoError(r, json.Unmarshal(text, answer), "%s", text)
	}
	return resp.Code
}

// problems sends a call and returns the status and the problems, one on each line.
func (r *testAPI) problems(method, path, target, body string) (int, string) {
	r.Helper()
	var p admin.Problems
	code := r.call(method, path, target, body, &p)
	return code, strings.Join(p.Problems, "\n")
}

// audits returns the lines of the audit.
func (r *testAPI) audits() []string {
	var lines []string
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "msg=audit") {
			lines = append(lines, line)
		}
	}
	return lines
}

// spend charges n hits to each limit of a target, as the service does.
func (r *testAPI) spend(target string, n int64) {
	r.Helper()
	t, err := descriptors.ParseTarget(target)
	require.NoError(r, err)
	rule := r.overrides.Limits.Load().Domain(t.Domain).Match(t.Entries)
	require.NotNil(r, rule)
	var hits []backend.Hit
	for _, l := range rule.Limits {
		hits = append(hits, backend.Hit{Key: rule.AppendKey(nil, t.Domain, t.Entries), Limit: l.Limit, N: n})
	}
	r.counters.Take(r.Context(), r.now, hits, make([]backend.Result, len(hits)))
}
