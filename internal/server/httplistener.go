package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

// httpListener is an HTTP server with an address of its own.
type httpListener struct {
	name     string // for errors and the log
	listener net.Listener
	server   *http.Server
}

// listenHTTP binds address a. certs and gate can be nil. A panic in h is answered with 500.
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

// maxHeaderBytes bounds the headers of a request, also with gRPC.
const maxHeaderBytes = 32 << 10

func (l *httpListener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.listener.Addr()
}

func (l *httpListener) serve() error {
	if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// close cuts requests in flight and releases the address, even before serve.
func (l *httpListener) close() {
	_ = l.server.Close()
	_ = l.listener.Close()
}

// stop closes the listener and waits for requests in flight. When ctx is done, it calls beforeCut and cuts them,
// which is an error.
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
	Path    string // the whole path, such as "/metrics", which is the default
	Handler http.Handler
}

// onlyAt serves h at path only. A ServeMux would take path as a pattern and panic on a bad one.
func onlyAt(path string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			httpError(w, http.StatusNotFound, "metrics are at "+path)
			return
		}
		h.ServeHTTP(w, r)
	})
}
