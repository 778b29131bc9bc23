package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// issue returns a certificate of a for clients and servers on 127.0.0.1, and its key, as
// PEM.
func issue(t *testing.T, a *certtest.Authority, name string, dns ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	pair := a.IssueNamed(name, dns...)
	return content(t, pair.CertFile), content(t, pair.KeyFile)
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// tlsFiles returns options with paths for the files of a server, each in a separate
// directory.
func tlsFiles(t *testing.T) TLS {
	return TLS{
		CertFile:     filepath.Join(t.TempDir(), "tls.crt"),
		KeyFile:      filepath.Join(t.TempDir(), "tls.key"),
		ClientCAFile: filepath.Join(t.TempDir(), "ca.crt"),
		ReloadEvery:  10 * time.Millisecond,
	}
}

// replace writes a file and renames it to path, so that no reader sees half of it.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", content, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// issueTo writes a new certificate and its key to files and returns the certificate.
func issueTo(t *testing.T, files TLS, a *certtest.Authority, name string) (certPEM []byte) {
	t.Helper()
	cert, key := issue(t, a, name)
	replace(t, files.KeyFile, key) // for a moment certificate and key do not match
	replace(t, files.CertFile, cert)
	return cert
}

// callTLS makes a call on a new connection. It returns the common name of the server's
// certificate.
func callTLS(t *testing.T, r *testServer, c *tls.Config) (server string, err error) {
	t.Helper()
	conn, err := grpc.NewClient(r.GRPCAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(c)))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), maxWait)
	defer cancel()
	var p peer.Peer
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, shopRequest, grpc.Peer(&p)); err != nil {
		return "", err
	}
	return p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName, nil
}

// clientTLS returns the configuration of a client that trusts a and shows pair, if given.
func clientTLS(t *testing.T, a *certtest.Authority, pair ...[]byte) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: a.Pool()}
	if len(pair) == 2 {
		cert, err := tls.X509KeyPair(pair[0], pair[1])
		require.NoError(t, err)
		// Unlike Certificates, GetClientCertificate also sends certificates of CAs that
		// the server does not name.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	return c
}

func TestGRPCSpeaksTLS12OrLater(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	files := tlsFiles(t)
	issueTo(t, files, ca, "server")
	files.ClientCAFile = ""
	r := start(t, Options{GRPC: GRPC{TLS: &files}})

	name, err := callTLS(t, r, clientTLS(t, ca))
	require.NoError(t, err)
	assert.Equal(t, "server", name)

	_, err = callTLS(t, r, clientTLS(t, certtest.New(t)))
	assert.Equal(t, codes.Unavailable, status.Code(err), "the client doesn't trust the server: %v", err)
	old := clientTLS(t, ca)
	old.MaxVersion = tls.VersionTLS11
	old.MinVersion = tls.VersionTLS10
	_, err = callTLS(t, r, old)
	assert.ErrorContains(t, err, "protocol version")
	_, err = r.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.Equal(t, codes.Unavailable, status.Code(err), "plain text: %v", err)
}

