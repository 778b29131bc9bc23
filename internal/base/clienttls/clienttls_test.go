package clienttls_test

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/base/clienttls"
	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
)

func TestClientAndServerTrustOnlyCertificatesOfTheirCA(t *testing.T) {
	ca, otherCA := certtest.New(t), certtest.New(t)
	server, client, otherClient := ca.Issue("server"), ca.Issue("client"), otherCA.Issue("client")
	for name, test := range map[string]struct {
		files clienttls.Files
		want  string // a part of the error; empty if the handshake succeeds
	}{
		"both trust each other":       {clienttls.Files{CA: ca.File, Cert: client.CertFile, Key: client.KeyFile}, ""},
		"server of unknown authority": {clienttls.Files{Cert: client.CertFile, Key: client.KeyFile}, "unknown authority"},
		"client of unknown authority": {clienttls.Files{CA: ca.File, Cert: otherClient.CertFile, Key: otherClient.KeyFile}, "remote error: tls"},
		"client without certificate":  {clienttls.Files{CA: ca.File}, "remote error: tls"},
		"missing CA file":             {clienttls.Files{CA: "/nowhere"}, "CA file: open /nowhere: no such file or directory"},
		"CA file without certificate": {clienttls.Files{CA: client.KeyFile}, "contains no PEM certificate"},
		"certificate without key":     {clienttls.Files{Cert: client.CertFile}, "got only one, want both or none"},
		"key without certificate":     {clienttls.Files{Key: client.KeyFile}, "got only one, want both or none"},
		"key of another certificate":  {clienttls.Files{Cert: client.CertFile, Key: otherClient.KeyFile}, "client certificate " + client.CertFile},
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

// handshake connects a client to a server that requires client certificates of ca.
func handshake(t *testing.T, config *tls.Config, ca *certtest.Authority, server certtest.Pair) error {
	pair, err := tls.LoadX509KeyPair(server.CertFile, server.KeyFile)
	require.NoError(t, err)
	clientConn, serverConn := net.Pipe()
	defer clientConn.Close()
	defer serverConn.Close()
	// In TLS 1.2 the handshake of the client fails if the server rejects its certificate.
	s := tls.Server(serverConn, &tls.Config{
		MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})
	go func() { _ = s.Handshake() }()
	config.ServerName = "server"
	return tls.Client(clientConn, config).Handshake()
}
