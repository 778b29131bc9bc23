package redistest

import (
	"crypto/tls"
	"strconv"
	"testing"

	"github.com/seed-81f232ab/rls/internal/certtest"
)

// Certs are PEM files of a certificate authority and of what it has signed.
type Certs struct {
	CA                    string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
}

// NewCerts makes certificates; the server's is for the given names.
func NewCerts(tb testing.TB, names ...string) Certs {
	tb.Helper()
	ca := certtest.New(tb)
	server, client := ca.Issue(names...), ca.Issue()
	return Certs{ca.File, server.CertFile, server.KeyFile, client.CertFile, client.KeyFile}
}

// StartTLS runs a redis-server that speaks only TLS, and demands a certificate of
// its clients.
func StartTLS(tb testing.TB, c Certs) *Server {
	tb.Helper()
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		tb.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	s, err := anywhere(func(port int) (*Server, error) {
		return run("redis-server", port, conf, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA)
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}
