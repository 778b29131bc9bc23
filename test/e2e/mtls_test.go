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

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

// TestMTLSAcceptsOnlyTheRightCertificates runs examples/envoy-mtls.yaml.
func TestMTLSAcceptsOnlyTheRightCertificates(t *testing.T) {
	ca, otherCA := certtest.New(t), certtest.New(t)
	server, client := ca.Issue("rls.example"), ca.Issue("envoy.example")
	for name, test := range map[string]struct {
		server, client certtest.Pair
		ok             bool
	}{
		"right certificates":                        {server, client, true},
		"Envoy's certificate has no name":           {server, ca.Issue(), false},
		"Envoy's certificate has another authority": {server, otherCA.Issue("envoy.example"), false},
		"rls's certificate has another authority":   {otherCA.Issue("rls.example"), client, false},
		"rls's certificate has another name":        {ca.Issue("other.example"), client, false},
		"rls serves without TLS":                    {certtest.Pair{}, client, false},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			if test.server.CertFile != "" {
				env = []string{
					"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + test.server.CertFile, "GRPC_SERVER_TLS_KEY=" + test.server.KeyFile,
					"GRPC_CLIENT_TLS_CACERT=" + ca.File, "GRPC_CLIENT_TLS_SAN=envoy.example",
				}
			}
			limits := limitsFile(t, "domain: shop\ndescriptors:\n  - {key: tenant, rate_limit: {unit: hour, requests_per_unit: 2}}\n")
			conf := exampleConfig(t, "envoy-mtls.yaml", startRLS(t, limits, env...))
			conf.editFilter(func(f *ratelimitv3.RateLimit) { f.FailureModeDeny = true })
			conf.setCertificates(ca.File, test.client)
			envoy := conf.start()
			awaitTimeLeft(time.Hour, 10*time.Second)
			if !test.ok {
				assert.Equal(t, http.StatusInternalServerError, envoy.send(t, call{"/", "x-tenant: acme"}).status)
				return
			}
			for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
				assert.Equal(t, want, envoy.send(t, call{"/", "x-tenant: acme"}).status)
			}
		})
	}
}

// setCertificates replaces the files that the example names.
func (c config) setCertificates(ca string, client certtest.Pair) {
	c.t.Helper()
	require.Equal(c.t, "rls", c.StaticResources.Clusters[0].Name)
	editAny(c.t, c.StaticResources.Clusters[0].TransportSocket.GetTypedConfig(), func(tls *tlsv3.UpstreamTlsContext) {
		common := tls.CommonTlsContext
		common.TlsCertificates[0].CertificateChain = dataSource(client.CertFile)
		common.TlsCertificates[0].PrivateKey = dataSource(client.KeyFile)
		common.GetValidationContext().TrustedCa = dataSource(ca)
	})
}

func dataSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
