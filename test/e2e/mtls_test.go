//go:build e2e

package e2e_test

import (
	"net/http"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/redistest"
)

// TestMTLS runs examples/envoy-mtls.yaml with right and wrong certificates.
func TestMTLS(t *testing.T) {
	right := redistest.NewCerts(t, "rls.example", "envoy.example")
	for name, c := range map[string]struct {
		server, client redistest.Certs
		clientCert     func(redistest.Certs) (cert, key string)
		ok             bool
	}{
		"right":                            {right, right, named, true},
		"Envoy's certificate says no name": {right, right, nameless, false},
		"Envoy's is of another authority":  {right, redistest.NewCerts(t, "rls.example", "envoy.example"), named, false},
		"rls's certificate is for another": {redistest.NewCerts(t, "other.example"), right, named, false},
		"rls has none: it speaks plainly":  {redistest.Certs{}, right, named, false},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			if c.server.CA != "" {
				env = []string{
					"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + c.server.ServerCert, "GRPC_SERVER_TLS_KEY=" + c.server.ServerKey,
					"GRPC_CLIENT_TLS_CACERT=" + c.server.CA, "GRPC_CLIENT_TLS_SAN=envoy.example",
				}
			}
			limits := limitsFile(t, "domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 2}}\n")
			conf := example(t, "envoy-mtls.yaml", startRLS(t, limits, env...))
			conf.filter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny = true })
			cert, key := c.clientCert(c.client)
			conf.certificates(c.client.CA, cert, key)
			e := conf.start()
			room(time.Hour, 10*time.Second)
			if !c.ok {
				assert.Equal(t, http.StatusInternalServerError, e.send(t, call{"/", "x-tenant: acme"}).status)
				return
			}
			for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
				assert.Equal(t, want, e.send(t, call{"/", "x-tenant: acme"}).status)
			}
		})
	}
}

func named(c redistest.Certs) (cert, key string)    { return c.ServerCert, c.ServerKey }
func nameless(c redistest.Certs) (cert, key string) { return c.ClientCert, c.ClientKey }

// certificates replaces the files of the example.
func (c config) certificates(ca, cert, key string) {
	c.t.Helper()
	require.Equal(c.t, "rls", c.StaticResources.Clusters[0].Name)
	change(c.t, c.StaticResources.Clusters[0].TransportSocket.GetTypedConfig(), func(tls *tlsv3.UpstreamTlsContext) {
		common := tls.CommonTlsContext
		common.TlsCertificates[0].CertificateChain = file(cert)
		common.TlsCertificates[0].PrivateKey = file(key)
		common.GetValidationContext().TrustedCa = file(ca)
	})
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
