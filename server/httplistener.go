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

// httpListener is an HTTP server with an address of its own. The methods of a nil
// httpListener do nothing.
type httpListener struct {
	name     string // for errors
	listener net.Listener
	server   *http.Server
}

// listenHTTP binds address a. The listener speaks plain text if certs is nil. A panic in
// h is answered with 500.
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
		ReadHeaderTimeout: 5 * time.Second, // also bounds the TLS handshake
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}}, nil
}

// addr returns the address of the listener, or nil if l is nil.
func (l *httpListener) addr() net.Addr {
	if l == nil {
		return nil
	}
	return l.listener.Addr()
}

// serve answers requests until the server is shut down or closed.
func (l *httpListener) serve() error {
	if l == nil {
		return nil
	}
	if err := l.server.Serve(l.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s listener: %w", l.name, err)
	}
	return nil
}

// close cuts requests in flight and releases the address, even if the listener has
// never served.
func (l *httpListener) close() {
	if l == nil {
		return
	}
	_ = l.server.Close()
	_ = l.listener.Close()
}

// finishTimeout bounds how long the debug and metrics listeners wait for requests in
// flight.
const finishTimeout = 3 * time.Second

// finish waits for requests in flight, up to finishTimeout, and closes the listener. An
// operator's change gets its answer, while a long profile may be cut.
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
