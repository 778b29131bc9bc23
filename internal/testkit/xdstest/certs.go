package xdstest

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

// Authority issues certificates for a control plane and its clients.
type Authority struct {
	*certtest.Authority
	t *testing.T
}

// NewAuthority returns a new authority.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	return &Authority{certtest.New(t), t}
}

// MutualTLS returns the option of a server that presents p and requires a client
// certificate of a.
func (a *Authority) MutualTLS(p certtest.Pair) grpc.ServerOption {
	a.t.Helper()
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	require.NoError(a.t, err)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    a.Pool(),
	}))
}
