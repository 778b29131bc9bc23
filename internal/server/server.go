// Package server runs the listeners of a rate-limit service: gRPC for Envoy, HTTP for /json, /v1/check and
// /healthcheck, a debug listener for operators, and optionally metrics alone. It protects them from bad requests,
// and stops them without cutting calls. It knows nothing of limits.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/seed-81f232ab/rls/internal/server/admission"
)

// Options are the options of New. Only Services is required.
type Options struct {
	// Services register gRPC services. A panic in a service fails its call only.
	Services []func(grpc.ServiceRegistrar)

	// JSON answers /json; without it the page is missing.
	JSON rlsv3.RateLimitServiceServer

	// JSONRefunds allows refunds over /json.
	JSONRefunds bool

	// Check answers /v1/check; without it the page is missing.
	Check BodyHandler

	// HTTPPages are more pages of the HTTP listener.
	HTTPPages []Page

	// HTTPContext returns the context of a call of JSON or Check; by default that of the request.
	HTTPContext func(context.Context, http.Header) context.Context

	// Health answers probes; by default it is healthy until shutdown.
	Health *Health

	GRPC GRPC
	HTTP Addr // of /json, /v1/check and /healthcheck

	// HTTPGate and DebugGate bound the connections of HTTP and of the debug listener, unless nil.
	HTTPGate, DebugGate *admission.Gate

	Debug      Addr
	DebugTLS   *TLS   // nil means plain text
	DebugPages []Page // besides pprof

	// DebugNames are names of this host on the internet, which requests for debug pages and requests of browsers to
	// the HTTP listener may address, besides names that no site on the internet can have.
	DebugNames []string

	Metrics *MetricsListener // nil means none

	// ObserveMethod is called once for each unary gRPC method, with its name without the service. The result is
	// called after each call of the method, and must return at once. The default observes nothing.
	ObserveMethod func(name string) (observeCall func(took time.Duration))

	// DrainDelay is how long the server takes calls after health has turned NOT_SERVING; default 0.
	DrainDelay time.Duration

	// DrainTimeout is how long calls in flight may take after DrainDelay before they are cut; default 20s. A client
	// that never finishes connecting can add 5s.
	DrainTimeout time.Duration

	// Observer learns of rare events; default none.
	Observer Observer

	Log *slog.Logger // default slog.Default()
}

