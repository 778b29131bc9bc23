package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// recoveringRegistrar registers services whose panics don't end the process. A call
// that panics is logged and fails with code Internal, whether it is unary or a stream.
//
// It wraps the handlers of a service. An interceptor would cost each call two
// allocations and 0.3 µs, which is 2 % of what grpc itself takes.
type recoveringRegistrar struct {
	grpc.ServiceRegistrar
	log *slog.Logger
}

// RegisterService implements grpc.ServiceRegistrar.
func (r recoveringRegistrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	service := *desc
	service.Methods = slices.Clone(desc.Methods)
	for i := range service.Methods {
		method, handle := service.Methods[i].MethodName, service.Methods[i].Handler
		service.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (_ any, err error) { //nolint:revive // grpc's order
			defer func() {
				if p := recover(); p != nil {
					err = r.panicked(ctx, method, p)
				}
			}()
			return handle(srv, ctx, decode, interceptor)
		}
	}
	service.Streams = slices.Clone(desc.Streams)
	for i := range service.Streams {
		method, handle := service.Streams[i].StreamName, service.Streams[i].Handler
		service.Streams[i].Handler = func(srv any, stream grpc.ServerStream) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = r.panicked(stream.Context(), method, p)
				}
			}()
			return handle(srv, stream)
		}
	}
	r.ServiceRegistrar.RegisterService(&service, impl)
}

// panicked logs a panic and returns the error that the client gets.
func (r recoveringRegistrar) panicked(ctx context.Context, method string, p any) error {
	logPanic(ctx, r.log, method, p)
	return status.Error(codes.Internal, "internal error")
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

// logPanic logs panic p with the stack. A deferred function must call it, because only
// then does the stack show where the panic began.
func logPanic(ctx context.Context, log *slog.Logger, call string, p any) {
	log.LogAttrs(ctx, slog.LevelError, "call panicked",
		slog.String("call", call),
		slog.String("panic", fmt.Sprint(p)),
		slog.String("stack", string(debug.Stack())))
}
