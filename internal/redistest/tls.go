package redistest

import (
	"crypto/tls"
	"strconv"
	"testing"

	"github.com/seed-81f232ab/rls/internal/certtest"
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
	pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		tb.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}
	s, err := onFreePort(func(port int) (*Server, error) {
		return run("redis-server", port, conf, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA)
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}
