// Package check answers POST /v1/check, for programs without gRPC. A request has several independent checks of limits as
// JSON. A refusal rejects the whole request without a decision.
package check

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/service"
)

// Path is the path of the handler.
const Path = "/v1/check"

// Options are the options of New. Only Service is required.
type Options struct {
	// Service decides the checks.
	Service *service.Service

	// CheckDomain returns an error if the caller may not use the domain. The default allows all domains.
	CheckDomain func(ctx context.Context, domain string) error

	// StartCall returns the context of a check. The Handler calls end after the answer of the check. The default
	// returns the context of the request.
	StartCall func(context.Context) (_ context.Context, end func())

	// Refunds allows negative hits.
	Refunds bool

	// MaxChecks bounds the checks in a request. The default and the maximum is the constant MaxChecks.
	MaxChecks int
}

// Handler answers requests after the server has read their bodies. It is safe for concurrent use.
type Handler struct{ options Options }

// New returns a Handler.
func New(o Options) *Handler {
	o.MaxChecks = min(cmp.Or(o.MaxChecks, MaxChecks), MaxChecks)
	if o.CheckDomain == nil {
		o.CheckDomain = func(context.Context, string) error { return nil }
	}
	if o.StartCall == nil {
		o.StartCall = func(ctx context.Context) (context.Context, func()) { return ctx, func() {} }
	}
	return &Handler{o}
}

// refusalCodes has the status code of gRPC for each kind of Refusal. The key is the status code of HTTP.
var refusalCodes = map[int]codes.Code{
	http.StatusBadRequest:            codes.InvalidArgument,
	http.StatusForbidden:             codes.PermissionDenied,
	http.StatusMethodNotAllowed:      codes.Unimplemented,
	http.StatusRequestEntityTooLarge: codes.ResourceExhausted,
	http.StatusServiceUnavailable:    codes.Unavailable,
}

// Refuse answers a request with a Refusal.
func (h *Handler) Refuse(w http.ResponseWriter, httpCode int, reason string) {
	respond(w, httpCode, Refusal{*newError(status.Error(refusalCodes[httpCode], reason))})
}

// ServeBody answers r. body is the whole body of r.
func (h *Handler) ServeBody(w http.ResponseWriter, r *http.Request, body []byte) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		h.Refuse(w, http.StatusMethodNotAllowed, "method: want POST")
		return
	}
	req, err := parse(body, h.options.MaxChecks)
	if err != nil {
		h.Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	respond(w, http.StatusOK, Response{h.decideChecks(r.Context(), req)})
}

func (h *Handler) decideChecks(ctx context.Context, req *Request) []Answer {
	answers := make([]Answer, len(req.Checks))
	var items []service.Item
	for i := range req.Checks {
		c := &req.Checks[i]
		c.Domain = cmp.Or(c.Domain, req.Domain)
		grpcReq, err := h.newRequest(ctx, c)
		if err != nil {
			answers[i] = Answer{Code: Failed, Error: newError(err)}
			continue
		}
		callCtx := ctx
		if c.Hold != "" { // the service reads the hold from the metadata, in which gRPC callers send it
			callerMetadata, _ := metadata.FromIncomingContext(ctx)
			callCtx = metadata.NewIncomingContext(ctx, metadata.Join(callerMetadata, metadata.Pairs(limit.HoldKey, c.Hold)))
		}
		callCtx, end := h.options.StartCall(callCtx)
		items = append(items, service.Item{Context: callCtx, Request: grpcReq, OnAnswer: func(call *service.Call) {
			answers[i] = newAnswer(call, req.Rules)
			end()
		}})
	}
	h.options.Service.AnswerAll(ctx, items)
	return answers
}

func (h *Handler) newRequest(ctx context.Context, c *Check) (*rlsv3.RateLimitRequest, error) {
	if err := h.options.CheckDomain(ctx, c.Domain); err != nil {
		return nil, err
	}
	d := &ratelimitv3.RateLimitDescriptor{Entries: make([]*ratelimitv3.RateLimitDescriptor_Entry, len(c.Descriptor))}
	for i, e := range c.Descriptor {
		d.Entries[i] = &ratelimitv3.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value}
	}
	if len(d.Entries) == 0 {
		return nil, status.Error(codes.InvalidArgument, "descriptor: got no entries, want at least one")
	}
	if c.Hits != nil {
		n := *c.Hits
		switch {
		case n > maxHits || n < -maxHits:
			return nil, status.Errorf(codes.InvalidArgument, "hits: got %d, want %d to %d", n, -maxHits, maxHits)
		case n < 0 && !h.options.Refunds:
			return nil, status.Error(codes.PermissionDenied, "hits: negative hits are turned off over HTTP; JSON_REFUNDS=true turns them on")
		}
		d.IsNegativeHits = n < 0
		d.HitsAddend = wrapperspb.UInt64(uint64(max(n, -n)))
	}
	return &rlsv3.RateLimitRequest{Domain: c.Domain, Descriptors: []*ratelimitv3.RateLimitDescriptor{d}}, nil
}

func newAnswer(c *service.Call, includesRule bool) Answer {
	if c.Err != nil {
		return Answer{Code: Failed, Error: newError(c.Err)}
	}
	a := Answer{Code: OK}
	if c.Response.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		a.Code = OverLimit
	}
	if rule := c.Rules[0]; includesRule && rule != nil {
		a.Rule = rule.Path
	}
	d, ok := c.DescriptorDecision(0)
	if !ok {
		return a
	}
	st := c.Response.Statuses[0]
	reset := st.DurationUntilReset.AsDuration().Seconds()
	a.Remaining, a.ResetSeconds = &st.LimitRemaining, &reset
	a.CanNeverPass = a.Code == OverLimit && !d.Result.Allowed && d.Result.RetryAfter == limit.Never
	a.Limit = &Limit{
		Name: d.Limit.Name, RequestsPerUnit: d.Limit.Requests, Unit: d.Limit.Unit.String(), UnitMultiplier: d.Limit.Multiplier,
		Algorithm: d.Limit.Algorithm.String(),
	}
	return a
}

const maxMessageBytes = 1024 // bounds the message of an Error

func newError(err error) *Error {
	s := status.Convert(err)
	return &Error{Code: code.Code(s.Code()).String(), Message: fields.Cut(s.Message(), maxMessageBytes)}
}

func respond(w http.ResponseWriter, httpCode int, answer any) {
	text, _ := json.Marshal(answer) // it can't fail, because answer has only texts and numbers
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(httpCode)
	_, _ = w.Write(append(text, '\n')) // an error means that the caller has gone
}
