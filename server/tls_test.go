package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/polltest"
)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// sign completes and signs the template; a new authority signs itself.
func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}

// issue returns a certificate for servers and clients, and its key, as PEM.
func (a *authority) issue(t *testing.T, name string, dns ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	cert, key := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: dns, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return pemBlock("CERTIFICATE", cert.Raw), pemBlock("PRIVATE KEY", der)
}

func (a *authority) pem() []byte { return pemBlock("CERTIFICATE", a.cert.Raw) }

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// tlsFiles are where a server under test reads from, each in a directory of
// its own.
func tlsFiles(t *testing.T) TLS {
	return TLS{
		CertFile:     filepath.Join(t.TempDir(), "tls.crt"),
		KeyFile:      filepath.Join(t.TempDir(), "tls.key"),
		ClientCAFile: filepath.Join(t.TempDir(), "ca.crt"),
		ReloadEvery:  10 * time.Millisecond,
	}
}

// replace swaps in a new file by rename, so that no reader sees half of it.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", content, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// issueTo puts a new certificate, which it returns, and its key where files says.
func issueTo(t *testing.T, files TLS, a *authority, name string) (certPEM []byte) {
	t.Helper()
	cert, key := a.issue(t, name)
	replace(t, files.KeyFile, key) // for a moment the pair doesn't fit
	replace(t, files.CertFile, cert)
	return cert
}

// callTLS makes one call on a new connection and returns the common name of
// the server's certificate.
func callTLS(t *testing.T, r *running, c *tls.Config) (server string, err error) {
	t.Helper()
	conn, err := grpc.NewClient(r.GRPCAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var p peer.Peer
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, shopRequest, grpc.Peer(&p)); err != nil {
		return "", err
	}
	return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName, nil
}

// clientTLS trusts a and shows the given pair, if any.
func clientTLS(t *testing.T, a *authority, pair ...[]byte) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: a.pool()}
	if len(pair) == 2 {
		cert, err := tls.X509KeyPair(pair[0], pair[1])
		require.NoError(t, err)
		// Not Certificates: that one is only sent to servers that name its CA.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}

func TestTLS(t *testing.T) {
	ca := newAuthority(t, "ca")
	files := tlsFiles(t)
	issueTo(t, files, ca, "server")
	files.ClientCAFile = ""
	r := start(t, Options{GRPC: GRPC{TLS: &files}})

	name, err := callTLS(t, r, clientTLS(t, ca))
	require.NoError(t, err)
	assert.Equal(t, "server", name)

	_, err = callTLS(t, r, clientTLS(t, newAuthority(t, "other")))
	assert.Equal(t, codes.Unavailable, status.Code(err), "the client doesn't trust the server: %v", err)
	old := clientTLS(t, ca)
	old.MaxVersion = tls.VersionTLS11
	old.MinVersion = tls.VersionTLS10
	_, err = callTLS(t, r, old)
	assert.ErrorContains(t, err, "protocol version")
	_, err = r.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.Equal(t, codes.Unavailable, status.Code(err), "plain text: %v", err)
}

func TestClientCertificates(t *testing.T) {
	ca, clients, other := newAuthority(t, "ca"), newAuthority(t, "clients"), newAuthority(t, "other")
	pair := func(a *authority, dns ...string) [][]byte {
		cert, key := a.issue(t, "client", dns...)
		return [][]byte{cert, key}
	}
	for _, tt := range []struct {
		name string
		san  string
		pair [][]byte
		ok   bool
	}{
		{"right CA", "", pair(clients), true},
		{"no certificate", "", nil, false},
		{"wrong CA", "", pair(other), false},
		{"the server's CA is not the clients'", "", pair(ca), false},
		{"right name", "envoy.example", pair(clients, "envoy.example"), true},
		{"right name among others", "envoy.example", pair(clients, "a.example", "Envoy.Example"), true},
		{"wrong name", "envoy.example", pair(clients, "a.example"), false},
		{"a wildcard is not the name", "envoy.example", pair(clients, "*.example"), false},
		{"no name", "envoy.example", pair(clients), false},
		{"right name, wrong CA", "envoy.example", pair(other, "envoy.example"), false},
		{"right name required, no certificate", "envoy.example", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tlsFiles(t)
			issueTo(t, files, ca, "server")
			replace(t, files.ClientCAFile, clients.pem())
			files.ClientSAN = tt.san
			r := start(t, Options{GRPC: GRPC{TLS: &files}})

			_, err := callTLS(t, r, clientTLS(t, ca, tt.pair...))
			if tt.ok {
				assert.NoError(t, err)
			} else {
				assert.Equal(t, codes.Unavailable, status.Code(err), err)
			}
		})
	}
}

func TestSANIsCheckedOnResumedSessions(t *testing.T) {
	ca := newAuthority(t, "ca")
	files := tlsFiles(t)
	issueTo(t, files, ca, "server")
	replace(t, files.ClientCAFile, ca.pem())
	files.ClientSAN = "envoy.example"
	r := start(t, Options{GRPC: GRPC{TLS: &files}})

	clientCert, clientKey := ca.issue(t, "client", "other.example")
	c := clientTLS(t, ca, clientCert, clientKey)
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 3 {
		_, err := callTLS(t, r, c)
		assert.Equal(t, codes.Unavailable, status.Code(err), err)
	}
}

