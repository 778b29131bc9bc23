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

// issue returns a certificate that a signs, and the key, as PEM. Clients and servers on 127.0.0.1 can use it.
func issue(t *testing.T, a *certtest.Authority, name string, dns ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	pair := a.IssueNamed(name, dns...)
	return readFile(t, pair.CertFile), readFile(t, pair.KeyFile)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return text
}

// tlsFiles returns options with paths for the files of a server. Each file is in another directory.
func tlsFiles(t *testing.T) TLS {
	return TLS{
		CertFile:     filepath.Join(t.TempDir(), "tls.crt"),
		KeyFile:      filepath.Join(t.TempDir(), "tls.key"),
		ClientCAFile: filepath.Join(t.TempDir(), "ca.crt"),
		ReloadEvery:  10 * time.Millisecond,
	}
}

// replaceFile writes a file and renames it to path, so that no reader sees half of it.
func replaceFile(t *testing.T, path string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", content, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// issueTo writes a new certificate and the key into files. It returns the certificate.
func issueTo(t *testing.T, files TLS, a *certtest.Authority, name string) (certPEM []byte) {
	t.Helper()
	cert, key := issue(t, a, name)
	replaceFile(t, files.KeyFile, key) // until the next line, certificate and key do not match
	replaceFile(t, files.CertFile, cert)
	return cert
}

// callTLS makes a call on a new connection. It returns the common name in the certificate of the server.
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

// clientTLS returns the configuration of a client that trusts a. pair is the certificate of the client and the key; a
// client without a certificate has no pair.
func clientTLS(t *testing.T, a *certtest.Authority, pair ...[]byte) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: a.Pool()}
	if len(pair) == 2 {
		cert, err := tls.X509KeyPair(pair[0], pair[1])
		require.NoError(t, err)
		// Unlike Certificates, GetClientCertificate also sends certificates of CAs that the server does not name.
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
	server := start(t, Options{GRPC: GRPC{TLS: &files}})

	name, err := callTLS(t, server, clientTLS(t, ca))
	require.NoError(t, err)
	assert.Equal(t, "server", name)

	_, err = callTLS(t, server, clientTLS(t, certtest.New(t)))
	assert.Equal(t, codes.Unavailable, status.Code(err), "the client doesn't trust the server: %v", err)
	oldClient := clientTLS(t, ca)
	oldClient.MaxVersion = tls.VersionTLS11
	oldClient.MinVersion = tls.VersionTLS10
	_, err = callTLS(t, server, oldClient)
	assert.ErrorContains(t, err, "protocol version")
	_, err = server.client(t).ShouldRateLimit(t.Context(), shopRequest)
	assert.Equal(t, codes.Unavailable, status.Code(err), "plain text: %v", err)
}