// GRPC is the gRPC part of Options.
type GRPC struct {
	Addr
	UDS string // path of a unix socket, used instead of Addr
	TLS *TLS   // nil means plain text

	// MaxMessageBytes is the largest request, also over HTTP; default 1 MiB.
	MaxMessageBytes int

	// MaxDescriptors and MaxAllEntries bound the descriptors that the service accepts, and the entries of all of
	// them. The server only counts those of a larger request. 0 means no bound.
	MaxDescriptors, MaxAllEntries int

	// MaxStreams is the number of calls that a connection can have in flight; default 1024.
	MaxStreams uint32

	// Gate bounds what all clients together can take; nil means no bound.
	Gate *admission.Gate

	// MaxConnectionIdle is the time after which a connection without calls is closed, unless 0.
	MaxConnectionIdle time.Duration

	// MaxConnectionAge is the age, ±10 %, at which the server asks a client to reconnect; 0 means never.
	// MaxConnectionAgeGrace is how long calls may then still take; 0 means no bound.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

func (o *Options) setDefaults() {
	if o.Health == nil {
		o.Health = NewHealth()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.ObserveMethod == nil {
		o.ObserveMethod = func(string) func(time.Duration) { return func(time.Duration) {} }
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	o.Health.logTo(o.Log)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 20*time.Second)
	o.GRPC.MaxMessageBytes = cmp.Or(o.GRPC.MaxMessageBytes, 1<<20)
	o.GRPC.MaxStreams = cmp.Or(o.GRPC.MaxStreams, 1024)
}

// Observer learns of rare events of a Server. The log of the Server has the same events.
type Observer interface {
	// DrainStarted reports that the server stops, with the number of calls in flight.
	DrainStarted(callsInFlight int64)

	// DrainFinished reports the end of a drain, and the number of calls that were cut.
	DrainFinished(cut int64)

	// TLSReloaded reports that a listener uses other TLS files, or why it refused them.
	TLSReloaded(listener, subject string, err error)
}

type noObserver struct{}

func (noObserver) DrainStarted(int64)                {}
func (noObserver) DrainFinished(int64)               {}
func (noObserver) TLSReloaded(string, string, error) {}

// Server is a set of listeners. New makes it, and Serve runs it once.
type Server struct {
	opts  Options
	certs []*tlsReloader // of all listeners

	grpc         *grpc.Server
	grpcListener net.Listener
	http         *httpListener
	optional     []*httpListener // debug, unless its address was in use, and metrics

	inflight inflight // of gRPC, /json and /v1/check

	drainCtx   context.Context // done when the server stops accepting calls
	startDrain context.CancelFunc

	streamCtx  context.Context // done when the debug listener stops
	endStreams context.CancelFunc
}

// New reads the TLS files and binds the listeners. Clients get answers only when Serve runs. If only the debug
// address is in use, New logs it and goes on. Close releases a Server whose Serve is never called.
func New(o Options) (_ *Server, err error) {
	if len(o.Services) == 0 {
		return nil, errors.New("server: got no Options.Services, want at least one")
	}
	o.setDefaults()
	s := &Server{opts: o}
	s.drainCtx, s.startDrain = context.WithCancel(context.Background())
	s.streamCtx, s.endStreams = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			s.Close()
		}
	}()

	grpcCerts, err := s.readTLS("gRPC", o.GRPC.TLS)
	if err != nil {
		return nil, err
	}
	debugCerts, err := s.readTLS("debug", o.DebugTLS)
	if err != nil {
		return nil, err
	}
	if s.grpcListener, err = listenGRPC(&o.GRPC); err != nil {
		return nil, fmt.Errorf("gRPC listener: %w", err)
	}
	if o.GRPC.Gate != nil {
		s.grpcListener = o.GRPC.Gate.Listener(s.grpcListener)
	}
	s.grpc = newGRPCServer(&o, grpcCerts, &s.inflight, s.drainCtx)
	if s.http, err = listenHTTP("HTTP", o.HTTP, o.HTTPGate, nil, httpHandler(&o, &s.inflight), o.Log); err != nil {
		return nil, err
	}
	if debug, err := listenHTTP("debug", o.Debug, o.DebugGate, debugCerts, debugHandler(o.DebugPages, o.DebugNames, s.streamCtx), o.Log); err != nil {
		o.Log.Error("debug listener failed; serving without it", "error", err)
	} else {
		debug.server.RegisterOnShutdown(s.endStreams)
		s.optional = append(s.optional, debug)
	}
	if m := o.Metrics; m != nil {
		// Missing metrics would be noticed only when they are needed, so an address in use is an error.
		metrics, err := listenHTTP("metrics", m.Addr, nil, nil, onlyAt(cmp.Or(m.Path, "/metrics"), m.Handler), o.Log)
		if err != nil {
			return nil, err
		}
		s.optional = append(s.optional, metrics)
	}
	return s, nil
}

func (s *Server) readTLS(listener string, o *TLS) (*tlsReloader, error) {
	if o == nil {
		return nil, nil
	}
	certs, err := newTLSReloader(*o, func(subject string, err error) { s.opts.Observer.TLSReloaded(listener, subject, err) }, s.opts.Log.With("listener", listener))
	if err != nil {
		return nil, fmt.Errorf("%s TLS: %w", listener, err)
	}
	s.certs = append(s.certs, certs)
	return certs, nil
}

// GRPCAddr returns the address of the gRPC listener.
func (s *Server) GRPCAddr() net.Addr { return s.grpcListener.Addr() }

// HTTPAddr returns the address of /json, /v1/check and /healthcheck.
func (s *Server) HTTPAddr() net.Addr { return s.http.listener.Addr() }

// Serve answers calls until ctx is done or the gRPC or HTTP listener fails, and then drains: it turns health to
// NOT_SERVING, waits DrainDelay unless the cause of ctx is ErrInterrupted, refuses new calls, and lets those in
// flight finish within DrainTimeout. It returns the error of the failed listener.
func (s *Server) Serve(ctx context.Context) error {
	var running sync.WaitGroup
	addrs := []any{"grpc", s.GRPCAddr().String(), "http", s.HTTPAddr().String()}
	for _, l := range s.optional {
		addrs = append(addrs, l.name, l.listener.Addr().String())
		running.Go(func() {
			if err := l.serve(); err != nil {
				s.opts.Log.Error("listener failed; serving without it", "error", err)
			}
		})
	}
	s.opts.Log.Info("listening", addrs...)
	stopped := make(chan error, 2)
	running.Go(func() { stopped <- s.serveGRPC() })
	running.Go(func() { stopped <- s.http.serve() })
	for _, certs := range s.certs {
		running.Go(func() { certs.files.Watch(s.drainCtx) })
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-stopped:
	}
	delay := s.opts.DrainDelay
	if errors.Is(context.Cause(ctx), ErrInterrupted) {
		delay = 0
	}
	s.drain(delay)
	running.Wait()
	return err
}

func (s *Server) serveGRPC() error {
	if err := s.grpc.Serve(s.grpcListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("gRPC listener: %w", err)
	}
	return nil
}