func TestCertificateIsReloaded(t *testing.T) {
	ca, newCA := newAuthority(t, "ca"), newAuthority(t, "new ca")
	files := tlsFiles(t)
	issueTo(t, files, ca, "first")
	replace(t, files.ClientCAFile, ca.pem())
	r := start(t, Options{GRPC: GRPC{TLS: &files}})

	clientCert, clientKey := ca.issue(t, "client")
	client := clientTLS(t, ca, clientCert, clientKey)
	serves := func(want string) {
		t.Helper()
		polltest.Until(t, soon, func() bool {
			name, err := callTLS(t, r, client)
			return err == nil && name == want
		})
	}
	serves("first")

	issueTo(t, files, ca, "second")
	serves("second")
	r.logs(t, "TLS files reloaded")

	replace(t, files.CertFile, []byte("no certificate"))
	r.logs(t, "failed to find any PEM data")
	serves("second")
	require.NoError(t, os.Remove(files.KeyFile))
	r.logs(t, "no such file")
	serves("second")
	assert.NotContains(t, r.log.String(), "PRIVATE KEY")

	// Connections from before go on; the next handshake knows the new CA only.
	old := dial(t, r.GRPCAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(client)))
	_, err := rlsv3.NewRateLimitServiceClient(old).ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
	issueTo(t, files, ca, "third")
	replace(t, files.ClientCAFile, newCA.pem())
	polltest.Until(t, soon, func() bool {
		_, err := callTLS(t, r, client)
		return err != nil
	})
	_, err = rlsv3.NewRateLimitServiceClient(old).ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err)
	clientCert, clientKey = newCA.issue(t, "client")
	client = clientTLS(t, ca, clientCert, clientKey)
	serves("third")

	replace(t, files.ClientCAFile, []byte("no certificate"))
	r.logs(t, "holds no certificate")
	serves("third")
}

func TestAFaultInTLSFilesIsLoggedOnce(t *testing.T) {
	ca := newAuthority(t, "ca")
	files := tlsFiles(t)
	cert := issueTo(t, files, ca, "server")
	files.ClientCAFile = ""
	var log logBuffer
	r, err := newTLSReloader(files, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)

	lines := func() int { return strings.Count(log.String(), "\n") }
	r.reload()
	assert.Zero(t, lines(), "nothing has changed")
	replace(t, files.CertFile, nil)
	r.reload()
	r.reload()
	assert.Equal(t, 1, lines())
	replace(t, files.CertFile, cert) // back to what is in force
	r.reload()
	assert.Equal(t, 1, lines())
	replace(t, files.CertFile, nil)
	r.reload()
	assert.Equal(t, 2, lines(), "a new fault, though the same text")
}

func TestUnusableTLSFilesAreAnErrorAtStart(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert, key := ca.issue(t, "server")
	_, otherKey := ca.issue(t, "other")
	for _, tt := range []struct {
		name          string
		cert, key, ca []byte // nil: no such file
		change        func(*TLS)
		want          string // "CERT", "KEY" and "ROOT" stand for the paths
	}{
		{"no certificate", nil, key, nil, func(o *TLS) { o.ClientCAFile = "" }, "CERT: no such file"},
		{"no key", cert, nil, nil, func(o *TLS) { o.ClientCAFile = "" }, "KEY: no such file"},
		{"no CA", cert, key, nil, nil, "ROOT: no such file"},
		{"paths not set", cert, key, nil, func(o *TLS) { *o = TLS{} }, "certificate and key"},
		{"not PEM", []byte("x"), key, ca.pem(), nil, "certificate CERT with key KEY: tls: failed to find any PEM data"},
		{"key of another", cert, otherKey, ca.pem(), nil, "private key does not match public key"},
		{"CA without certificate", cert, key, []byte("x"), nil, "client CA ROOT holds no certificate"},
		{"name without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientSAN = "", "envoy.example" }, "no client CA"},
		{"optional without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientCertOptional = "", true }, "none could be verified"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tlsFiles(t)
			want := strings.NewReplacer("CERT", files.CertFile, "KEY", files.KeyFile, "ROOT", files.ClientCAFile).Replace(tt.want)
			for path, content := range map[string][]byte{files.CertFile: tt.cert, files.KeyFile: tt.key, files.ClientCAFile: tt.ca} {
				if content != nil {
					replace(t, path, content)
				}
			}
			if tt.change != nil {
				tt.change(&files)
			}
			for listener, o := range map[string]Options{
				"gRPC":  {Service: alwaysOK, GRPC: GRPC{TLS: &files}},
				"debug": {Service: alwaysOK, DebugTLS: &files},
			} {
				_, err := New(o)
				require.ErrorContains(t, err, listener+" TLS: ")
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