func TestClientCertificateNeedsRightAuthorityAndName(t *testing.T) {
	t.Parallel()
	ca, clientCA, otherCA := certtest.New(t), certtest.New(t), certtest.New(t)
	pair := func(a *certtest.Authority, dns ...string) [][]byte {
		cert, key := issue(t, a, "client", dns...)
		return [][]byte{cert, key}
	}
	for _, tt := range []struct {
		name string
		san  string
		pair [][]byte
		isOK bool
	}{
		{"right CA", "", pair(clientCA), true},
		{"no certificate", "", nil, false},
		{"wrong CA", "", pair(otherCA), false},
		{"CA of the server", "", pair(ca), false},
		{"right name", "envoy.example", pair(clientCA, "envoy.example"), true},
		{"right name among others", "envoy.example", pair(clientCA, "a.example", "Envoy.Example"), true},
		{"wrong name", "envoy.example", pair(clientCA, "a.example"), false},
		{"wildcard that covers the name", "envoy.example", pair(clientCA, "*.example"), false},
		{"no name", "envoy.example", pair(clientCA), false},
		{"right name, wrong CA", "envoy.example", pair(otherCA, "envoy.example"), false},
		{"right name required, no certificate", "envoy.example", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tlsFiles(t)
			issueTo(t, files, ca, "server")
			replaceFile(t, files.ClientCAFile, readFile(t, clientCA.File))
			files.ClientSAN = tt.san
			server := start(t, Options{GRPC: GRPC{TLS: &files}})

			_, err := callTLS(t, server, clientTLS(t, ca, tt.pair...))
			if tt.isOK {
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
	replaceFile(t, files.ClientCAFile, readFile(t, ca.File))
	files.ClientSAN = "envoy.example"
	server := start(t, Options{GRPC: GRPC{TLS: &files}})

	clientCert, clientKey := issue(t, ca, "client", "other.example")
	c := clientTLS(t, ca, clientCert, clientKey)
	c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	for range 3 {
		_, err := callTLS(t, server, c)
		assert.Equal(t, codes.Unavailable, status.Code(err), err)
	}
}

func TestChangedCertificateIsInForceWithinASecond(t *testing.T) {
	ca := certtest.New(t)
	files := TLS{CertFile: filepath.Join(t.TempDir(), "tls.crt"), KeyFile: filepath.Join(t.TempDir(), "tls.key")}
	issueTo(t, files, ca, "first")
	synctest.Test(t, func(t *testing.T) {
		r, err := newTLSReloader(files, "gRPC", noObserver{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		go r.files.Watch(t.Context())
		time.Sleep(1500 * time.Millisecond)
		issueTo(t, files, ca, "second")
		time.Sleep(time.Second)
		synctest.Wait()
		currentConfig, err := r.config().GetConfigForClient(nil)
		require.NoError(t, err)
		assert.Equal(t, "second", currentConfig.Certificates[0].Leaf.Subject.CommonName)
	})
}

func TestCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	ca, newCA := certtest.New(t), certtest.New(t)
	files := tlsFiles(t)
	issueTo(t, files, ca, "first")
	replaceFile(t, files.ClientCAFile, readFile(t, ca.File))
	events := &eventRecorder{}
	server := start(t, Options{GRPC: GRPC{TLS: &files}, Observer: events})

	clientCert, clientKey := issue(t, ca, "client")
	client := clientTLS(t, ca, clientCert, clientKey)
	waitForCertificate := func(want string) {
		t.Helper()
		polltest.Until(t, maxWait, func() bool {
			name, err := callTLS(t, server, client)
			return err == nil && name == want
		})
	}
	waitForCertificate("first")

	issueTo(t, files, ca, "second")
	waitForCertificate("second")
	server.waitForLog(t, "TLS files reloaded")

	replaceFile(t, files.CertFile, []byte("no certificate"))
	server.waitForLog(t, "failed to find any PEM data")
	recordedEvents := events.recordedEvents() // on a slow machine, rls can first reject the new certificate with the old key
	assert.Equal(t, []string{"gRPC CN=second true", "gRPC  false"}, recordedEvents[max(len(recordedEvents)-2, 0):])
	waitForCertificate("second")
	require.NoError(t, os.Remove(files.KeyFile))
	server.waitForLog(t, "no such file")
	waitForCertificate("second")
	assert.NotContains(t, server.log.String(), "PRIVATE KEY")

	// Open connections go on. The next handshake accepts only the new CA.
	openConn := dial(t, server.GRPCAddr().String(), grpc.WithTransportCredentials(credentials.NewTLS(client)))
	_, err := rlsv3.NewRateLimitServiceClient(openConn).ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
	issueTo(t, files, ca, "third")
	replaceFile(t, files.ClientCAFile, readFile(t, newCA.File))
	polltest.Until(t, maxWait, func() bool {
		_, err := callTLS(t, server, client)
		return err != nil
	})
	_, err = rlsv3.NewRateLimitServiceClient(openConn).ShouldRateLimit(t.Context(), shopRequest)
	assert.NoError(t, err)
	clientCert, clientKey = issue(t, newCA, "client")
	client = clientTLS(t, ca, clientCert, clientKey)
	waitForCertificate("third")

	replaceFile(t, files.ClientCAFile, []byte("no certificate"))
	server.waitForLog(t, "contains no certificate")
	waitForCertificate("third")
}

func TestTLSFileProblemIsLoggedOnce(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	files := tlsFiles(t)
	cert := issueTo(t, files, ca, "server")
	files.ClientCAFile = ""
	var log logBuffer
	r, err := newTLSReloader(files, "gRPC", noObserver{}, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)

	lineCount := func() int { return strings.Count(log.String(), "\n") }
	reload := func() { // two reads must find the same change
		r.files.Reload()
		r.files.Reload()
	}
	reload()
	assert.Zero(t, lineCount(), "nothing has changed")
	replaceFile(t, files.CertFile, nil)
	reload()
	reload()
	assert.Equal(t, 1, lineCount())
	replaceFile(t, files.CertFile, cert) // the certificate that is in force
	reload()
	assert.Equal(t, 2, lineCount())
	assert.Contains(t, log.String(), "TLS files reloaded", "the problem is over")
	replaceFile(t, files.CertFile, nil)
	reload()
	assert.Equal(t, 3, lineCount(), "a new problem, even if the text is the same")
}

func TestExpiryOfACertificateIsReported(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	files := tlsFiles(t)
	cert, key := issue(t, ca, "server")
	files.ClientCAFile = ""
	replaceFile(t, files.CertFile, cert)
	replaceFile(t, files.KeyFile, key)
	var log logBuffer
	events := &eventRecorder{}
	r, err := newTLSReloader(files, "gRPC", events, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	assert.Equal(t, []string{"gRPC expires " + r.certificate().NotAfter.String()}, events.recordedEvents())
	assert.Empty(t, log.String(), "the certificate is valid")
	assert.True(t, r.expiryTimer.Reset(0), "the timer waits for the expiry")
	polltest.Until(t, maxWait, func() bool { return strings.Contains(log.String(), "TLS certificate expired") })
	assert.Contains(t, log.String(), "level=ERROR")
	assert.Contains(t, log.String(), "expired_since=")
}

func TestNewFailsOnBadTLSFiles(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	cert, key := issue(t, ca, "server")
	_, otherKey := issue(t, ca, "other")
	for _, tt := range []struct {
		name          string
		cert, key, ca []byte // the contents of the files; nil means that the file does not exist
		change        func(*TLS)
		want          string // "CERT", "KEY" and "ROOT" stand for the paths
	}{
		{"no certificate", nil, key, nil, func(o *TLS) { o.ClientCAFile = "" }, "CERT: no such file"},
		{"no key", cert, nil, nil, func(o *TLS) { o.ClientCAFile = "" }, "KEY: no such file"},
		{"no CA", cert, key, nil, nil, "ROOT: no such file"},
		{"paths not set", cert, key, nil, func(o *TLS) { *o = TLS{} }, "certificate and key"},
		{"not PEM", []byte("x"), key, readFile(t, ca.File), nil, "certificate CERT with key KEY: tls: failed to find any PEM data"},
		{"key of another certificate", cert, otherKey, readFile(t, ca.File), nil, "private key does not match public key"},
		{"CA without certificate", cert, key, []byte("x"), nil, "client CA ROOT contains no certificate"},
		{"name without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientSAN = "", "envoy.example" }, "a client SAN needs a client CA"},
		{"optional without CA", cert, key, nil, func(o *TLS) { o.ClientCAFile, o.ClientCertOptional = "", true }, "optional client certificates need a client CA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tlsFiles(t)
			want := strings.NewReplacer("CERT", files.CertFile, "KEY", files.KeyFile, "ROOT", files.ClientCAFile).Replace(tt.want)
			for path, content := range map[string][]byte{files.CertFile: tt.cert, files.KeyFile: tt.key, files.ClientCAFile: tt.ca} {
				if content != nil {
					replaceFile(t, path, content)
				}
			}
			if tt.change != nil {
				tt.change(&files)
			}
			for listener, o := range map[string]Options{
				"gRPC":  {Services: servicesOf(alwaysOK), GRPC: GRPC{TLS: &files}},
				"debug": {Services: servicesOf(alwaysOK), DebugTLS: &files},
			} {
				_, err := newServer(o)
				require.ErrorContains(t, err, listener+" TLS: ")
				assert.ErrorContains(t, err, want)
			}
		})
	}
}
