// Package server is the listeners of a rate-limit service: gRPC for Envoy, HTTP
// for /json and /healthcheck, and a debug listener for operators. It brings
// them up, keeps them safe from bad requests, and takes them down without
// cutting a call. It knows nothing of limits.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
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
	DebugPages []Page // beside pprof

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
	certs *tlsReloader // nil: no TLS

	grpcListener, httpListener net.Listener
	debugListener              net.Listener // nil: could not bind

	grpc        *grpc.Server
	http, debug *http.Server

	draining   context.Context // done once new calls are refused
	startDrain context.CancelFunc
}

// New binds the listeners and reads the TLS files, so that a port in use or a
// bad certificate is known at once. Callers connect from now on, and are
// answered when Serve runs. A debug listener that cannot bind is only logged.
// A Server that is not going to be served is released by Close.
func New(o Options) (_ *Server, err error) {
	if o.Service == nil {
		return nil, errors.New("server: Options.Service is missing")
	}
	o.setDefaults()
	s := &Server{opts: o}
	defer func() {
		if err != nil {
			s.closeListeners()
		}
	}()

	if o.GRPC.TLS != nil {
		if s.certs, err = newTLSReloader(*o.GRPC.TLS, o.Log); err != nil {
			return nil, fmt.Errorf("gRPC TLS: %w", err)
		}
	}
	if o.GRPC.UDS != "" {
		s.grpcListener, err = listenUnix(o.GRPC.UDS)
	} else {
		s.grpcListener, err = listenTCP(o.GRPC.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("gRPC listener: %w", err)
	}
	if s.httpListener, err = listenTCP(o.HTTP); err != nil {
		return nil, fmt.Errorf("HTTP listener: %w", err)
	}
	if l, err := listenTCP(o.Debug); err != nil {
		o.Log.Error("no debug listener", "error", err)
	} else {
		s.debugListener = l
	}

	s.draining, s.startDrain = context.WithCancel(context.Background())
	s.grpc = newGRPCServer(&o, s.certs, s.draining)
	s.http = newHTTPServer(&o)
	s.debug = newDebugServer(&o)
	return s, nil
}

// GRPCAddr is where gRPC listens.
func (s *Server) GRPCAddr() net.Addr { return s.grpcListener.Addr() }

// HTTPAddr is where /json and /healthcheck are.
func (s *Server) HTTPAddr() net.Addr { return s.httpListener.Addr() }

// DebugAddr is where the debug pages are, nil if that address was taken.
func (s *Server) DebugAddr() net.Addr {
	if s.debugListener == nil {
		return nil
	}
	return s.debugListener.Addr()
}

// Serve answers until ctx is done, then drains: health turns NOT_SERVING,
// DrainDelay passes, new calls are refused and those in flight finish, at the
// latest after DrainTimeout. It returns nil after that, or the error of a
// listener that failed.
func (s *Server) Serve(ctx context.Context) error {
	s.opts.Log.Info("listening", "grpc", s.GRPCAddr(), "http", s.HTTPAddr(), "debug", s.DebugAddr())

	var running sync.WaitGroup
	failed := make(chan error, 2)
	running.Go(func() {
		if err := s.grpc.Serve(s.grpcListener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed <- fmt.Errorf("gRPC listener: %w", err)
		}
	})
	running.Go(func() {
		if err := s.http.Serve(s.httpListener); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("HTTP listener: %w", err)
		}
	})
	if s.debugListener != nil {
		running.Go(func() {
			if err := s.debug.Serve(s.debugListener); !errors.Is(err, http.ErrServerClosed) {
				s.opts.Log.Error("debug listener failed", "error", err)
			}
		})
	}
	if s.certs != nil {
		running.Go(func() { s.certs.run(s.draining) })
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
