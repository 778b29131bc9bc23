// Package server is the listeners of a rate-limit service: gRPC for Envoy, HTTP
// for /json and /healthcheck, a debug listener for operators, and one for
// metrics alone where that is asked for. It brings them up, keeps them safe
// from bad requests, and takes them down without cutting a call. It knows
// nothing of limits.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// Options for New. Only Service is required.
type Options struct {
	Service rlsv3.RateLimitServiceServer

	// Health is what probes are told; default: always healthy until shutdown.
	Health *Health

	GRPC GRPC
	HTTP Addr // /json and /healthcheck

	Debug      Addr
	DebugTLS   *TLS   // nil: plain text
	DebugPages []Page // beside pprof

	Metrics *MetricsListener // nil: none

	// DrainDelay is how long calls are still taken after health has turned
	// NOT_SERVING, for load balancers to notice; default 0.
	DrainDelay time.Duration

	// DrainTimeout is how long calls in flight may then take before they are
	// cut; default 20s. A client that never finishes connecting can add 5s.
	DrainTimeout time.Duration

	Log *slog.Logger // default slog.Default()
}

// GRPC is the gRPC part of Options.
type GRPC struct {
	Addr
	UDS string // path of a unix socket, instead of Addr
	TLS *TLS   // nil: plain text

	// MaxMessageBytes is the largest request, also for /json; default 4 MiB.
	MaxMessageBytes int

	// MaxConnectionAge is when a client is asked to connect anew, so that load
	// spreads over new replicas (±10% jitter); default 24h, negative: never.
	// MaxConnectionAgeGrace is what its calls in flight then still have;
	// default 1h, negative: no bound.
	MaxConnectionAge, MaxConnectionAgeGrace time.Duration

	// Workers is how many goroutines are kept to run calls, which saves growing
	// a new stack for each; when all are busy a call gets a goroutine of its
	// own. Best near the number of calls in flight under load: far more make
	// each one cold. Default 32 × GOMAXPROCS, negative: none.
	Workers int

	// Extra options, such as interceptors and stats handlers. A panic in an
	// interceptor ends the process; one in the service does not.
	Extra []grpc.ServerOption
}

func (o *Options) setDefaults() {
	if o.Health == nil {
		o.Health = NewHealth()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 20*time.Second)
	o.GRPC.MaxMessageBytes = cmp.Or(o.GRPC.MaxMessageBytes, 4<<20)
	o.GRPC.MaxConnectionAge = cmp.Or(o.GRPC.MaxConnectionAge, 24*time.Hour)
	o.GRPC.MaxConnectionAgeGrace = cmp.Or(o.GRPC.MaxConnectionAgeGrace, time.Hour)
	o.GRPC.Workers = cmp.Or(o.GRPC.Workers, 32*runtime.GOMAXPROCS(0))
}

// Server is made by New and runs once, by Serve.
type Server struct {
	opts  Options
	certs []*tlsReloader // of all listeners

	grpc         *grpc.Server
	grpcListener net.Listener
	http         *httpListener
	debug        *httpListener // nil: could not bind
	metrics      *httpListener // nil: none

	draining   context.Context // done once new calls are refused
	startDrain context.CancelFunc
}

// New reads the TLS files and binds the listeners, so that a bad certificate or
// a port in use is known at once. Callers connect from now on, and are answered
// when Serve runs. A debug listener that cannot bind is only logged. A Server
// that is not going to be served is released by Close.
func New(o Options) (_ *Server, err error) {
	if o.Service == nil {
		return nil, errors.New("server: Options.Service is missing")
	}
	o.setDefaults()
	s := &Server{opts: o}
	s.draining, s.startDrain = context.WithCancel(context.Background())
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
	s.grpc = newGRPCServer(&o, grpcCerts, s.draining)
	if s.http, err = listenHTTP("HTTP", o.HTTP, nil, httpHandler(&o), o.Log); err != nil {
		return nil, err
	}
	if s.metrics, err = listenMetrics(o.Metrics, o.Log); err != nil {
		return nil, err
	}
	if s.debug, err = listenHTTP("debug", o.Debug, debugCerts, debugHandler(o.DebugPages), o.Log); err != nil {
		o.Log.Error("no debug listener", "error", err)
	}
	return s, nil
}

// readTLS returns nil for nil. The files are followed while Serve runs.
func (s *Server) readTLS(listener string, o *TLS) (*tlsReloader, error) {
	if o == nil {
		return nil, nil
	}
	certs, err := newTLSReloader(*o, s.opts.Log.With("listener", listener))
	if err != nil {
		return nil, fmt.Errorf("%s TLS: %w", listener, err)
	}
	s.certs = append(s.certs, certs)
	return certs, nil
}

// GRPCAddr is where gRPC listens.
func (s *Server) GRPCAddr() net.Addr { return s.grpcListener.Addr() }

// HTTPAddr is where /json and /healthcheck are.
func (s *Server) HTTPAddr() net.Addr { return s.http.addr() }

// DebugAddr is where the debug pages are, nil if that address was taken.
func (s *Server) DebugAddr() net.Addr { return s.debug.addr() }

// MetricsAddr is where the metrics listener is, nil without Options.Metrics.
func (s *Server) MetricsAddr() net.Addr { return s.metrics.addr() }

// Serve answers until ctx is done, then drains: health turns NOT_SERVING,
// DrainDelay passes, new calls are refused and those in flight finish, at the
// latest after DrainTimeout. It returns nil after that, or the error of a
// listener that failed. Without debug and metrics it goes on, as calls are
// answered all the same.
func (s *Server) Serve(ctx context.Context) error {
	addrs := []any{"grpc", s.GRPCAddr().String(), "http", s.HTTPAddr().String()}
	for _, l := range []struct {
		name string
		*httpListener
	}{{"debug", s.debug}, {"metrics", s.metrics}} {
		if l.httpListener != nil {
			addrs = append(addrs, l.name, l.addr().String())
		}
	}
	s.opts.Log.Info("listening", addrs...)

	var running sync.WaitGroup
	failed := make(chan error, 2)
	for _, serve := range []func() error{s.serveGRPC, s.http.serve} {
		running.Go(func() {
			if err := serve(); err != nil {
				failed <- err
			}
		})
	}
	for _, l := range []*httpListener{s.debug, s.metrics} {
		running.Go(func() {
			if err := l.serve(); err != nil {
				s.opts.Log.Error("going on without a listener that failed", "error", err)
			}
		})
	}
	for _, certs := range s.certs {
		running.Go(func() { certs.run(s.draining) })
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.drain()
	running.Wait()
	return err
}

func (s *Server) serveGRPC() error {
	if err := s.grpc.Serve(s.grpcListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("gRPC listener: %w", err)
	}
	return nil
}
