package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

// Addr is a TCP address to listen on.
type Addr struct {
	Host string // a name or an IPv4 or IPv6 address; empty means all addresses
	Port int    // 0 means that the kernel chooses a port; Server.GRPCAddr and Server.HTTPAddr return the port

	Setting string // the name of the setting of the port, for errors; may be empty
}

func (a Addr) String() string {
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// ParseAddr parses "host:port" as net.Listen does. The port may be the name of a service.
func ParseAddr(text string) (Addr, error) {
	host, service, err := net.SplitHostPort(text)
	if err == nil && service != "" {
		if port, err := net.LookupPort("tcp", service); err == nil {
			return Addr{Host: host, Port: port}, nil
		}
	}
	return Addr{}, fmt.Errorf("%q is not host:port with a port from 0 to 65535; for example :9090", text)
}

// listenTCP listens on a. If the address is in use, the error names the program and the next step.
func listenTCP(a Addr) (net.Listener, error) {
	l, err := net.Listen("tcp", a.String())
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	program, nextStep := ListeningProgram(a.Port), "end this program"
	name, _, _ := strings.Cut(program, " ")
	switch name {
	case "":
		program, nextStep = "another program", fmt.Sprintf("end it (lsof -i :%d shows it)", a.Port)
	case "rls", "rlsd", "ratelimit":
		nextStep = "wait for its end if it drains (at most DRAIN_DELAY + DRAIN_TIMEOUT)"
	}
	return nil, fmt.Errorf("%s: %w by %s; %s, or change %s", a, syscall.EADDRINUSE, program, nextStep, cmp.Or(a.Setting, "the port"))
}

// ListeningProgram returns the program that listens on a TCP port, such as "rls (process 4711)". It returns "" if it finds
// no program. It finds only programs of the user of this process, and only on Linux.
func ListeningProgram(port int) string {
	const listenState, addressColumn, stateColumn, inodeColumn = "0A", 1, 3, 9
	portSuffix := fmt.Sprintf(":%04X", port)
	var sockets []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			columns := strings.Fields(line)
			if len(columns) > inodeColumn && columns[stateColumn] == listenState && strings.HasSuffix(columns[addressColumn], portSuffix) {
				sockets = append(sockets, "socket:["+columns[inodeColumn]+"]")
			}
		}
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err == nil && slices.Contains(sockets, target) {
			process := filepath.Dir(filepath.Dir(file))
			name, _ := os.ReadFile(filepath.Join(process, "comm"))
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), filepath.Base(process))
		}
	}
	return ""
}

// listenGRPC listens on the address or the socket file of o. Closing the listener removes the file.
func listenGRPC(o *GRPC) (net.Listener, error) {
	if o.UDS == "" {
		return listenTCP(o.Addr)
	}
	if err := removeStaleSocket(o.UDS); err != nil {
		return nil, err
	}
	return net.Listen("unix", o.UDS)
}

// removeStaleSocket removes the socket of a killed process. If the file is not a socket, or a process still uses the
// socket, removeStaleSocket returns an error.
func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket (%s)", path, info.Mode())
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("%s is in use by another process", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		// The queue of the socket may be full, or a permission may be missing.
		return fmt.Errorf("%s exists and may be in use: %w", path, err)
	}
	return os.Remove(path)
}

type httpListener struct {
	name     string // the name in errors and in the log
	listener net.Listener
	server   *http.Server
}

// listenHTTP binds address a. certs and gate can be nil. If h panics, the listener answers 500.
func listenHTTP(name string, a Addr, gate *admission.Gate, certs *tlsReloader, h http.Handler, log *slog.Logger) (*httpListener, error) {
	l, err := listenTCP(a)
	if err != nil {
		return nil, fmt.Errorf("%s listener: %w", name, err)
	}
	if gate != nil {
		l = gate.Listener(l)
	}
	if certs != nil {
		l = tls.NewListener(l, certs.config())
	}
	return &httpListener{name, l, &http.Server{
		Handler:           recoverHTTP(log, h),
		ReadHeaderTimeout: 5 * time.Second, // also bounds the TLS handshake
		ReadTimeout:       10 * time.Second,
		MaxHeaderBytes:    maxHeaderBytes,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

const maxHeaderBytes = 32 << 10

func (l *httpListener) serve() error {
	if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// close cuts requests in flight and releases the address. The caller may call close before serve.
func (l *httpListener) close() {
	_ = l.server.Close()
	_ = l.listener.Close()
}

// stop waits for requests in flight. When ctx is done, stop calls beforeCut, cuts the requests and returns an error.
func (l *httpListener) stop(ctx context.Context, beforeCut func()) error {
	err := l.server.Shutdown(ctx)
	if err != nil {
		beforeCut()
		l.close()
	}
	return err
}

// MetricsListener is a plain-text HTTP listener that serves metrics only.
type MetricsListener struct {
	Addr
	Path    string // the whole path, such as "/metrics"
	Handler http.Handler
}

// servePath serves h at path only. A ServeMux would parse path as a pattern, and panic on a bad pattern.
func servePath(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			httpError(w, http.StatusNotFound, "metrics are at "+path)
			return
		}
		h.ServeHTTP(w, r)
	})
}
