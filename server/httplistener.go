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
)

// httpListener is an HTTP server on an address of its own. A nil one is a
// listener that isn't there: it serves and closes nothing.
type httpListener struct {
	name     string // for errors
	listener net.Listener
	server   *http.Server
}

// listenHTTP binds a; nil certs: plain text. A handler that panics answers 500.
func listenHTTP(name string, a Addr, certs *tlsReloader, h http.Handler, log *slog.Logger) (*httpListener, error) {
	l, err := listenTCP(a)
	if err != nil {
		return nil, fmt.Errorf("%s listener: %w", name, err)
	}
	if certs != nil {
		l = tls.NewListener(l, certs.config())
	}
	return &httpListener{name, l, &http.Server{
		Handler:           recoverHTTP(log, h),
		ReadHeaderTimeout: 5 * time.Second, // of a TLS handshake, too
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// addr is nil for a listener that isn't there.
func (l *httpListener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.listener.Addr()
}

// serve answers until the server is shut down or closed.
func (l *httpListener) serve() error {
	if l == nil {
		return nil
	}
	if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// close cuts what is in flight; it also releases a listener that was never
// served.
func (l *httpListener) close() {
	if l == nil {
		return
	}
	_ = l.server.Close()
	_ = l.listener.Close()
}

// finishTimeout is what debug pages and metrics have for what is in flight.
const finishTimeout = 3 * time.Second

// finish closes once what is in flight is answered, or after finishTimeout: an
// operator's change is to be told, a profile needn't be.
func (l *httpListener) finish() {
	if l == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	if l.server.Shutdown(ctx) != nil {
		l.close()
	}
}
