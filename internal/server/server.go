// Package server runs the listeners of a rate-limit service: gRPC for Envoy, HTTP for /json, /v1/check and
// /healthcheck, a debug listener for operators, and an optional listener for metrics only. It protects the listeners
// from bad requests. When the process stops, the package lets calls finish.
package server

import (
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

// Options are the options of New. Services, Health, Observer, Log, GRPC.MaxMessageBytes and GRPC.MaxStreams are required.
type Options struct {
	// Services register gRPC services. A panic in a service fails only the call that panicked.
	Services []func(grpc.ServiceRegistrar)

	// JSON answers /json; nil means that /json does not exist.
	JSON rlsv3.RateLimitServiceServer

	// JSONRefunds allows refunds over /json.
	JSONRefunds bool

	// Check answers /v1/check; nil means that /v1/check does not exist.
	Check BodyHandler

	// HTTPPages are other pages of the HTTP listener.
	HTTPPages []Page

	// HTTPContext returns the context for a call of JSON or Check. By default, this is the context of the request.
	HTTPContext func(*http.Request) context.Context

	// Health answers probes.
	Health *Health

	GRPC GRPC
	HTTP Addr // the address of /json, /v1/check and /healthcheck

	// HTTPGate and DebugGate bound the connections of the HTTP listener and of the debug listener; nil means no bound.
	HTTPGate, DebugGate *admission.Gate

	Debug      Addr
	DebugTLS   *TLS   // nil means plain text
	DebugPages []Page // the pages of the debug listener, without the pages of pprof

	// DebugNames are names of this host on the internet. Requests for debug pages, and requests of browsers to the HTTP
	// listener, may address only these names, IP addresses, localhost and names of the private network.
	DebugNames []string

	Metrics *MetricsListener // nil means no listener for metrics

	// ObserveMethod is called once for each unary gRPC method. name is the name of the method without the service. The
	// server calls observeCall after each call of the method. observeCall must not block. The default observes nothing.
	ObserveMethod func(name string) (observeCall func(duration time.Duration))

	// DrainDelay is the time in which the server still accepts calls after health has turned NOT_SERVING; default 0.
	DrainDelay time.Duration

	// DrainTimeout is the time that calls in flight have after DrainDelay. Then the server cuts the calls.
	// A client that never finishes its handshake can delay the end of the drain by 5s.
	DrainTimeout time.Duration

	Observer Observer // gets rare events

	Log *slog.Logger
}

// GRPC is the gRPC part of Options.
type GRPC struct {
	Addr
	UDS string // path of a unix socket, used instead of Addr
	TLS *TLS   // nil means plain text

	// MaxMessageBytes is the size of the largest request over gRPC or HTTP.
	MaxMessageBytes int

	// MaxDescriptors bounds the descriptors of a request. MaxAllEntries bounds the entries of all these descriptors
	// together. The server does not decode a larger request, because the service rejects it. 0 means no bound.
	MaxDescriptors, MaxAllEntries int

	// MaxStreams is the number of calls that a connection can have in flight.
	MaxStreams uint32

	// Gate bounds the connections and the memory of all clients together; nil means no bound.
	Gate *admission.Gate

	// MaxConnectionIdle is the time after which the server closes a connection without calls; 0 means never.
	MaxConnectionIdle time.Duration

	// MaxConnectionAge is the age of a connection, ±10 %, at which the server asks the client to reconnect; 0 means
	// never. MaxConnectionAgeGrace bounds the time of the calls that are then in flight; 0 means no bound.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration
}

// Observer gets the rare events of a Server. The log of the Server has the same events.
type Observer interface {
	// DrainStarted reports that the server stops.
	DrainStarted(callsInFlight int64)

	// DrainFinished reports the end of a drain, and the number of calls that the drain has cut.
	DrainFinished(cutCalls int64)

	// TLSReloaded reports that a listener uses new TLS files, or the error of files that the listener rejects.
	TLSReloaded(listener, subject string, err error)

	// CertificateInForce reports when the certificate of a listener expires. It is called at the start and after a change.
	CertificateInForce(listener string, expiry time.Time)
}

// Server is a set of listeners. New makes a Server, and Serve runs the Server once.
type Server struct {
	options Options
	certs   []*tlsReloader // the certificates of all listeners

	grpc              *grpc.Server
	grpcListener      net.Listener
	http              *httpListener   // serves /json, /v1/check and /healthcheck
	optionalListeners []*httpListener // the debug listener and the metrics listener, if the server has them

	calls callCounter // the calls of gRPC, /json and /v1/check

	drainCtx   context.Context // done when the server stops accepting calls
	startDrain context.CancelFunc

	streamCtx  context.Context // done when the debug listener stops
	endStreams context.CancelFunc
}

// New reads the TLS files and binds the listeners. Clients get answers only while Serve runs. If the address of the
// debug listener is in use, New logs the error and continues. A caller that never calls Serve must call Close.
func New(o Options) (_ *Server, err error) {
	if len(o.Services) == 0 {
		return nil, errors.New("server: got no Options.Services, want at least one")
	}
	if o.ObserveMethod == nil {
		o.ObserveMethod = func(string) func(time.Duration) { return func(time.Duration) {} }
	}
	o.Health.logTo(o.Log)
	s := &Server{options: o}
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
	s.grpc = newGRPCServer(&o, grpcCerts, &s.calls, s.drainCtx)
	if s.http, err = listenHTTP("HTTP", o.HTTP, o.HTTPGate, nil, httpHandler(&o, &s.calls), o.Log); err != nil {
		return nil, err
	}
	if debug, err := listenHTTP("debug", o.Debug, o.DebugGate, debugCerts, debugHandler(o.DebugPages, o.DebugNames, s.streamCtx), o.Log); err != nil {
		o.Log.Error("debug listener failed; serving without it", "error", err)
	} else {
		debug.server.RegisterOnShutdown(s.endStreams)
		s.optionalListeners = append(s.optionalListeners, debug)
	}
	if m := o.Metrics; m != nil {
		// An address in use is an error, because nobody would notice missing metrics until the metrics are needed.
		metrics, err := listenHTTP("metrics", m.Addr, nil, nil, servePath(m.Path, m.Handler), o.Log)
		if err != nil {
			return nil, err
		}
		s.optionalListeners = append(s.optionalListeners, metrics)
	}
	return s, nil
}

func (s *Server) readTLS(listener string, o *TLS) (*tlsReloader, error) {
	if o == nil {
		return nil, nil
	}
	certs, err := newTLSReloader(*o, listener, s.options.Observer, s.options.Log)
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

// Serve answers calls until ctx is done, or until the gRPC or HTTP listener fails. Then Serve drains. It turns health to
// NOT_SERVING, and waits DrainDelay unless the cause of ctx is ErrInterrupted. After that, it refuses new calls, and
// lets the calls in flight finish within DrainTimeout. Serve returns the error of the failed listener, or nil.
func (s *Server) Serve(ctx context.Context) error {
	var goroutines sync.WaitGroup
	logAttrs := []any{"grpc", s.GRPCAddr().String(), "http", s.HTTPAddr().String()}
	for _, l := range s.optionalListeners {
		logAttrs = append(logAttrs, l.name, l.listener.Addr().String())
		goroutines.Go(func() {
			if err := l.serve(); err != nil {
				s.options.Log.Error("listener failed; serving without it", "error", err)
			}
		})
	}
	s.options.Log.Info("listening", logAttrs...)
	listenerErrors := make(chan error, 2)
	goroutines.Go(func() { listenerErrors <- s.serveGRPC() })
	goroutines.Go(func() { listenerErrors <- s.http.serve() })
	for _, certs := range s.certs {
		goroutines.Go(func() { certs.files.Watch(s.drainCtx) })
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-listenerErrors:
	}
	delay := s.options.DrainDelay
	if errors.Is(context.Cause(ctx), ErrInterrupted) {
		delay = 0
	}
	s.drain(delay)
	goroutines.Wait()
	return err
}

func (s *Server) serveGRPC() error {
	if err := s.grpc.Serve(s.grpcListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("gRPC listener: %w", err)
	}
	return nil
}
