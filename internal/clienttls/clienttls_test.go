package clienttls_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/certtest"
	"github.com/seed-81f232ab/rls/internal/clienttls"
)

func TestFiles(t *testing.T) {
	ca, other := certtest.New(t), certtest.New(t)
	server, client, stranger := ca.Issue("server"), ca.Issue("client"), other.Issue("client")
	for name, test := range map[string]struct {
		files clienttls.Files
		want  string // a part of the error; empty: the server knows the client
	}{
		"both trust each other":       {clienttls.Files{CA: ca.File, Cert: client.CertFile, Key: client.KeyFile}, ""},
		"a server of no authority":    {clienttls.Files{Cert: client.CertFile, Key: client.KeyFile}, "unknown authority"},
		"a client of another":         {clienttls.Files{CA: ca.File, Cert: stranger.CertFile, Key: stranger.KeyFile}, "remote error: tls"},
		"a client of none":            {clienttls.Files{CA: ca.File}, "remote error: tls"},
		"no CA file":                  {clienttls.Files{CA: "/nowhere"}, "the CA file: open /nowhere: no such file or directory"},
		"a CA file without any":       {clienttls.Files{CA: client.KeyFile}, "holds no certificate in PEM"},
		"a certificate without a key": {clienttls.Files{Cert: client.CertFile}, "must be given together"},
		"a key without a certificate": {clienttls.Files{Key: client.KeyFile}, "must be given together"},
		"of another key":              {clienttls.Files{Cert: client.CertFile, Key: stranger.KeyFile}, "the client certificate " + client.CertFile},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := test.files.Config()
			if err == nil {
				err = handshake(t, c, ca, server)
			}
			if test.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, test.want)
		})
	}
}

// handshake has a client greet a server that wants certificates of ca.
func handshake(t *testing.T, c *tls.Config, ca *certtest.Authority, server certtest.Pair) error {
	pair, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	require.NoError(t, err)
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	// TLS 1.2, in which the client learns of what the server thinks of it.
	s := tls.Server(far, &tls.Config{
		MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})
	go func() { _ = s.Handshake() }()
	c.ServerName = "server"
	return tls.Client(near, c).Handshake()
}
