package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/server/admission"
	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// handshakeTimeout bounds the setup of TLS and HTTP/2. GracefulStop and Stop both wait for this setup. With the default
// of grpc, a silent connection such as a TCP probe would delay a shutdown by two minutes.
const handshakeTimeout = 5 * time.Second

const (
	// streamWindowBytes is the number of bytes of a request that a client may send before the server reads the request.
	streamWindowBytes = 64 << 10

	// connWindowBytes is the number of bytes that all calls of a connection may send before the server acknowledges
	// the bytes. A large window needs few updates. It uses memory only for the bytes that have arrived.
	connWindowBytes = 1 << 20
)

func newGRPCServer(o *Options, certs *tlsReloader, calls *callCounter, drainCtx context.Context) *grpc.Server {
	isStream := make(map[string]bool) // the key is the full name of a method; the loop below fills the map
	serverOptions := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(o.GRPC.MaxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(o.GRPC.MaxStreams),
		grpc.ForceServerCodecV2(codec.New(o.GRPC.MaxDescriptors, o.GRPC.MaxAllEntries)),
		// With windows of a fixed size, grpc need not send a ping and a window update with most calls.
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
		// A worker keeps its large stack. Without workers, each call would grow a new stack, which takes a fifth of the
		// CPU of the server (BenchmarkServerCPU). With more workers, the CPU caches help less.
		grpc.NumStreamWorkers(uint32(32 * runtime.GOMAXPROCS(0))),
		grpc.InTapHandle(streamCanceller(isStream, drainCtx)),
	}
	transport := insecure.NewCredentials()
	if certs != nil {
		transport = credentials.NewTLS(certs.config())
	}
	serverOptions = append(serverOptions, grpc.Creds(admission.Credentials(transport)))

	s := grpc.NewServer(serverOptions...)
	registrar := callRegistrar{s, o.ObserveMethod, calls, newAnswerBounds(), o.Log}
	for _, register := range o.Services {
		register(registrar)
	}
	registrar.calls = new(callCounter) // a drain does not count the probes of load balancers
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

// callRegistrar registers services. It observes the unary calls of the services, and recovers from a panic in a call. It
// wraps the handlers, because an interceptor would cost each call two allocations and 0.3 µs.
type callRegistrar struct {
	grpc.ServiceRegistrar
	observeMethod func(name string) (observeCall func(duration time.Duration))
	calls         *callCounter
	streamBounds  *answerBounds
	log           *slog.Logger
}

func (r callRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	service := *desc
	service.Methods = slices.Clone(desc.Methods)
	for i, m := range service.Methods {
		observeCall := r.observeMethod(m.MethodName)
		service.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (_ any, err error) { //nolint:revive // grpc's order
			start := time.Now()
			r.calls.beginCall()
			defer func() {
				r.calls.endCall()
				observeCall(time.Since(start))
			}()
			defer r.recoverCall(ctx, m.MethodName, &err)
			call := codec.Begin(ctx, decode)
			defer call.End()
			return m.Handler(srv, ctx, call.Decode, interceptor)
		}
	}
	service.Streams = slices.Clone(desc.Streams)
	for i, m := range service.Streams {
		service.Streams[i].Handler = func(srv any, stream grpc.ServerStream) (err error) {
			defer r.recoverCall(stream.Context(), m.StreamName, &err)
			if m.ClientStreams {
				stream = newBoundedStream(stream, r.streamBounds)
			}
			return m.Handler(srv, stream)
		}
	}
	r.ServiceRegistrar.RegisterService(&service, impl)
}

func (r callRegistrar) recoverCall(ctx context.Context, method string, err *error) {
	if p := recover(); p != nil {
		logPanic(ctx, r.log, method, p)
		*err = status.Error(codes.Internal, "internal error")
	}
}

func recoverHTTP(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // a handler panics with this error to cut the connection
				panic(p)
			}
			logPanic(r.Context(), log, r.URL.Path, p)
			httpError(w, http.StatusInternalServerError, "internal error")
		}()
		next.ServeHTTP(w, r)
	})
}

// logPanic logs panic p with the stack. Only a deferred function may call it, so that the stack shows the panic.
func logPanic(ctx context.Context, log *slog.Logger, call string, p any) {
	log.LogAttrs(ctx, slog.LevelError, "call panicked",
		slog.String("call", call),
		slog.String("panic", fmt.Sprint(p)),
		slog.String("stack", string(debug.Stack())))
}
