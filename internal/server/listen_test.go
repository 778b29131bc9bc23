package server

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func hostPort(t *testing.T, a net.Addr) Addr {
	t.Helper()
	tcp, ok := a.(*net.TCPAddr)
	require.True(t, ok)
	return Addr{Host: tcp.IP.String(), Port: tcp.Port}
}

func TestTextOfAddrIsHostAndPort(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]Addr{
		":8081":           {Host: "", Port: 8081},
		"0.0.0.0:8081":    {Host: "0.0.0.0", Port: 8081},
		"[::]:8081":       {Host: "::", Port: 8081},
		"[fe80::1]:0":     {Host: "fe80::1", Port: 0},
		"rls.example:443": {Host: "rls.example", Port: 443},
	} {
		assert.Equal(t, want, a.String())
	}
}

func TestParseAddrAcceptsOnlyHostAndPort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Addr{
		":9090":           {Host: "", Port: 9090},
		":65535":          {Host: "", Port: 65535},
		"127.0.0.1:0":     {Host: "127.0.0.1", Port: 0},
		":http":           {Host: "", Port: 80},
		"127.0.0.1:9090":  {Host: "127.0.0.1", Port: 9090},
		"[::]:19001":      {Host: "::", Port: 19001},
		"[fe80::1%eth0]:": {},
		"rls.example:443": {Host: "rls.example", Port: 443},
		"":                {},
		":":               {},
		"9090":            {},
		"localhost":       {},
		"::1:9090":        {},
		"[::1]":           {},
		"[::1:9090":       {},
		":-1":             {},
		":65536":          {},
		":9090 ":          {},
		":no-such-name":   {},
		"a.example:9090/": {},
	} {
		got, err := ParseAddr(text)
		assert.Equal(t, want, got, text)
		if want == (Addr{}) {
			assert.ErrorContains(t, err, fmt.Sprintf("%q is not host:port", text))
			continue
		}
		assert.NoError(t, err)
		parsedAgain, err := ParseAddr(got.String())
		assert.NoError(t, err)
		assert.Equal(t, got, parsedAgain)
	}
}

func TestAddressesAreLoggedAsText(t *testing.T) {
	t.Parallel()
	var log logBuffer
	server := start(t, Options{Metrics: &MetricsListener{Handler: http.NotFoundHandler()}, Log: slog.New(slog.NewJSONHandler(&log, nil))})
	server.log = &log
	server.waitForLog(t, fmt.Sprintf(`"msg":"listening","grpc":"%s","http":"%s","debug":"%s","metrics":"%s"}`, server.GRPCAddr(), server.HTTPAddr(), server.DebugAddr(), server.MetricsAddr()))
}

func TestNewFailsIfPortIsInUse(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Metrics: &MetricsListener{Handler: http.NotFoundHandler()}})
	usedAddr := func(a net.Addr) Addr {
		usedAddress := hostPort(t, a)
		usedAddress.Setting = "SOME_PORT"
		return usedAddress
	}
	for listener, setUsedAddr := range map[string]func(*Options){
		"gRPC":    func(o *Options) { o.GRPC = GRPC{Addr: usedAddr(server.GRPCAddr())} },
		"HTTP":    func(o *Options) { o.HTTP = usedAddr(server.HTTPAddr()) },
		"metrics": func(o *Options) { o.Metrics.Addr = usedAddr(server.MetricsAddr()) },
	} {
		freePort := Addr{Host: "127.0.0.1"}
		socket := filepath.Join(t.TempDir(), "rls.sock")
		o := Options{
			Services: servicesOf(alwaysOK), Log: slog.New(slog.DiscardHandler), GRPC: GRPC{UDS: socket}, HTTP: freePort, Debug: freePort,
			Metrics: &MetricsListener{Addr: freePort, Handler: http.NotFoundHandler()},
		}
		setUsedAddr(&o)
		_, err := newServer(o)
		assert.ErrorIs(t, err, syscall.EADDRINUSE, listener)
		if runtime.GOOS == "linux" {
			assert.ErrorContains(t, err, fmt.Sprintf(" (process %d); end this program, or change ", os.Getpid()), listener)
		}
		assert.ErrorContains(t, err, listener+" listener")
		assert.ErrorContains(t, err, "or change SOME_PORT")
		assert.NoFileExists(t, socket, "New releases the listeners that it has bound")
	}
}

func TestNewFailsWithoutServices(t *testing.T) {
	t.Parallel()
	_, err := newServer(Options{})
	assert.ErrorContains(t, err, "Service")
}

func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "rls.sock")
	leaveSocket(t, path)
	server := start(t, Options{GRPC: GRPC{UDS: path}})

	_, err := rlsv3.NewRateLimitServiceClient(dial(t, "unix:"+path)).ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
	server.stop()
	server.waitUntilStopped(t, maxWait)
	assert.NoFileExists(t, path)
}

// leaveSocket leaves a socket file behind, as a killed process does.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
}

func TestNewFailsIfSocketPathIsInUse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		usePath func(t *testing.T, path string)
		want    string
	}{
		{"by a live server", func(t *testing.T, path string) { start(t, Options{GRPC: GRPC{UDS: path}}) }, "in use"},
		{"by a file", func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("x"), 0o600)) }, "not a socket"},
		{"by a directory", func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, "not a socket"},
		{"by a link", func(t *testing.T, path string) { require.NoError(t, os.Symlink("elsewhere", path)) }, "not a socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rls.sock")
			tt.usePath(t, path)
			_, err := newServer(Options{Services: servicesOf(alwaysOK), GRPC: GRPC{UDS: path}})
			assert.ErrorContains(t, err, tt.want)
			_, err = os.Lstat(path)
			assert.NoError(t, err, "New does not remove the file")
		})
	}
}

func TestNewFailsIfSocketDirectoryIsMissing(t *testing.T) {
	t.Parallel()
	_, err := newServer(Options{Services: servicesOf(alwaysOK), GRPC: GRPC{UDS: filepath.Join(t.TempDir(), "no", "rls.sock")}})
	assert.ErrorContains(t, err, "gRPC listener")
}
