package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/docs/openapi"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/server"
	"github.com/seed-81f232ab/rls/internal/testkit/admintest"
	"github.com/seed-81f232ab/rls/service"
	"github.com/seed-81f232ab/rls/service/check"
)

// readFile returns a committed file.
func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs/openapi", name))
	require.NoError(t, err)
	return text
}

func TestFilesAreCurrent(t *testing.T) {
	for name, newDocument := range files {
		d, err := newDocument()
		require.NoError(t, err)
		assert.Equal(t, string(d.encode()), string(readFile(t, name)), "make docs writes the file")
	}
}

// newValidator returns a validator of the calls that a file describes.
func newValidator(t *testing.T, name string) validator.Validator {
	t.Helper()
	d, err := libopenapi.NewDocument(readFile(t, name))
	require.NoError(t, err)
	v, errs := validator.NewValidator(d)
	require.Empty(t, errs)
	return v
}

func TestFilesAreValid(t *testing.T) {
	for name := range files {
		ok, problems := newValidator(t, name).ValidateDocument()
		assert.True(t, ok, "%s: %v", name, problems)
	}
}

const limits = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: ip
    rate_limits: [{unit: second, requests_per_unit: 5}, {unit: hour, requests_per_unit: 50, algorithm: token_bucket}]
`

// newHTTP returns the address of a running HTTP listener.
func newHTTP(t *testing.T) string {
	t.Helper()
	set, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: []byte(limits)}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(set))
	rateLimiter := service.New(service.Options{Limits: store, Limiter: local.New(local.Options{MaxKeys: 100})})
	freePort := server.Addr{Host: "127.0.0.1"}
	testServer, err := server.New(server.Options{
		Services: []func(grpc.ServiceRegistrar){func(r grpc.ServiceRegistrar) { rlsv3.RegisterRateLimitServiceServer(r, rateLimiter) }},
		Check:    check.New(check.Options{Service: rateLimiter}), GRPC: server.GRPC{Addr: freePort, MaxMessageBytes: 1000, MaxStreams: 100}, HTTP: freePort, Debug: freePort,
		HTTPPages: []server.Page{{Path: openapi.CheckPath, Handler: http.HandlerFunc(openapi.CheckHandler)}},
		Health:    server.NewHealth(), Observer: noObserver{}, Log: slog.New(slog.DiscardHandler), DrainTimeout: 20 * time.Second,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- testServer.Serve(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return "http://" + testServer.HTTPAddr().String()
}

// TestListenerAnswersAsTheFileSays sends requests to each path of the file, and compares requests
// and answers with the file.
func TestListenerAnswersAsTheFileSays(t *testing.T) {
	validator, addr := newValidator(t, "check.json"), newHTTP(t)
	operations := operationsOf(t, "check.json")
	for _, test := range []struct {
		operation, body string
		isValid         bool
		want            int
	}{
		{"GET /healthcheck", "", true, 200},
		{"GET /v1/openapi.json", "", true, 200},
		{"POST /v1/check", `{"domain": "shop", "rules": true, "checks": [{"descriptor": [{"key": "user", "value": "alice"}], "hits": 4}, {"descriptor": [{"key": "ip"}]}, {}]}`, false, 200},
		{"POST /v1/check", `{"domain": "shop", "checks": [{"descriptor": [{"key": "user", "value": "alice"}]}, {"descriptor": [{"key": "other"}]}]}`, true, 200},
		{"POST /v1/check", `{"domain": "shop", "checks": []}`, false, 400},
		{"POST /v1/check", `{"domian": "shop", "checks": [{"descriptor": [{"key": "user"}]}]}`, false, 400},
		{"POST /v1/check", `{"domain": "` + strings.Repeat("x", 1000) + `", "checks": [{"descriptor": [{"key": "user"}]}]}`, true, 413},
	} {
		delete(operations, test.operation)
		method, path, _ := strings.Cut(test.operation, " ")
		newRequest := func() *http.Request {
			req, err := http.NewRequestWithContext(t.Context(), method, addr+path, strings.NewReader(test.body))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			return req
		}
		isValid, problems := validator.ValidateHttpRequest(newRequest())
		assert.Equal(t, test.isValid, isValid, "%s: %v", test.body, problems)
		resp, err := http.DefaultClient.Do(newRequest())
		require.NoError(t, err)
		assert.Equal(t, test.want, resp.StatusCode, test.body)
		ok, problems := validator.ValidateHttpResponse(newRequest(), resp)
		assert.True(t, ok, "%s: %v", test.body, problems)
		_ = resp.Body.Close()
	}
	assert.Empty(t, operations, "operations without a request")
}

// operationsOf returns the operations of a file, as "GET /path".
func operationsOf(t *testing.T, name string) map[string]bool {
	t.Helper()
	var d struct{ Paths map[string]map[string]any }
	require.NoError(t, json.Unmarshal(readFile(t, name), &d))
	operations := map[string]bool{}
	for path, methods := range d.Paths {
		for method := range methods {
			operations[strings.ToUpper(method)+" "+path] = true
		}
	}
	return operations
}

// noObserver ignores the events of a server without TLS.
type noObserver struct{ server.Observer }

func (noObserver) DrainStarted(int64)  {}
func (noObserver) DrainFinished(int64) {}

const token = "t0p-secret"

// newAdmin returns the admin API.
func newAdmin(t *testing.T) http.Handler {
	overrides, counters := admintest.NewOverrides(t, limits), local.New(local.Options{MaxKeys: 100})
	return admin.New(admin.Options{
		Callers: admin.Callers{Tokens: map[string]string{"ops": token}}, Overrides: overrides,
		Counters: admin.Counters{Limits: &overrides.Limits, Layer: backend.Counters{Limiter: counters}, Now: time.Now},
	})
}

// TestAdminAnswersAsTheFileSays sends a request to each operation of the file.
func TestAdminAnswersAsTheFileSays(t *testing.T) {
	validator, api := newValidator(t, "admin.json"), newAdmin(t)
	operations := operationsOf(t, "admin.json")
	const user = "?target=shop%7Cuser%3Dalice"
	for _, test := range []struct {
		operation, query, body string
		want                   int
	}{
		{"PUT /admin/overrides", user, `{"requests_per_unit": 7, "reason": "a test"}`, 200},
		{"PUT /admin/overrides", user + "&dry_run=true", `{"factor": 2, "expires_at": "2100-01-31T12:00:00Z"}`, 412}, // the value has no end
		{"PUT /admin/overrides", user + "&dry_run=true&replace=true", `{"factor": 2, "expires_at": "2100-01-31T12:00:00Z"}`, 200},
		{"PUT /admin/overrides", "?target=shop%7Cuser", `{"unit": "second", "unit_multiplier": 4000000000}`, 400},
		{"GET /admin/overrides", user, "", 200},
		{"GET /admin/overrides", "", "", 200},
		{"GET /admin/overrides", "?target=shop%7Cuser%3Dbob", "", 404},
		{"DELETE /admin/overrides", user + "&reason=done", "", 200},
		{"PUT /admin/rules", "?target=shop%7Cplan%3Dtrial", `{"shadow_mode": true, "rate_limit": {"unit": "minute", "requests_per_unit": 20}}`, 200},
		{"GET /admin/rules", "", "", 200},
		{"DELETE /admin/rules", "?target=shop%7Cplan%3Dtrial", "", 200},
		{"PUT /admin/switches", "?target=shop", `{"reason": "an incident"}`, 200},
		{"GET /admin/switches", "", "", 200},
		{"DELETE /admin/switches", "?target=shop", "", 200},
		{"PUT /admin/shadow-mode", "", `{"shadow_mode": true}`, 200},
		{"GET /admin/shadow-mode", "", "", 200},
		{"DELETE /admin/shadow-mode", "", "", 200},
		{"GET /admin/counters", user, "", 200},
		{"DELETE /admin/counters", user, "", 200},
		{"DELETE /admin/counters", "?prefix=shop%7Cuser&dry_run=true", "", 501},
		{"GET /admin/limits", "", "", 200},
		{"GET /admin/status", "", "", 200},
		{"GET /admin/history", "?count=5", "", 200},
		{"POST /admin/rollback", "?dry_run=true", "", 200},
	} {
		delete(operations, test.operation)
		method, path, _ := strings.Cut(test.operation, " ")
		newRequest := func() *http.Request {
			req := httptest.NewRequest(method, "http://localhost:6070"+path+test.query, strings.NewReader(test.body))
			req.Header.Set("Authorization", "Bearer "+token)
			if test.body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			return req
		}
		isValid, problems := validator.ValidateHttpRequest(newRequest())
		assert.True(t, isValid, "%s%s: %v", test.operation, test.query, problems)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, newRequest())
		assert.Equal(t, test.want, w.Code, "%s%s: %s", test.operation, test.query, w.Body)
		isValid, problems = validator.ValidateHttpResponse(newRequest(), w.Result())
		assert.True(t, isValid, "%s%s: %v\n%s", test.operation, test.query, problems, w.Body)
	}
	assert.Empty(t, operations, "operations without a request")

	w := httptest.NewRecorder()
	unknownPath := httptest.NewRequest(http.MethodGet, "/admin/unknown", nil)
	unknownPath.Header.Set("Authorization", "Bearer "+token)
	api.ServeHTTP(w, unknownPath)
	var list admin.Problems
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &list))
	allOperations := operationsOf(t, "admin.json")
	for _, line := range list.Endpoints {
		operation, _, _ := strings.Cut(line, ":")
		assert.Contains(t, allOperations, operation)
	}
	assert.Len(t, allOperations, len(list.Endpoints))
}
