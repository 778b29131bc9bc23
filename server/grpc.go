package server

import (
	"context"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// handshakeTimeout bounds TLS and HTTP/2 set-up. grpc's default of two minutes
// would hold up a shutdown as long: neither GracefulStop nor Stop goes on
// while a connection is being set up, and one that never says a word (a TCP
// probe, a load balancer) is.
const handshakeTimeout = 5 * time.Second

// newGRPCServer registers the rate-limit service, health and reflection.
// Streams, which no rate-limit call uses, end when draining is done.
func newGRPCServer(o *Options, certs *tlsReloader, draining context.Context) *grpc.Server {
	streams := make(map[string]bool) // full method → it streams; filled below
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.GRPC.MaxMessageBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      max(o.GRPC.MaxConnectionAge, 0),
			MaxConnectionAgeGrace: max(o.GRPC.MaxConnectionAgeGrace, 0),
		}),
		// Clients that ping often are answered, not thrown out: a ping costs
		// less than a call.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             100 * time.Millisecond,
			PermitWithoutStream: true,
		}),

		// Workers save a call the growth of a new stack: a fifth of the
		// server's CPU (BenchmarkServerCPU). Larger buffers and fixed windows
		// made no difference that could be measured, with 1 or 4 connections.
		grpc.NumStreamWorkers(uint32(max(o.GRPC.Workers, 0))),
		grpc.InTapHandle(cancelStreams(streams, draining)),
	}
	if certs != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(certs.config())))
	}

	s := grpc.NewServer(append(opts, o.GRPC.Extra...)...)
	rlsv3.RegisterRateLimitServiceServer(s, guarded{o.Service, o.Log})
	healthpb.RegisterHealthServer(s, o.Health.grpc)
	reflection.Register(s)
	for service, info := range s.GetServiceInfo() {
		for _, m := range info.Methods {
			if m.IsClientStream || m.IsServerStream {
				streams["/"+service+"/"+m.Name] = true
			}
		}
	}
	return s
}
