// Package service answers rate-limit calls of Envoy (envoy.service.ratelimit.v3). It turns the descriptors of a
// request into hits, charges the hits, and turns the results into the response.
package service

import (
	"context"
	"errors"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/limit"
)

// Options configure a Service. Limits and Limiter are required.
type Options struct {
	// Limits has the limits in force.
	Limits *descriptors.Store

	// Limiter decides and charges hits.
	Limiter backend.Limiter

	// Observers get the answered calls, in this order.
	Observers []Observer

	// Now is the clock. Each call reads the clock once. The default is time.Now.
	Now func() time.Time

	// CallerHeader is the key of gRPC metadata in which a caller sends its name, or empty.
	CallerHeader string

	// AdmitCaller returns the error of a call whose caller has sent too many calls. Nil admits all calls.
	AdmitCaller func(ctx context.Context, now time.Time) error

	// ShadowMode replaces the overall code OVER_LIMIT by OK, unless a switch at run time replaces this setting.
	ShadowMode bool

	// QuotaMode puts every descriptor in quota mode.
	QuotaMode bool

	// MaxDescriptors bounds the descriptors of a request. MaxEntries bounds the entries of a descriptor. MaxAllEntries
	// bounds the entries of all descriptors of a request. 0 means no bound.
	MaxDescriptors, MaxEntries, MaxAllEntries int

	// NoRefunds rejects all requests with a refund.
	NoRefunds bool

	// AllOrNone charges either all hits of a request or no hit. Hits in shadow mode are charged in any case.
	AllOrNone bool

	// Headers has the names of the response headers that describe the limit. Nil means no such headers.
	Headers *Headers

	// PolicyHeaders adds RateLimit and RateLimit-Policy, and Retry-After to denied requests.
	PolicyHeaders bool

	// DynamicMetadata adds the request and the metadata of its rules to the response.
	DynamicMetadata bool

	// RuleMetadata adds the rule and the decision of each descriptor to the dynamic metadata.
	RuleMetadata bool
}

// Service is the rate-limit service. It is safe for concurrent use.
type Service struct {
	rlsv3.UnimplementedRateLimitServiceServer
	options Options
}

// New returns a Service.
func New(o Options) *Service {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Service{options: o}
}

var (
	errNoDomain      = status.Error(codes.InvalidArgument, "rate limit domain must not be empty")
	errNoDescriptors = status.Error(codes.InvalidArgument, "rate limit descriptor list must not be empty")
	errNoLimits      = status.Error(codes.FailedPrecondition, "no rate limit configuration loaded")
)

// ShouldRateLimit implements rlsv3.RateLimitServiceServer. It returns INVALID_ARGUMENT for an invalid request,
// FAILED_PRECONDITION while no limits are loaded, PERMISSION_DENIED for a refund that is turned off, and the error of
// AdmitCaller. If the Limiter could not decide a hit, ShouldRateLimit returns UNAVAILABLE, or the code for the end of ctx.
func (s *Service) ShouldRateLimit(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	c := calls.Get().(*Call)
	defer c.returnToPool()
	c.Request, c.Start, c.callerHeader = req, s.options.Now(), s.options.CallerHeader
	c.Response, c.Err = s.answer(ctx, c)
	for _, o := range s.options.Observers {
		o.CallAnswered(ctx, c)
	}
	return c.Response, c.Err
}

func (s *Service) answer(ctx context.Context, c *Call) (*rlsv3.RateLimitResponse, error) {
	if err := s.prepare(ctx, c); err != nil {
		return nil, err
	}
	if len(c.hits) > 0 {
		// A caller that waits for permits repeats a denied call, so a denied call must charge nothing.
		values := metadata.ValueFromIncomingContext(ctx, limit.AcquireKey)
		c.wantsWaitHeader = len(values) == 1
		c.IsAcquire = c.wantsWaitHeader && values[0] == "true"
		if c.IsAcquire {
			s.chargeNothingIfDenied(c)
		}
		s.take(ctx, c)
	}
	return s.respond(ctx, c)
}

// prepare sets the rules and the hits of c. If c.Request is invalid, or the caller has sent too many calls, prepare returns
// an error, and c has no hits.
func (s *Service) prepare(ctx context.Context, c *Call) error {
	req := c.Request
	c.config = s.options.Limits.Load()
	if s.options.AdmitCaller != nil {
		if err := s.options.AdmitCaller(ctx, c.Start); err != nil {
			return err
		}
	}
	switch {
	case req.GetDomain() == "":
		return errNoDomain
	case len(req.GetDescriptors()) == 0:
		return errNoDescriptors
	case c.config == nil:
		return errNoLimits
	}
	if err := s.checkSize(req); err != nil {
		return err
	}
	if err := c.match(c.config, req, &s.options); err != nil {
		return err
	}
	err := c.checkRefunds(s.options.NoRefunds)
	if err == nil && c.hasHolds {
		err = c.setHoldIDs(ctx)
	}
	if err != nil {
		clear(c.hits)
		clear(c.limits)
		c.hits, c.results, c.hitDescriptors, c.limits = c.hits[:0], c.results[:0], c.hitDescriptors[:0], c.limits[:0]
	}
	return err
}

