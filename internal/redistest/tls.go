package redistest

import (
	"context"
	"crypto/tls"
	"strconv"
	"testing"

	goredis "github.com/redis/go-redis/v9"

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
	s, err := anywhere(func(port int) (*Server, error) {
		ping := func(ctx context.Context) error {
			client := goredis.NewClient(&goredis.Options{
				Addr: "127.0.0.1:" + strconv.Itoa(port), MaxRetries: -1,
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true},
			})
			defer client.Close()
			return client.Ping(ctx).Err()
		}
		return run("redis-server", port, ping, "--port", "0", "--tls-port", strconv.Itoa(port),
			"--tls-cert-file", c.ServerCert, "--tls-key-file", c.ServerKey, "--tls-ca-cert-file", c.CA)
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}
