package client

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// MethodRequest returns the Request of a gRPC call, or nil for no limit. method is the full
// name, such as /shop.Orders/Create.
type MethodRequest func(ctx context.Context, method string) *Request

// UnaryServerInterceptor limits the unary calls of a gRPC server. A denied call gets
// RESOURCE_EXHAUSTED with a RetryInfo. If there is no decision, the call gets UNAVAILABLE.
func (c *Client) UnaryServerInterceptor(request MethodRequest) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := c.checkMethod(ctx, request, info.FullMethod); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	}
}

// StreamServerInterceptor limits the streams of a gRPC server, like UnaryServerInterceptor. A
// stream counts once, whatever its number of messages.
func (c *Client) StreamServerInterceptor(request MethodRequest) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := c.checkMethod(stream.Context(), request, info.FullMethod); err != nil {
			return err
		}
		return handler(srv, stream)
	}
}

// checkMethod returns the error of a denied call.
func (c *Client) checkMethod(ctx context.Context, request MethodRequest, method string) error {
	r := request(ctx, method)
	if r == nil {
		return nil
	}
	d, err := c.Check(ctx, *r)
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case err != nil:
		c.log.Warn("call not decided", "method", method, "error", err)
		return status.Error(codes.Unavailable, "the rate limit of this call could not be decided")
	case d.Allowed:
		return nil
	}
	s := status.New(codes.ResourceExhausted, "rate limit exceeded")
	if d.Never {
		return s.Err()
	}
	if withWait, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.Reset)}); err == nil {
		s = withWait
	}
	return s.Err()
}

// PeerLimits are client interceptors for gRPC that honour the RESOURCE_EXHAUSTED of a peer: a
// denied unary call is sent again after its RetryInfo. The error goes to the caller if it has
// no RetryInfo, or if the waits would exceed MaxWait or the deadline of the call.
//
// With a Client, the interceptors also acquire a permit before they send a call.
type PeerLimits struct {
	// MaxWait bounds the sum of all waits for a peer. The default is DefaultMaxWait.
	MaxWait time.Duration

	// MaxRetries bounds the retries of a call. The default is DefaultMaxRetries.
	MaxRetries int

	// Client acquires the permits of Request before a call is sent. It can be nil.
	Client *Client

	// Request returns the permits that a call needs. It is required with Client.
	Request MethodRequest
}

// UnaryInterceptor returns the interceptor for unary calls.
func (p PeerLimits) UnaryInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if err := p.acquire(ctx, method); err != nil {
			return err
		}
		waits := newPeerWaits(ctx, p.MaxWait, p.MaxRetries)
		for {
			err := invoker(ctx, method, req, reply, conn, options...)
			wait, ok := retryDelay(err)
			if !ok || !waits.allow(wait) {
				return err
			}
			if waits.wait(wait) != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
		}
	}
}

// StreamInterceptor returns the interceptor for streams. It acquires the permit of Client. It
// does not open a denied stream again, because messages may have been sent already.
func (p PeerLimits) StreamInterceptor() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := p.acquire(ctx, method); err != nil {
			return nil, err
		}
		return streamer(ctx, desc, conn, method, options...)
	}
}

func (p PeerLimits) acquire(ctx context.Context, method string) error {
	if p.Client == nil {
		return nil
	}
	r := p.Request(ctx, method)
	if r == nil {
		return nil
	}
	_, err := p.Client.wait(ctx, r, "")
	return err
}

// retryDelay returns the delay of the RetryInfo of a RESOURCE_EXHAUSTED.
func retryDelay(err error) (time.Duration, bool) {
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok && info.GetRetryDelay().IsValid() {
			return max(info.RetryDelay.AsDuration(), 0), true
		}
	}
	return 0, false
}
