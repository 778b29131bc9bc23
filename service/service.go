// Package service answers one rate-limit call: it turns the request's
// descriptors into hits, has them charged, and turns the results into Envoy's
// response (envoy.service.ratelimit.v3).
package service

import (
	"context"
	"errors"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
)

// Options configure a Service. Limits and Limiter are required.
type Options struct {
	// Limits holds the limits in force.
	Limits *descriptors.Store

	// Limiter counts.
	Limiter backend.Limiter

	// Now is the clock; time.Now if nil. It is read once per call.
	Now func() time.Time

	// ShadowMode answers OK where the overall code would be OVER_LIMIT. The
	// statuses and headers stay as they are.
	ShadowMode bool

	// QuotaMode treats every descriptor as one in quota mode.
	QuotaMode bool

	// Headers are the response headers that tell the limit; nil sends none.
	Headers *Headers

	// DynamicMetadata adds what was asked, and the metadata of the rules that
	// let it pass, to the response's dynamic metadata.
	DynamicMetadata bool
}

// Service is the rate-limit service. It is safe for concurrent use.
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer
	o Options
}

// New makes a Service.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{o: o}
}

var (
	errNoDomain      = status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	errNoDescriptors = status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	errNoLimits      = status.Error(codes.FailedPrecondition, "no rate limit configuration loaded")
)

// ShouldRateLimit implements the service's one method. The errors:
// INVALID_ARGUMENT for a request that can't be answered as it is,
// FAILED_PRECONDITION while no limits are loaded, and UNAVAILABLE (or what ended
// the caller's context) when a hit could not be decided.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	limits := s.o.Limits.Load()
	switch {
	case req.GetDomain() == "":
		return nil, errNoDomain
	case len(req.GetDescriptors()) == 0:
		return nil, errNoDescriptors
	case limits == nil:
		return nil, errNoLimits
	}
	c := newCall()
	defer c.release()
	if err := c.match(limits, req); err != nil {
		return nil, err
	}
	if len(c.hits) > 0 {
		s.o.Limiter.Take(ctx, s.o.Now(), c.hits, c.results)
		for i := range c.results {
			if err := c.results[i].Err; err != nil {
				return nil, takeError(err)
			}
		}
	}
	resp := c.respond(len(req.Descriptors))
	v := c.verdict(resp.Statuses, s.o.QuotaMode)
	resp.OverallCode = v.code
	if s.o.Headers != nil && v.tell != nil {
		resp.ResponseHeadersToAdd = s.o.Headers.values(v.tell)
	}
	if s.o.DynamicMetadata {
		resp.DynamicMetadata = dynamicMetadata(req, c.rules, resp.Statuses)
	}
	if s.o.ShadowMode {
		resp.OverallCode = rlsv3.RateLimitResponse_OK
	}
	return resp, nil
}

// takeError gives the failure to decide a hit its gRPC code.
func takeError(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backend.ErrUnavailable):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}