// respond returns the response to c.Request. The Limiter must have decided the hits.
func (s *Service) respond(ctx context.Context, c *Call) (*rlsv3.RateLimitResponse, error) {
	for j := range c.results {
		if err := c.results[j].Err; err != nil {
			return nil, statusError(err)
		}
	}
	resp := c.newResponse()
	code, headerStatus := c.overallCode(resp.Statuses, s.options.QuotaMode)
	isShadow := c.config.IsShadow(s.options.ShadowMode)
	c.GlobalShadow = isShadow && code == rlsv3.RateLimitResponse_OVER_LIMIT
	if !isShadow {
		resp.OverallCode = code
	}
	if c.hasHolds {
		c.sendHold(ctx, resp.OverallCode)
	}
	isRefunded := c.IsAcquire && resp.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT
	c.isGroupDenied, c.keepsCharges = c.hasDeniedGroup(), !isRefunded
	if isRefunded {
		s.refundAdmittedHits(context.WithoutCancel(ctx), c)
	}
	c.raiseWaits(resp.Statuses)
	if c.wantsWaitHeader {
		s.sendWait(ctx, c, resp.OverallCode)
	}
	if s.options.Headers != nil && headerStatus != nil {
		resp.ResponseHeadersToAdd = s.options.Headers.values(headerStatus)
	}
	if s.options.PolicyHeaders {
		c.addPolicyHeaders(resp, s.options.QuotaMode)
	}
	if resp.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		c.addDenial(resp, headerStatus)
	}
	if s.options.DynamicMetadata {
		resp.DynamicMetadata = dynamicMetadata(c.Request, c.Rules, resp.Statuses)
	}
	if s.options.RuleMetadata {
		c.addRuleMetadata(resp, headerStatus)
	}
	c.sendSwitches(ctx)
	return resp, nil
}

func (s *Service) checkSize(req *rlsv3.RateLimitRequest) error {
	if n, bound := len(req.Descriptors), s.options.MaxDescriptors; bound > 0 && n > bound {
		return status.Errorf(codes.InvalidArgument, "descriptors: got %d, want at most %d (MAX_DESCRIPTORS)", n, bound)
	}
	entryCount := 0
	for _, d := range req.Descriptors {
		entryCount += len(d.GetEntries())
	}
	if bound := s.options.MaxAllEntries; bound > 0 && entryCount > bound {
		return status.Errorf(codes.InvalidArgument, "entries of all descriptors: got %d, want at most %d (64 × MAX_DESCRIPTORS)", entryCount, bound)
	}
	if bound := s.options.MaxEntries; bound > 0 {
		for i, d := range req.Descriptors {
			if n := len(d.GetEntries()); n > bound {
				return status.Errorf(codes.InvalidArgument, "descriptors[%d].entries: got %d, want at most %d (MAX_ENTRIES)", i, n, bound)
			}
		}
	}
	return nil
}

func statusError(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backend.ErrUnavailable):
		code = codes.DeadlineExceeded
	}
	return status.Error(code, err.Error())
}

// Item is one of several requests that AnswerAll answers.
type Item struct {
	Context  context.Context // has the metadata of the call; the Observers get it too
	Request  *rlsv3.RateLimitRequest
	OnAnswer func(*Call) // gets the answered Call, which is valid only until OnAnswer returns
}

// AnswerAll answers independent requests in their order, as ShouldRateLimit would answer them. To save time, the Limiter
// gets the hits of all requests in one Take. An all-or-none request, or a request with a hit above max_hits, needs a Take
// of its own.
func (s *Service) AnswerAll(ctx context.Context, items []Item) {
	now := s.options.Now()
	batchCalls := make([]*Call, len(items))
	sharedBatch := backend.NewSubBatch()
	defer sharedBatch.Release()
	var budget descriptors.Budget // the budget for the conditions of all requests
	for i, item := range items {
		c := calls.Get().(*Call)
		batchCalls[i] = c
		c.Request, c.Start, c.callerHeader, c.budget = item.Request, now, s.options.CallerHeader, budget
		c.Err = s.prepare(item.Context, c)
		budget = c.budget
		if c.Err != nil || s.needsOwnTake(c) {
			continue
		}
		for j, h := range c.hits {
			h.DenialDeniesCall = false // a denial does not deny the other requests
			sharedBatch.Add(j, h)
		}
	}
	sharedBatch.Take(ctx, now, s.options.Limiter)
	sharedResults := sharedBatch.Results
	for i, c := range batchCalls {
		switch {
		case c.Err != nil:
		case len(c.hits) > 0 && s.needsOwnTake(c):
			s.take(ctx, c)
		default:
			sharedResults = sharedResults[copy(c.results, sharedResults):]
		}
		if c.Err == nil {
			c.Response, c.Err = s.respond(ctx, c)
		}
		for _, o := range s.options.Observers {
			o.CallAnswered(items[i].Context, c)
		}
		items[i].OnAnswer(c)
		c.returnToPool()
	}
}

// needsOwnTake reports whether the hits of c can't be in one Take with the hits of other requests.
func (s *Service) needsOwnTake(c *Call) bool { return s.options.AllOrNone || c.exceedsMaxHits }
