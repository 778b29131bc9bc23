package admin_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed-81f232ab/rls/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnauthenticatedGets401(t *testing.T) {
	for name, header := range map[string]string{
		"no header":      "",
		"other token":    "Bearer other",
		"prefix":         "Bearer " + token[:4],
		"token and more": "Bearer " + token + "x",
		"empty token":    "Bearer ",
		"other scheme":   "Basic " + token,
		"no scheme":      token,
		"name of token":  "Bearer ops",
		"scheme alone":   "Bearer",
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t, func(o *admin.Options) { o.Tokens = map[string]string{"ops": token, "nobody": ""} })
			firstBody := ""
			for _, path := range []string{"/admin/", "/admin/overrides", "/admin/counters?target=shop%7Ctenant=acme", "/admin/nothing"} {
				for _, method := range []string{"GET", "PUT", "DELETE", "PATCH"} {
					req := httptest.NewRequest(method, path, strings.NewReader("{}"))
					if header != "" {
						req.Header.Set("Authorization", header)
					}
					resp := api.send(req)
					assert.Equal(t, http.StatusUnauthorized, resp.Code)
					assert.Equal(t, `Bearer realm="rls admin"`, resp.Header().Get("WWW-Authenticate"))
					assert.Equal(t, "no-store", resp.Header().Get("Cache-Control"))
					if firstBody == "" {
						firstBody = resp.Body.String()
					}
					assert.Equal(t, firstBody, resp.Body.String())
				}
			}
			assert.Contains(t, firstBody, "ADMIN_TOKEN")
			logText := api.log.String()
			assert.Contains(t, logText, "from=192.0.2.1:1234 method=GET path=/admin/")
			assert.NotContains(t, logText, token[:4])
		})
	}
}

func TestUnauthorizedCallsAreLoggedOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newTestAPI(t)
		for second := range 3 {
			for range 20 {
				assert.Equal(t, http.StatusUnauthorized, api.send(httptest.NewRequest(http.MethodGet, admin.Prefix, nil)).Code)
				time.Sleep(51 * time.Millisecond)
			}
			assert.Equal(t, second+1, strings.Count(api.log.String(), "level=WARN"))
		}
	})
}

func TestAuditShowsNameOfToken(t *testing.T) {
	api := newTestAPI(t, func(o *admin.Options) { o.Tokens = map[string]string{"alice": "a", "bob": "b"} })
	for _, header := range []string{"Bearer a", "bearer  b "} {
		req := httptest.NewRequest(http.MethodPut, "/admin/overrides?target=shop%7Ctenant=acme", strings.NewReader(`{"factor": 2}`))
		req.Header.Set("Authorization", header)
		assert.Equal(t, http.StatusOK, api.send(req).Code)
	}
	lines := api.audits()
	require.Len(t, lines, 2)
	assert.Contains(t, lines[0], "by=alice")
	assert.Contains(t, lines[1], "by=bob")
}

func TestVerifiedClientCertificateAuthorizes(t *testing.T) {
	spiffe := &url.URL{Scheme: "spiffe", Host: "cluster.local", Path: "/ops"}
	for name, test := range map[string]struct {
		isOff    bool              // certificates authorize nobody
		cert     *x509.Certificate // the verified certificate; nil if TLS has verified none
		wantName string            // the name in the audit; empty if the caller is unauthorized
	}{
		"named by common name":    {cert: &x509.Certificate{Subject: pkix.Name{CommonName: "deploy"}, DNSNames: []string{"dns"}}, wantName: "deploy"},
		"named by DNS name":       {cert: &x509.Certificate{DNSNames: []string{"ops.example"}, URIs: []*url.URL{spiffe}}, wantName: "ops.example"},
		"named by URI":            {cert: &x509.Certificate{URIs: []*url.URL{spiffe}}, wantName: "spiffe://cluster.local/ops"},
		"named by serial number":  {cert: &x509.Certificate{SerialNumber: big.NewInt(7)}, wantName: `"certificate 7"`},
		"certificates turned off": {isOff: true, cert: &x509.Certificate{Subject: pkix.Name{CommonName: "deploy"}}},
		"not verified":            {},
	} {
		t.Run(name, func(t *testing.T) {
			api := newTestAPI(t, func(o *admin.Options) { o.ClientCerts = !test.isOff })
			req := httptest.NewRequest(http.MethodPut, "/admin/overrides?target=shop%7Ctenant=acme", strings.NewReader(`{"factor": 2}`))
			req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{test.cert}}
			if test.cert != nil {
				req.TLS.VerifiedChains = [][]*x509.Certificate{{test.cert}}
			}
			resp := api.send(req)
			if test.wantName == "" {
				assert.Equal(t, http.StatusUnauthorized, resp.Code)
				return
			}
			assert.Equal(t, http.StatusOK, resp.Code)
			assert.Contains(t, api.audits()[0], "by="+test.wantName+" ")
		})
	}
}

func TestUnknownPathsMethodsAndParametersAreRejected(t *testing.T) {
	api := newTestAPI(t)
	t.Run("unknown path lists endpoints", func(t *testing.T) {
		var p admin.Problems
		assert.Equal(t, http.StatusNotFound, api.call("GET", "override", "", "", &p))
		assert.Equal(t, []string{"unknown path /admin/override"}, p.Problems)
		require.Len(t, p.Endpoints, 18)
		assert.Contains(t, strings.Join(p.Endpoints, "\n"), "PUT /admin/overrides: ")
	})
	for path, allow := range map[string]string{"overrides": "GET, PUT, DELETE", "counters": "GET, DELETE"} {
		req := httptest.NewRequest(http.MethodPost, admin.Prefix+path, nil)
		req.Header.Set("Authorization", "Bearer "+token)
		resp := api.send(req)
		assert.Equal(t, http.StatusMethodNotAllowed, resp.Code)
		assert.Equal(t, allow, resp.Header().Get("Allow"))
	}
	for name, query := range map[string]string{
		"misspelt parameter": "target=shop%7Ctenant&dryrun=true",
		"repeated parameter": "target=shop%7Ctenant&target=shop%7Cip",
		"invalid flag":       "target=shop%7Ctenant&dry_run=perhaps",
		"invalid encoding":   "target=%zz",
	} {
		t.Run(name+" changes nothing", func(t *testing.T) {
			assert.Equal(t, http.StatusBadRequest, api.callURL("PUT", "/admin/overrides?"+query, `{"factor": 2}`, nil))
		})
	}
	assert.Equal(t, http.StatusBadRequest, api.callURL("DELETE", "/admin/overrides?target=shop%7Ctenant&dry_run=true", "", nil))
	assert.Empty(t, api.overrides.States())
}
