package client

import (
	"context"

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
