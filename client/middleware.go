package client

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Middleware returns a middleware for net/http. For each call, it sends the Request that request
// returns. If request returns nil, the call has no limit.
//
// The middleware answers a denied call with 429 and Retry-After. If a limit counts the call, the
// answer has the headers RateLimit-Limit and RateLimit-Remaining in permits, and RateLimit-Reset in
// whole seconds. If the Client returns an error, the middleware answers 503.
func (c *Client) Middleware(request func(*http.Request) *Request) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			limitRequest := request(req)
			if limitRequest == nil {
				next.ServeHTTP(w, req)
				return
			}
			decision, err := c.Check(req.Context(), *limitRequest)
			if err != nil {
				c.log.Warn("request not decided", "error", err)
				http.Error(w, http.StatusText(http.StatusServiceUnavailable), http.StatusServiceUnavailable)
				return
			}
			if decision.Limited {
				w.Header().Set("RateLimit-Limit", strconv.FormatUint(uint64(decision.Limit), 10))
				w.Header().Set("RateLimit-Remaining", strconv.FormatUint(uint64(decision.Remaining), 10))
				w.Header().Set("RateLimit-Reset", wholeSeconds(decision.Reset))
			}
			if !decision.Allowed {
				if !decision.Never {
					w.Header().Set("Retry-After", wholeSeconds(max(decision.Reset, time.Second)))
				}
				http.Error(w, http.StatusText(http.StatusTooManyRequests), http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, req)
		})
	}
}

func wholeSeconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// MethodRequest returns the Request of a gRPC call. nil means that the call has no limit. method is
// the full name, such as /shop.Orders/Create.
type MethodRequest func(ctx context.Context, method string) *Request

// UnaryServerInterceptor limits the unary calls of a gRPC server. A denied call gets
// RESOURCE_EXHAUSTED with a RetryInfo. If the Client returns an error, the call gets UNAVAILABLE.
func (c *Client) UnaryServerInterceptor(request MethodRequest) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := c.checkMethod(ctx, request, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// StreamServerInterceptor limits the streams of a gRPC server, like UnaryServerInterceptor. Each
// stream is one request, with any number of messages.
func (c *Client) StreamServerInterceptor(request MethodRequest) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := c.checkMethod(stream.Context(), request, info.FullMethod); err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

func (c *Client) checkMethod(ctx context.Context, request MethodRequest, method string) error {
	r := request(ctx, method)
	if r == nil {
		return nil
	}
	decision, err := c.Check(ctx, *r)
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		c.log.Warn("call not decided", "method", method, "error", err)
		return status.Error(codes.Unavailable, "the rate limit of this call could not be decided")
	case decision.Allowed:
		return nil
	}
	s := status.New(codes.ResourceExhausted, "rate limit exceeded")
	if decision.Never {
		return s.Err()
	}
	if statusWithDetails, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(decision.Reset)}); err == nil {
		s = statusWithDetails
	}
	return s.Err()
}
