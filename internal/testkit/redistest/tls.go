package redistest

import (
	"crypto/tls"
	"strconv"
	"testing"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

// Certs are the PEM files of a certificate authority and its certificates.
type Certs struct {
	CA                    string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
}

// NewCerts returns new certificates. The server's certificate is for names.
func NewCerts(tb testing.TB, names ...string) Certs {
	tb.Helper()
	ca := certtest.New(tb)
	server, client := ca.Issue(names...), ca.Issue()
	return Certs{ca.File, server.CertFile, server.KeyFile, client.CertFile, client.KeyFile}
}

// StartTLS runs a redis-server that accepts only TLS with client certificates.
func StartTLS(tb testing.TB, c Certs) *Server {
	tb.Helper()
	conf := c.client(tb)
	s, err := onFreePort(func(port int) (*Server, error) {
		return run(port, conf, c.settings(port)...)
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.end(tb) })
	return s
}

// client returns a configuration with the client's certificate, which trusts every server.
func (c Certs) client(tb testing.TB) *tls.Config {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
}

// settings returns the settings of a redis-server that accepts only TLS on port.
func (c Certs) settings(port int) []string {
	return []string{
		"--port", "0", "--tls-port", strconv.Itoa(port),
		"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA,
	}
}
