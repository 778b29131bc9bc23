package callers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

// loadCertificate returns the certificate of a pair.
func loadCertificate(t *testing.T, pair certtest.Pair) *x509.Certificate {
	t.Helper()
	loadedPair, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	require.NoError(t, err)
	return loadedPair.Leaf
}

const exampleFile = `
callers:
- uri: spiffe://cluster.local/ns/shop/sa/envoy
  domains: [shop, shop-internal]
- uri: spiffe://cluster.local/ns/edge/*
  domains: [edge]
- dns: Envoy.Partner.example
  domains: [partner]
- common_name: admin
  domains: ["*"]
- without_certificate: true
  domains: [public]
`

func TestCallersAskOnlyTheirDomains(t *testing.T) {
	b, err := Parse("f", []byte(exampleFile))
	require.NoError(t, err)
	authority := certtest.New(t)
	for _, test := range []struct {
		name    string
		cert    *x509.Certificate
		allowed string
	}{
		{"a URI", loadCertificate(t, authority.IssueURI("spiffe://cluster.local/ns/shop/sa/envoy")), "shop shop-internal"},
		{"a longer URI", loadCertificate(t, authority.IssueURI("spiffe://cluster.local/ns/shop/sa/envoy2")), ""},
		{"a URI of a pattern", loadCertificate(t, authority.IssueURI("spiffe://cluster.local/ns/edge/sa/x")), "edge"},
		{"a DNS name in other case", loadCertificate(t, authority.Issue("envoy.partner.EXAMPLE")), "partner"},
		{"a DNS name that is a common name in the file", loadCertificate(t, authority.Issue("admin")), ""},
		{"a common name that is a URI in the file", loadCertificate(t, authority.IssueNamed("spiffe://cluster.local/ns/shop/sa/envoy")), ""},
		{"a common name with all domains", loadCertificate(t, authority.IssueNamed("admin")), "shop shop-internal edge partner public other"},
		{"several names", loadCertificate(t, authority.IssueNamed("x", "envoy.partner.example")), "partner"},
		{"no certificate", nil, "public"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, domain := range []string{"shop", "shop-internal", "edge", "partner", "public", "other"} {
				want := strings.Contains(" "+test.allowed+" ", " "+domain+" ")
				assert.Equal(t, want, b.Allows(test.cert, domain), domain)
			}
			assert.Equal(t, test.name == "a common name with all domains", b.Allows(test.cert, ""))
		})
	}
}