func TestClientCertificateNeedsRightAuthorityAndName(t *testing.T) {
	t.Parallel()
	ca, clients, other := certtest.New(t), certtest.New(t), certtest.New(t)
	pair := func(a *certtest.Authority, dns ...string) [][]byte {
		cert, key := issue(t, a, "client", dns...)
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
			replace(t, files.ClientCAFile, content(t, clients.File))
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

func TestClientSANIsCheckedOnResumedSessions(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	files := tlsFiles(t)
	issueTo(t, files, ca, "server")
	replace(t, files.ClientCAFile, content(t, ca.File))
	files.ClientSAN = "envoy.example"
	r := start(t, Options{GRPC: GRPC{TLS: &files}})

	clientCert, clientKey := issue(t, ca, "client", "other.example")
	c := clientTLS(t, ca, clientCert, clientKey)
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 3 {
		_, err := callTLS(t, r, c)
		assert.Equal(t, codes.Unavailable, status.Code(err), err)
	}
}

func TestChangedCertificateIsInForceWithinASecond(t *testing.T) {
	ca := certtest.New(t)
	files := TLS{CertFile: filepath.Join(t.TempDir(), "tls.crt"), KeyFile: filepath.Join(t.TempDir(), "tls.key")}
	issueTo(t, files, ca, "first")
	synctest.Test(t, func(t *testing.T) {
		r, err := newTLSReloader(files, func(string, error) {}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		go r.files.Watch(t.Context())
		time.Sleep(1500 * time.Millisecond)
		issueTo(t, files, ca, "second")
		time.Sleep(time.Second)
		synctest.Wait()
		current, err := r.config().GetConfigForClient(nil)
		require.NoError(t, err)
		assert.Equal(t, "second", current.Certificates[0].Leaf.Subject.CommonName)
	})
}

func TestCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	ca, newCA := certtest.New(t), certtest.New(t)
	files := tlsFiles(t)
	issueTo(t, files, ca, "first")
	replace(t, files.ClientCAFile, content(t, ca.File))
	events := &eventRecorder{}
	r := start(t, Options{GRPC: GRPC{TLS: &files}, Observer: events})

	clientCert, clientKey := issue(t, ca, "client")
	client := clientTLS(t, ca, clientCert, clientKey)
	serves := func(want string) {
		t.Helper()
		polltest.Until(t, maxWait, func() bool {
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
	assert.Equal(t, []string{"gRPC CN=second true", "gRPC  false"}, events.all())
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
	replace(t, files.ClientCAFile, content(t, newCA.File))
	polltest.Until(t, maxWait, func() bool {
		_, err := callTLS(t, r, client)
		return err != nil
	})
	_, err = rlsv3.NewRateLimitServiceClient(old).ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err)
	clientCert, clientKey = issue(t, newCA, "client")
	client = clientTLS(t, ca, clientCert, clientKey)
	serves("third")

	replace(t, files.ClientCAFile, []byte("no certificate"))
	r.logs(t, "contains no certificate")
	serves("third")
}

func TestTLSFileFaultIsLoggedOnce(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	files := tlsFiles(t)
	cert := issueTo(t, files, ca, "server")
	files.ClientCAFile = ""
	var log logBuffer
	r, err := newTLSReloader(files, func(string, error) {}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)

	lines := func() int { return strings.Count(log.String(), "\n") }
	reload := func() { // two reads must find the same change
		r.files.Reload()
		r.files.Reload()
	}
	reload()
	assert.Zero(t, lines(), "nothing has changed")
	replace(t, files.CertFile, nil)
	reload()
	reload()
	assert.Equal(t, 1, lines())
	replace(t, files.CertFile, cert) // back to what is in force
	reload()
	assert.Equal(t, 2, lines())
	assert.Contains(t, log.String(), "TLS files reloaded", "the fault is over")
	replace(t, files.CertFile, nil)
	reload()
	assert.Equal(t, 3, lines(), "a new fault, though the same text")
}

func TestNewFailsOnBadTLSFiles(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := issue(t, ca, "server")
	_, otherKey := issue(t, ca, "other")
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
		{"not PEM", []byte("x"), key, content(t, ca.File), nil, "certificate CERT with key KEY: tls: failed to find any PEM data"},
		{"key of another", cert, otherKey, content(t, ca.File), nil, "private key does not match public key"},
		{"CA without certificate", cert, key, []byte("x"), nil, "client CA ROOT contains no certificate"},
		{"name without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientSAN = "", "envoy.example" }, "a client SAN needs a client CA"},
		{"optional without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientCertOptional = "", true }, "optional client certificates need a client CA"},
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
				"gRPC":  {Services: register(alwaysOK), GRPC: GRPC{TLS: &files}},
				"debug": {Services: register(alwaysOK), DebugTLS: &files},
			} {
				_, err := New(o)
				require.ErrorContains(t, err, listener+" TLS: ")
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
