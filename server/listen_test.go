package server

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
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

func TestAddrString(t *testing.T) {
	for want, a := range map[string]Addr{
		":8081":           {"", 8081},
		"0.0.0.0:8081":    {"0.0.0.0", 8081},
		"[::]:8081":       {"::", 8081},
		"[fe80::1]:0":     {"fe80::1", 0},
		"rls.example:443": {"rls.example", 443},
	} {
		assert.Equal(t, want, a.String())
	}
}

func TestPortInUseIsAnErrorAtOnce(t *testing.T) {
	r := start(t, Options{})
	free := Addr{Host: "127.0.0.1"}

	_, err := New(Options{Service: alwaysOK, Log: slog.New(slog.DiscardHandler), GRPC: GRPC{Addr: hostPort(t, r.GRPCAddr())}, HTTP: free, Debug: free})
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "gRPC listener")
	_, err = New(Options{Service: alwaysOK, Log: slog.New(slog.DiscardHandler), GRPC: GRPC{Addr: free}, HTTP: hostPort(t, r.HTTPAddr()), Debug: free})
	assert.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "HTTP listener")
}

func TestServiceIsRequired(t *testing.T) {
	_, err := New(Options{})
	assert.ErrorContains(t, err, "Service")
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rls.sock")
	leaveSocket(t, path)
	r := start(t, Options{GRPC: GRPC{UDS: path}})

	_, err := rlsv3.NewRateLimitServiceClient(dial(t, "unix:"+path)).ShouldRateLimit(t.Context(), shopRequest)
	require.NoError(t, err)
	r.stop()
	r.finished(t, soon)
	assert.NoFileExists(t, path)
}

// leaveSocket makes a socket file as a killed process leaves it.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
}

func TestSocketPathThatIsTakenIsAnError(t *testing.T) {
	for _, tt := range []struct {
		name string
		take func(t *testing.T, path string)
		want string
	}{
		{"by a live server", func(t *testing.T, path string) { start(t, Options{GRPC: GRPC{UDS: path}}) }, "in use"},
		{"by a file", func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte("x"), 0o600)) }, "not a socket"},
		{"by a directory", func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o700)) }, "not a socket"},
		{"by a link", func(t *testing.T, path string) { require.NoError(t, os.Symlink("elsewhere", path)) }, "not a socket"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rls.sock")
			tt.take(t, path)
			_, err := New(Options{Service: alwaysOK, GRPC: GRPC{UDS: path}})
			assert.ErrorContains(t, err, tt.want)
			_, err = os.Lstat(path)
			assert.NoError(t, err, "what was there stays")
		})
	}
}

func TestSocketInAMissingDirectoryIsAnError(t *testing.T) {
	_, err := New(Options{Service: alwaysOK, GRPC: GRPC{UDS: filepath.Join(t.TempDir(), "no", "rls.sock")}})
	assert.ErrorContains(t, err, "gRPC listener")
}