func TestProblemsHaveTheirPlaceAndRemedy(t *testing.T) {
	for _, test := range []struct{ name, yaml, want string }{
		{"an empty file", "", "f: file is empty: callers is missing"},
		{"no YAML", "callers: [", "not valid YAML"},
		{"no callers", "{}", "f:1:1: callers is missing; write a list, each item with uri, dns, common_name or without_certificate, and domains"},
		{"no mapping", "[]", "f:1:1: file: got a list, want a mapping with callers"},
		{"a misspelt name", "callers:\n- url: x:y\n  domains: [d]", "f:2:3: unknown key url in item of callers; want uri, dns, common_name, without_certificate or domains; did you mean uri?"},
		{"no name", "callers:\n- domains: [d]", "f:2:3: name is missing; want uri, dns, common_name or without_certificate"},
		{"two names", "callers:\n- {uri: x:y, dns: z, domains: [d]}", "f:2:19: uri and dns are both given; write an item for each of them"},
		{"a name twice", "callers:\n- {dns: x, dns: z, domains: [d]}", "f:2:12: dns is given twice; remove one"},
		{"no domains", "callers:\n- dns: x", `f:2:3: domains is missing; want a list of domains, or ["*"] for all`},
		{"a domain that is a list", "callers:\n- {dns: x, domains: [[d]]}", "f:2:22: item of domains: got a list, want text"},
		{"a star in the middle", "callers:\n- {dns: a*b, domains: [d]}", "f:2:9: dns: got a*b, want a * only at the end"},
		{"an invalid URI", "callers:\n- {uri: envoy, domains: [d]}", "f:2:9: uri: got envoy, want a URI such as spiffe://"},
		{"without_certificate is false", "callers:\n- {without_certificate: false, domains: [d]}", "without_certificate: got false, want true"},
		{"an alias bomb", "a: &a [x, x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]", "aliases repeat more than 1000000 keys and values"},
		{"a large file", strings.Repeat("#", MaxFileBytes+1), "f: file is 1048577 bytes; maximum is 1048576"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("f", []byte(test.yaml))
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func TestLastValidFileStaysInForce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "callers.yaml")
	writeFile := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	writeFile(exampleFile)
	var results []error
	f, err := Open(path, func(err error) { results = append(results, err) }, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	f.files.Reload()
	assert.Empty(t, results, "the file is unchanged")

	writeFile("callers: [")
	f.files.Reload()
	assert.Empty(t, results, "somebody may be writing the file")
	f.files.Reload()
	f.files.Reload()
	require.Len(t, results, 1, "a mistake is reported once")
	require.ErrorContains(t, results[0], "not valid YAML")
	assert.True(t, f.Bindings().Allows(nil, "public"))

	require.NoError(t, os.Remove(path))
	f.files.Reload()
	require.Len(t, results, 2)
	require.ErrorIs(t, results[1], os.ErrNotExist)
	assert.True(t, f.Bindings().Allows(nil, "public"))

	writeFile(exampleFile)
	f.files.Reload()
	f.files.Reload()
	require.Len(t, results, 3, "the same file is valid again")
	require.NoError(t, results[2])

	writeFile("callers: [{without_certificate: true, domains: [other]}]")
	f.files.Reload()
	f.files.Reload()
	require.Len(t, results, 4)
	require.NoError(t, results[3])
	assert.False(t, f.Bindings().Allows(nil, "public"))
	assert.True(t, f.Bindings().Allows(nil, "other"))

	_, err = Open(path+".missing", nil, nil)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// okService answers OK to each call.
type okService struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

func (okService) ShouldRateLimit(context.Context, *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	return &rlsv3.RateLimitResponse{}, nil
}

func TestForbiddenCallIsRefusedAndCounted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "callers.yaml")
	require.NoError(t, os.WriteFile(path, []byte(exampleFile), 0o600))
	f, err := Open(path, nil, nil)
	require.NoError(t, err)
	count := 0
	var log strings.Builder
	s := NewService(okService{}, f, func() { count++ }, slog.New(slog.NewTextHandler(&log, nil)))

	cert := loadCertificate(t, certtest.New(t).Issue("envoy.partner.example"))
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{
		State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}},
	}})
	_, err = s.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "partner"})
	require.NoError(t, err)
	for range 3 {
		_, err = s.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "shop"})
		assert.Equal(t, codes.PermissionDenied, status.Code(err))
		assert.EqualError(t, err, `rpc error: code = PermissionDenied desc = domain "shop": the caller may not use this domain; got certificate of dns=envoy.partner.example`)
	}
	_, err = s.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop"})
	assert.ErrorContains(t, err, "got no client certificate")
	assert.Equal(t, 4, count)
	assert.Equal(t, 1, strings.Count(log.String(), "call refused"), "the log has a line a minute")
}

// A file has bindings, or problems that can be shown.
func FuzzParse(f *testing.F) {
	f.Add([]byte(exampleFile))
	f.Add([]byte("callers: [{uri: 1, domains: &a [*a]}]"))
	f.Add([]byte("callers: [{dns: *, common_name: {}, domains: {}}]\n--- x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := Parse("f", data)
		if err == nil {
			b.Allows(nil, "d")
			return
		}
		for _, p := range err.(fields.Problems) {
			if p.Reason == "" || strings.Contains(p.Reason, "%!") {
				t.Fatalf("%#v", p)
			}
		}
	})
}
