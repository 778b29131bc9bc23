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

	"github.com/seed-81f232ab/rls/admin"
	"github.com/seed-81f232ab/rls/admin/admintest"
	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/certtest"
)

const opsToken = "t0p-secret"

// adminRig is the admin API of a service that has limits, but no listener for calls.
type adminRig struct {
	*testing.T
	overrides *admintest.Overrides
	counters  backend.Limiter
	url       string
}

func newAdminRig(t *testing.T, listen func(http.Handler) *httptest.Server) *adminRig {
	r := &adminRig{T: t, counters: local.New(local.Options{}), overrides: admintest.NewOverrides(t, `
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
		Tokens:      map[string]string{"ops": opsToken, "ci": "another"},
		ClientCerts: true,
		Overrides:   r.overrides,
		Counters:    admin.Counters{Limits: &r.overrides.Limits, Uncached: r.counters, Limiter: r.counters},
	}))
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

// run runs rls with the token in its environment; both outputs must not show it.
func (r *adminRig) run(args ...string) (stdout, stderr string, code int) {
	r.Helper()
	return r.runWith([]string{"ADMIN_TOKEN=" + opsToken}, append(args, "--addr", r.url)...)
}

func (r *adminRig) runWith(env []string, args ...string) (stdout, stderr string, code int) {
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

// spend charges n hits of each limit for a target.
func (r *adminRig) spend(target string, n int64) {
	t, err := descriptors.ParseTarget(target)
	require.NoError(r, err)
	rule := r.overrides.Limits.Load().Domain(t.Domain).Match(t.Entries)
	var hits []backend.Hit
	for _, l := range rule.Limits {
		hits = append(hits, backend.Hit{Key: rule.AppendKey(nil, t.Domain, t.Entries), Limit: l.Limit, N: n})
	}
	r.counters.Take(r.Context(), time.Now(), hits, make([]backend.Result, len(hits)))
}

func TestTheTokenComesFromTheFlagElseTheEnvironment(t *testing.T) {
	r := newAdminRig(t, httptest.NewServer)
	for name, c := range map[string]struct {
		env  string
		args []string
		code int
	}{
		"alone":                      {"ADMIN_TOKEN=" + opsToken, nil, 0},
		"with a name":                {"ADMIN_TOKEN=ops:" + opsToken, nil, 0},
		"the first of several":       {"ADMIN_TOKEN= ops:" + opsToken + " , ci:other", nil, 0},
		"not the second":             {"ADMIN_TOKEN=ci:other,ops:" + opsToken, nil, 1},
		"the flag is taken as it is": {"ADMIN_TOKEN=wrong", []string{"--token", opsToken}, 0},
		"none":                       {"ADMIN_TOKEN=", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := r.runWith([]string{c.env}, append([]string{"limits", "list", "-a", r.url}, c.args...)...)
			assert.Equal(t, c.code, code, errOut)
			if code != 0 {
				assert.Contains(t, errOut, "set ADMIN_TOKEN or --token")
			}
		})
	}
}

func TestAdminCommandsSayWhyTheyCannotAsk(t *testing.T) {
	r := newAdminRig(t, httptest.NewServer)
	other := func(code int, kind, body string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Location", r.url)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	stuck := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() }))
	t.Cleanup(stuck.Close)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"nobody there":       {[]string{"-a", "127.0.0.1:1"}, "nobody listens at 127.0.0.1:1; --addr must be the service's debug listener, whose port is DEBUG_PORT"},
		"no such port":       {[]string{"-a", "127.0.0.1:99999"}, "127.0.0.1:99999 can't be asked"},
		"no address":         {[]string{"-a", ""}, "--addr must be"},
		"another scheme":     {[]string{"-a", "ftp://host"}, "--addr must be"},
		"a password in it":   {[]string{"-a", "http://u:" + opsToken + "@host"}, "--addr must be"},
		"a page of it":       {[]string{"-a", r.url + "/admin/"}, "--addr must be"},
		"https not spoken":   {[]string{"-a", strings.Replace(r.url, "http", "https", 1)}, "can't be asked"},
		"http with a CA":     {[]string{"-a", r.url, "--ca", "ca.pem"}, "--ca, --cert and --key are for https"},
		"no CA file":         {[]string{"--ca", "/no/such/file"}, "/no/such/file"},
		"no answer":          {[]string{"-a", stuck.URL, "--timeout", "50ms"}, "doesn't answer in time (--timeout)"},
		"a text":             {[]string{"-a", other(200, "text/plain", "/rlconfig")}, "does not answer as the admin API does (200 OK)"},
		"not what it says":   {[]string{"-a", other(200, "application/json", "no")}, "an answer that can't be read"},
		"nothing said":       {[]string{"-a", other(500, "application/json", "{}")}, "500 Internal Server Error"},
		"sent elsewhere":     {[]string{"-a", other(307, "text/plain", "")}, "does not answer as the admin API does (307"},
		"a terminal's codes": {[]string{"-a", other(400, "application/json", `{"problems": ["\u001b[2J", "two"]}`)}, "\"\\x1b[2J\"\ntwo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := r.runWith([]string{"ADMIN_TOKEN=" + opsToken}, append([]string{"limits", "list"}, c.args...)...)
			assert.Equal(t, 1, code)
			assert.Empty(t, out)
			assert.Contains(t, errOut, c.want)
		})
	}
}

func TestAdminCommandsSpeakTLS(t *testing.T) {
	var cert []byte
	r := newAdminRig(t, func(h http.Handler) *httptest.Server {
		srv := httptest.NewTLSServer(h)
		cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
		return srv
	})
	out, _, code := r.run("limits", "list", "--ca", file(t, "ca.pem", string(cert)))
	assert.Zero(t, code)
	assert.Equal(t, "no overrides\n", out)

	t.Run("https follows from the CA", func(t *testing.T) {
		_, _, code := r.runWith([]string{"ADMIN_TOKEN=" + opsToken}, "limits", "list", "--ca", file(t, "ca.pem", string(cert)), "-a", strings.TrimPrefix(r.url, "https://"))
		assert.Zero(t, code)
	})
	t.Run("an authority that isn't known", func(t *testing.T) {
		_, errOut, code := r.run("limits", "list")
		assert.Equal(t, 1, code)
		assert.Contains(t, errOut, "certificate")
	})
}

func TestAClientCertificateIsEnough(t *testing.T) {
	ca, other := certtest.New(t), certtest.New(t)
	var cert []byte
	r := newAdminRig(t, func(h http.Handler) *httptest.Server {
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.TLS = &tls.Config{ClientCAs: ca.Pool(), ClientAuth: tls.VerifyClientCertIfGiven}
		srv.StartTLS()
		cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
		return srv
	})
	trust := file(t, "ca.pem", string(cert))
	for name, c := range map[string]struct {
		pair certtest.Pair
		want string // in the error; empty if it is enough
	}{
		"from the right authority": {ca.Issue("ops.example"), ""},
		"from another":             {other.Issue("ops.example"), "can't be asked"},
		"without its key":          {certtest.Pair{CertFile: trust}, "got only one, want both or none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, errOut, code := r.runWith(nil, "limits", "list", "-a", r.url, "--ca", trust, "--cert", c.pair.CertFile, "--key", c.pair.KeyFile)
			assert.Equal(t, c.want != "", code != 0)
			assert.Contains(t, errOut, c.want)
		})
	}
	_, errOut, code := r.runWith(nil, "limits", "list", "-a", r.url, "--ca", trust)
	assert.Equal(t, 1, code)
	assert.Contains(t, errOut, "or --cert and --key")
}

func TestTimesInWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
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
		assert.Equal(t, want, inWords(d), d)
	}
}
