package server

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDebugListenerServesPagesAndProfiles(t *testing.T) {
	t.Parallel()
	pageWith := func(text string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	}
	server := start(t, Options{DebugPages: []Page{
		{Path: "/rlconfig", Help: "the limits in force", Handler: pageWith("shop.path: unit=MINUTE")},
		{Path: "/{$}", Help: "the live page", Handler: pageWith("the live page")},
		{Path: "/assets/", Help: "", Handler: pageWith("an asset")},
		{Path: "/boom", Help: "panics", Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })},
	}})

	for _, tt := range []struct {
		path string
		code int
		want string // part of the body
	}{
		{"/", 200, "the live page"},
		{"/assets/page.css", 200, "an asset"},
		{"/endpoints", 200, "/: the live page\n/boom: panics\n/debug/pprof/: "},
		{"/endpoints", 200, "/rlconfig: the limits in force\n"},
		{"/no/such/page", 404, "Not Found: unknown path; /endpoints lists all pages\n"},
		{"/admin/overrides", 404, "unknown path"},
		{"/rlconfig/", 404, "unknown path"},
		{"/rlconfig", 200, "shop.path: unit=MINUTE"},
		{"/debug/pprof/", 200, "goroutine"},
		{"/debug/pprof/heap?debug=1", 200, "heap profile"},
		{"/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"/debug/pprof/trace?seconds=0.01", 200, ""},
		{"/debug/pprof/cmdline", 404, "Unknown profile"}, // because arguments can contain secrets
		{"/boom", 500, "Internal Server Error: internal error\n"},
	} {
		t.Run(tt.path, func(t *testing.T) {
			code, _, body := request(t, http.MethodGet, server.DebugAddr(), tt.path, "")
			assert.Equal(t, tt.code, code)
			assert.Contains(t, body, tt.want)
		})
	}
}

func TestDebugListenerWithoutPagesListsEndpoints(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	code, _, body := request(t, http.MethodGet, server.DebugAddr(), "/", "")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, "/debug/pprof/: ")
	code, _, _ = request(t, http.MethodGet, server.DebugAddr(), "/x", "")
	assert.Equal(t, 404, code)
}

func TestOnlyLocalCallersGetProfiles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		remoteAddr, host string
		want             int
	}{
		{"127.0.0.1:4711", "localhost:6070", 200},
		{"[::1]:4711", "[::1]:6070", 200},
		{"[::1]:4711", "[::1]", 200},
		{"[::ffff:127.0.0.1]:80", "127.0.0.1", 200},
		{"127.0.0.1:4711", "LOCALHOST.:6070", 200},
		{"10.0.0.7:4711", "localhost:6070", 403},
		{"[2001:db8::1]:4711", "localhost:6070", 403},
		{"", "localhost:6070", 403},
		{"127.0.0.1:4711", "evil.example:6070", 403},
		{"127.0.0.1:4711", "localhost.evil.example", 403},
		{"127.0.0.1:4711", "", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
		r.RemoteAddr, r.Host = tt.remoteAddr, tt.host
		w := httptest.NewRecorder()
		requireLocal(func(w http.ResponseWriter, _ *http.Request) {}).ServeHTTP(w, r)
		assert.Equal(t, tt.want, w.Code, tt)
	}
}

func TestOtherSitesCanNotReadDebugPages(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "limits") })
	handler := debugHandler([]Page{
		{Path: "/rlconfig", Handler: answer},
		{Path: "/live/stream", Handler: answer, IsStream: true},
		{Path: "/metrics", Handler: answer, AllowsAnyHost: true},
	}, []string{"rls.example.com", "Other.Example:6070"}, t.Context())
	getStatus := func(path, host string, hasTLS bool) int {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		if hasTLS {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	for host, want := range map[string]int{
		"localhost:6070":              200,
		"127.0.0.1":                   200,
		"10.3.0.7:6070":               200,
		"[2001:db8::1]:6070":          200,
		"rls:6070":                    200,
		"rls.shop.svc:6070":           200,
		"rls.shop.svc.cluster.local.": 200,
		"node-7.internal":             200,
		"rls.localhost":               200,
		"RLS.example.com.:6070":       200,
		"other.example":               200,
		"evil.example:6070":           403,
		"evil.rls.example.com":        403,
		"127.0.0.1.evil.example":      403,
		"svc.evil.example":            403,
		"evilsvc.com":                 403,
		"":                            403,
	} {
		assert.Equal(t, want, getStatus("/rlconfig", host, false), host)
		assert.Equal(t, want, getStatus("/live/stream", host, false), host)
		assert.Equal(t, 200, getStatus("/metrics", host, false), host)
		assert.Equal(t, 200, getStatus("/rlconfig", host, true), host)
	}
}

func TestDebugPortInUseIsOnlyLogged(t *testing.T) {
	t.Parallel()
	firstServer := start(t, Options{})
	secondServer := start(t, Options{Debug: hostPort(t, firstServer.DebugAddr())})

	assert.Nil(t, secondServer.DebugAddr())
	assert.Contains(t, secondServer.log.String(), "debug listener failed")
	_, err := secondServer.client(t).ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
}
