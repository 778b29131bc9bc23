package server

import (
	"context"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/seed-81f232ab/rls/internal/server/admission"
	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// handshakeTimeout bounds the setup of TLS and HTTP/2, for which GracefulStop and Stop both wait. With grpc's
// default, a silent connection such as a TCP probe would delay a shutdown by two minutes.
const handshakeTimeout = 5 * time.Second

const (
	// streamWindowBytes is how much of a request a client may send before the server reads it.
	streamWindowBytes = 64 << 10

	// connWindowBytes is how much all calls of a connection may send before the server acknowledges it. A large
	// window needs few updates, and no memory until it is used.
	connWindowBytes = 1 << 20
)

// newGRPCServer returns a server with the services of o, health and reflection.
func newGRPCServer(o *Options, certs *tlsReloader, calls *inflight, drainCtx context.Context) *grpc.Server {
	isStream := make(map[string]bool) // by full method name; filled below
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.GRPC.MaxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(o.GRPC.MaxStreams),
		grpc.ForceServerCodecV2(codec.New(o.GRPC.MaxDescriptors, o.GRPC.MaxAllEntries)),
		// With windows of a fixed size, grpc doesn't send a ping and a window update with most calls.
		grpc.StaticStreamWindowSize(streamWindowBytes),
		grpc.StaticConnWindowSize(connWindowBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     o.GRPC.MaxConnectionIdle,
			MaxConnectionAge:      o.GRPC.MaxConnectionAge,
			MaxConnectionAgeGrace: o.GRPC.MaxConnectionAgeGrace,
		}),
		// The server answers clients that ping often, because a ping costs less than a call.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             100 * time.Millisecond,
			PermitWithoutStream: true,
		}),
		// A worker keeps its grown stack. To grow a new one in each call takes a fifth of the server's CPU
		// (BenchmarkServerCPU). The best number of workers is about that of the calls in flight, because the CPU
		// caches of idle workers get cold.
		grpc.NumStreamWorkers(uint32(32 * runtime.GOMAXPROCS(0))),
		grpc.InTapHandle(cancelStreams(isStream, drainCtx)),
	}
	creds := insecure.NewCredentials()
	if certs != nil {
		creds = credentials.NewTLS(certs.config())
	}
	opts = append(opts, grpc.Creds(admission.Credentials(creds)))

	s := grpc.NewServer(opts...)
	registrar := callRegistrar{s, o.ObserveMethod, calls, o.Log}
	for _, register := range o.Services {
		register(registrar)
	}
	registrar.inflight = new(inflight) // load balancers probe a server that drains, too
	healthpb.RegisterHealthServer(registrar, o.Health.grpc)
	reflection.Register(s)
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			if m.IsClientStream || m.IsServerStream {
				isStream["/"+service+"/"+m.Name] = true
			}
		}
	}
	return s
}
