package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/internal/server/codec"
)

// callRegistrar registers services whose unary calls are observed, and whose panics fail only their call. It wraps
// the handlers, because an interceptor would cost each call two allocations and 0.3 µs.
type callRegistrar struct {
	grpc.ServiceRegistrar
	observeMethod func(name string) (observeCall func(took time.Duration))
	inflight      *inflight
	log           *slog.Logger
}

// RegisterService implements grpc.ServiceRegistrar.
func (r callRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	service := *desc
	service.Methods = slices.Clone(desc.Methods)
	for i, m := range service.Methods {
		observeCall := r.observeMethod(m.MethodName)
		service.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (_ any, err error) { //nolint:revive // grpc's order
			start := time.Now()
			r.inflight.begin()
			defer func() {
				r.inflight.end()
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

// recoverHTTP returns a handler that logs panics of next and answers them with 500.
func recoverHTTP(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // a handler's way to cut the connection; never wrapped
				panic(p)
			}
			logPanic(r.Context(), log, r.URL.Path, p)
			httpError(w, http.StatusInternalServerError, "internal error")
		}()
		next.ServeHTTP(w, r)
	})
}

// logPanic logs panic p with the stack. Only a deferred function may call it, or the stack lacks the panic.
func logPanic(ctx context.Context, log *slog.Logger, call string, p any) {
	log.LogAttrs(ctx, slog.LevelError, "call panicked",
		slog.String("call", call),
		slog.String("panic", fmt.Sprint(p)),
		slog.String("stack", string(debug.Stack())))
}
