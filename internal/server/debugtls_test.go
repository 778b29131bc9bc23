package server

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/internal/testkit/certtest"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// whoPage shows the common name of a caller with a verified certificate. For other callers, it shows "nobody".
var whoPage = Page{Path: "/who", Help: "the caller", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if chains := r.TLS.VerifiedChains; len(chains) > 0 {
		fmt.Fprint(w, chains[0][0].Subject.CommonName)
		return
	}
	fmt.Fprint(w, "nobody")
})}

// askWho gets whoPage on a new connection. If a call before had the same c, the connection resumes the TLS session.
func askWho(t *testing.T, r *testServer, c *tls.Config) (who string, conn *tls.ConnectionState, err error) {
	t.Helper()
	client := http.Client{Timeout: maxWait, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: c}}
	resp, err := client.Get("https://" + r.DebugAddr().String() + "/who")
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	return string(body), resp.TLS, nil
}

func TestDebugTLSVerifiesClientCertificates(t *testing.T) {
	t.Parallel()
	ca, clientCA, otherCA := certtest.New(t), certtest.New(t), certtest.New(t)
	pair := func(a *certtest.Authority, dns ...string) [][]byte {
		cert, key := issue(t, a, "client", dns...)
		return [][]byte{cert, key}
	}
	const unknownCA = "certificate signed by unknown authority"
	for _, tt := range []struct {
		name     string
		noCA     bool // the server has no CA for clients
		required bool // the server requires a certificate
		san      string
		pair     [][]byte
		want     string // the caller
		wantLog  string // a part of the log if the server refuses the connection
	}{
		{name: "no certificate", want: "nobody"},
		{name: "right CA", pair: pair(clientCA), want: "client"},
		{name: "wrong CA", pair: pair(otherCA), wantLog: unknownCA},
		{name: "CA of the server", pair: pair(ca), wantLog: unknownCA},
		{name: "name wanted, no certificate", san: "ops.example", want: "nobody"},
		{name: "name wanted, right name", san: "ops.example", pair: pair(clientCA, "ops.example"), want: "client"},
		{name: "name wanted, wrong name", san: "ops.example", pair: pair(clientCA, "a.example"), wantLog: "client certificate: got DNS names"},
		{name: "name wanted, right name of the wrong CA", san: "ops.example", pair: pair(otherCA, "ops.example"), wantLog: unknownCA},
		{name: "required, no certificate", required: true, wantLog: "didn't provide a certificate"},
		{name: "required, right CA", required: true, pair: pair(clientCA), want: "client"},
		{name: "server without a CA for clients", noCA: true, pair: pair(clientCA), want: "nobody"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tlsFiles(t)
			issueTo(t, files, ca, "server")
			replaceFile(t, files.ClientCAFile, readFile(t, clientCA.File))
			files.ClientCertOptional, files.ClientSAN = !tt.required, tt.san
			if tt.noCA {
				files.ClientCAFile, files.ClientCertOptional = "", false
			}
			server := start(t, Options{DebugTLS: &files, DebugPages: []Page{whoPage}})

			c := clientTLS(t, ca, tt.pair...)
			c.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			for _, isResumed := range []bool{false, true} {
				who, conn, err := askWho(t, server, c)
				if tt.wantLog != "" {
					assert.Error(t, err)
					server.waitForLog(t, tt.wantLog)
					continue
				}
				require.NoError(t, err)
				assert.Equal(t, tt.want, who)
				assert.Equal(t, isResumed, conn.DidResume)
			}
		})
	}
}

func TestDebugTLSFilesAreReloaded(t *testing.T) {
	t.Parallel()
	ca, oldCA, newCA := certtest.New(t), certtest.New(t), certtest.New(t)
	files := tlsFiles(t)
	issueTo(t, files, ca, "first")
	replaceFile(t, files.ClientCAFile, readFile(t, oldCA.File))
	files.ClientCertOptional = true
	server := start(t, Options{DebugTLS: &files, DebugPages: []Page{whoPage}})

	oldCert, oldKey := issue(t, oldCA, "old client")
	oldClient := clientTLS(t, ca, oldCert, oldKey)
	oldClient.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	who, conn, err := askWho(t, server, oldClient)
	require.NoError(t, err)
	assert.Equal(t, "old client", who)
	assert.Equal(t, "first", conn.PeerCertificates[0].Subject.CommonName)

	issueTo(t, files, ca, "second")
	replaceFile(t, files.ClientCAFile, readFile(t, newCA.File))
	newCert, newKey := issue(t, newCA, "new client")
	polltest.Until(t, maxWait, func() bool {
		who, conn, err := askWho(t, server, clientTLS(t, ca, newCert, newKey))
		return err == nil && who == "new client" && conn.PeerCertificates[0].Subject.CommonName == "second"
	})
	_, _, err = askWho(t, server, oldClient)
	assert.Error(t, err, "the server no longer trusts the CA of the session")
	server.waitForLog(t, "certificate signed by unknown authority")
	who, _, err = askWho(t, server, clientTLS(t, ca))
	require.NoError(t, err)
	assert.Equal(t, "nobody", who)
	assert.Contains(t, server.log.String(), "listener=debug")
}

func TestDebugTLSListenerRejectsPlainHTTP(t *testing.T) {
	t.Parallel()
	files := tlsFiles(t)
	issueTo(t, files, certtest.New(t), "server")
	files.ClientCAFile = ""
	server := start(t, Options{DebugTLS: &files, DebugPages: []Page{whoPage}})

	code, _, body := request(t, http.MethodGet, server.DebugAddr(), "/who", "")
	assert.Equal(t, http.StatusBadRequest, code)
	assert.Contains(t, body, "HTTP request to an HTTPS server")
}

// The API for operators may rely on verified callers, so a server with bad TLS files must not start.
func TestBadDebugTLSFilesFailStartEvenIfPortIsInUse(t *testing.T) {
	t.Parallel()
	firstServer := start(t, Options{})
	files := tlsFiles(t)
	o := Options{Services: servicesOf(alwaysOK), Debug: hostPort(t, firstServer.DebugAddr()), DebugTLS: &files}
	_, err := newServer(o)
	assert.ErrorContains(t, err, "debug TLS: ")

	issueTo(t, files, certtest.New(t), "server")
	files.ClientCAFile = ""
	secondServer := start(t, o)
	assert.Nil(t, secondServer.DebugAddr())
	assert.Contains(t, secondServer.log.String(), "debug listener failed")
}
