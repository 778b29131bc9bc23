package main

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/admin"
	"github.com/seed-81f232ab/rls/internal/testkit/admintest"
	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

const opsToken = "t0p-secret"

// testAPI is an admin API with limits and counters.
type testAPI struct {
	*testing.T
	overrides *admintest.Overrides
	counters  backend.Limiter
	url       string
}

func newTestAPI(t *testing.T, listen func(http.Handler) *httptest.Server) *testAPI {
	r := &testAPI{T: t, counters: local.New(local.Options{}), overrides: admintest.NewOverrides(t, `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: ip
    rate_limits:
      - {unit: day, requests_per_unit: 50, name: daily}
      - {unit: hour, requests_per_unit: 5, algorithm: sliding_log}
  - key: trial
    shadow_mode: true
    rate_limit: {unlimited: true}
`)}
	srv := listen(admin.New(admin.Options{
		Callers:   admin.Callers{Tokens: map[string]string{"ops": opsToken, "ci": "another"}, ClientCerts: true},
		Overrides: r.overrides,
		Counters:  admin.Counters{Limits: &r.overrides.Limits, Layer: backend.Counters{Limiter: r.counters}, Now: time.Now},
	}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

// run runs rls with ADMIN_TOKEN. Its outputs must not contain the token.
func (r *testAPI) run(args ...string) (stdout, stderr string, code int) {
	r.Helper()
	return r.runWithEnv([]string{"ADMIN_TOKEN=" + opsToken}, append(args, "--admin", r.url)...)
}

func (r *testAPI) runWithEnv(env []string, args ...string) (stdout, stderr string, code int) {
	r.Helper()
	cmd := command(r.T, env, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(r, err)
	}
	assert.NotContains(r, out.String()+errOut.String(), opsToken)
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// spend charges n hits to each limit of a target.
func (r *testAPI) spend(target string, n int64) {
	t, err := descriptors.ParseTarget(target)
	require.NoError(r, err)
	rule := r.overrides.Limits.Load().Domain(t.Domain).Match(t.Entries)
	var hits []backend.Hit
	for _, l := range rule.Limits {
		hits = append(hits, backend.Hit{Key: rule.AppendKey(nil, t.Domain, t.Entries), Limit: l.Limit, N: n})
	}
	r.counters.Take(r.Context(), time.Now(), hits, make([]backend.Result, len(hits)))
}

func TestTokenIsTakenFromFlagOrEnvironment(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	for name, test := range map[string]struct {
		env  string
		args []string
		code int
	}{
		"token":                    {"ADMIN_TOKEN=" + opsToken, nil, 0},
		"named token":              {"ADMIN_TOKEN=ops:" + opsToken, nil, 0},
		"first token":              {"ADMIN_TOKEN= ops:" + opsToken + " , ci:other", nil, 0},
		"second token is not sent": {"ADMIN_TOKEN=ci:other,ops:" + opsToken, nil, 1},
		"flag wins":                {"ADMIN_TOKEN=wrong", []string{"--token", opsToken}, 0},
		"no token":                 {"ADMIN_TOKEN=", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := api.runWithEnv([]string{test.env}, append([]string{"limits", "show", "--changes", "--admin", api.url}, test.args...)...)
			assert.Equal(t, test.code, code, errOut)
			if code != 0 {
				assert.Contains(t, errOut, "unauthorized: set --token or ADMIN_TOKEN")
			}
		})
	}
}

func TestClientReportsWhyCallFailed(t *testing.T) {
	t.Parallel()
	api := newTestAPI(t, httptest.NewServer)
	startServer := func(code int, contentType, body string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Location", api.url)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	silentServer := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }))
	t.Cleanup(silentServer.Close)
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing listens":     {[]string{"--admin", "127.0.0.1:1"}, "127.0.0.1:1: connection refused; set --admin to the debug listener of the service (DEBUG_PORT)"},
		"bad port":            {[]string{"--admin", "127.0.0.1:99999"}, "127.0.0.1:99999: the port must be from 1 to 65535; check --admin"},
		"empty address":       {[]string{"--admin", ""}, "--admin must be"},
		"other scheme":        {[]string{"--admin", "ftp://host"}, "--admin must be"},
		"password in address": {[]string{"--admin", "http://u:" + opsToken + "@host"}, "--admin must be"},
		"address with path":   {[]string{"--admin", api.url + "/admin/"}, "--admin must be"},
		"https to http":       {[]string{"--admin", strings.Replace(api.url, "http", "https", 1)}, ": the listener has no TLS; write --admin http://host:port"},
		"http with a CA":      {[]string{"--admin", api.url, "--ca", "ca.pem"}, "--ca, --cert and --key need https"},
		"missing CA file":     {[]string{"--ca", "/no/such/file"}, "/no/such/file"},
		"no answer":           {[]string{"--admin", silentServer.URL, "--timeout", "50ms"}, "no answer within --timeout"},
		"text answer":         {[]string{"--admin", startServer(200, "text/plain", "/rlconfig")}, "got 200 OK, want an answer of the admin API"},
		"bad JSON":            {[]string{"--admin", startServer(200, "application/json", "no")}, "invalid answer"},
		"no problems":         {[]string{"--admin", startServer(500, "application/json", "{}")}, "500 Internal Server Error"},
		"redirect":            {[]string{"--admin", startServer(307, "text/plain", "")}, "got 307 Temporary Redirect, want an answer of the admin API"},
		"control characters":  {[]string{"--admin", startServer(400, "application/json", `{"problems": ["\u001b[2J", "two"]}`)}, "\"\\x1b[2J\"\ntwo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := api.runWithEnv([]string{"ADMIN_TOKEN=" + opsToken}, append([]string{"limits", "show", "--changes"}, test.args...)...)
			assert.Equal(t, 1, code)
			assert.Empty(t, out)
			assert.Contains(t, errOut, test.want)
		})
	}
}

func TestClientUsesTLS(t *testing.T) {
	t.Parallel()
	var cert []byte
	api := newTestAPI(t, func(h http.Handler) *httptest.Server {
		srv := httptest.NewTLSServer(h)
		cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
		return srv
	})
	out, _, code := api.run("limits", "show", "--changes", "--ca", writeFile(t, "ca.pem", string(cert)))
	assert.Zero(t, code)
	assert.Equal(t, "no overrides, rules or switches\n", out)

	t.Run("--ca implies https", func(t *testing.T) {
		_, _, code := api.runWithEnv([]string{"ADMIN_TOKEN=" + opsToken}, "limits", "show", "--changes", "--ca", writeFile(t, "ca.pem", string(cert)), "--admin", strings.TrimPrefix(api.url, "https://"))
		assert.Zero(t, code)
	})
	t.Run("unknown authority", func(t *testing.T) {
		_, errOut, code := api.run("limits", "show", "--changes")
		assert.Equal(t, 1, code)
		assert.Contains(t, errOut, ": the authority of the server's certificate is unknown; give its file with --ca")
	})
}

func TestClientCertificateAuthorizes(t *testing.T) {
	t.Parallel()
	ca, otherCA := certtest.New(t), certtest.New(t)
	var cert []byte
	api := newTestAPI(t, func(h http.Handler) *httptest.Server {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.TLS = &tls.Config{ClientCAs: ca.Pool(), ClientAuth: tls.VerifyClientCertIfGiven}
		srv.StartTLS()
		cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
		return srv
	})
	caFile := writeFile(t, "ca.pem", string(cert))
	for name, test := range map[string]struct {
		pair certtest.Pair
		want string // in the error; empty if authorized
	}{
		"right authority":         {ca.Issue("ops.example"), ""},
		"other authority":         {otherCA.Issue("ops.example"), "the server does not trust the authority of the certificate; give another --cert"},
		"certificate without key": {certtest.Pair{CertFile: caFile}, "got only one, want both or none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := api.runWithEnv(nil, "limits", "show", "--changes", "--admin", api.url, "--ca", caFile, "--cert", test.pair.CertFile, "--key", test.pair.KeyFile)
			assert.Equal(t, test.want != "", code != 0)
			assert.Contains(t, errOut, test.want)
		})
	}
	_, errOut, code := api.runWithEnv(nil, "limits", "show", "--changes", "--admin", api.url, "--ca", caFile)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "or --cert and --key")
}

func TestRelativeTimeIsRoundedToItsLargestUnits(t *testing.T) {
	t.Parallel()
	for duration, want := range map[time.Duration]string{
		0:                                     "in 0s",
		1400 * time.Millisecond:               "in 1s",
		59*time.Second + 600*time.Millisecond: "in 1m",
		90 * time.Second:                      "in 2m",
		time.Hour - time.Second:               "in 1h",
		time.Hour - time.Minute:               "in 59m",
		5*time.Hour + 30*time.Minute:          "in 5h30m",
		23*time.Hour + 40*time.Minute:         "in 23h40m",
		24*time.Hour - 5*time.Second:          "in 1d",
		76 * time.Hour:                        "in 3d4h",
		-12 * time.Second:                     "12s ago",
	} {
		assert.Equal(t, want, relativeTime(duration), duration)
	}
}
