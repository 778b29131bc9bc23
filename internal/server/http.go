package server

import (
	"cmp"
	"io"
	"net/http"
	"slices"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/seed-81f232ab/rls/limit"
)

func httpHandler(o *Options, calls *callCounter) http.Handler {
	mux := http.NewServeMux()
	reader := &bodyReader{
		maxBytes: int64(o.GRPC.MaxMessageBytes), largeBodies: make(chan struct{}, max(maxLargeBodyBytes/o.GRPC.MaxMessageBytes, 1)),
		answerBounds: newAnswerBounds(), calls: calls, newContext: o.HTTPContext,
	}
	if o.JSON != nil {
		// A page of another site must not use the browser of a visitor to spend limits.
		mux.Handle("/json", http.NewCrossOriginProtection().Handler(reader.handler(&jsonHandler{o.JSON, o.JSONRefunds})))
	}
	if o.Check != nil {
		protection := http.NewCrossOriginProtection()
		protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			o.Check.Refuse(w, http.StatusForbidden, "request comes from a page of another site")
		}))
		mux.Handle("/v1/check", protection.Handler(reader.handler(o.Check)))
	}
	for _, p := range o.HTTPPages {
		mux.Handle(p.Path, p.Handler)
	}
	mux.Handle("/healthcheck", healthHandler(o.Health))
	return requireOwnName(o.DebugNames, isFromBrowser, mux)
}

// jsonHandler answers ShouldRateLimit for callers without gRPC. The body of a call is a RateLimitRequest as JSON, and
// the body of the answer is a RateLimitResponse as JSON. The status is 200 for OK and 429 for OVER_LIMIT.
type jsonHandler struct {
	service       rlsv3.RateLimitServiceServer
	allowsRefunds bool
}

var holdHeader = http.CanonicalHeaderKey(limit.HoldKey)

func (*jsonHandler) Refuse(w http.ResponseWriter, code int, reason string) {
	httpError(w, code, reason)
}

func (j *jsonHandler) ServeBody(w http.ResponseWriter, r *http.Request, body []byte) {
	var req rlsv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &req); err != nil {
		httpError(w, http.StatusBadRequest, err.Error())
		return
	}
	if !j.allowsRefunds && slices.ContainsFunc(req.Descriptors, (*ratelimitv3.RateLimitDescriptor).GetIsNegativeHits) {
		httpError(w, http.StatusBadRequest, "refunds (is_negative_hits) are turned off for /json; JSON_REFUNDS=true turns them on")
		return
	}
	ctx := r.Context()
	if ids := r.Header[holdHeader]; len(ids) > 0 {
		callerMetadata, _ := metadata.FromIncomingContext(ctx)
		ctx = metadata.NewIncomingContext(ctx, metadata.Join(callerMetadata, metadata.MD{limit.HoldKey: ids}))
	}
	resp, err := j.service.ShouldRateLimit(ctx, &req)
	if err != nil {
		// The incumbent answers 400 to every failed call. The other codes are for failures that only rls has.
		code := http.StatusBadRequest
		switch status.Code(err) {
		case codes.PermissionDenied:
			code = http.StatusForbidden
		case codes.ResourceExhausted:
			code = http.StatusTooManyRequests
		}
		httpError(w, code, status.Convert(err).Message())
		return
	}
	answer, err := protojson.Marshal(resp)
	if err != nil {
		httpError(w, http.StatusInternalServerError, err.Error())
		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(cmp.Or(httpCodes[resp.GetOverallCode()], http.StatusInternalServerError))
	_, _ = w.Write(answer) // an error means that the caller has gone
}

var httpCodes = map[rlsv3.RateLimitResponse_Code]int{
	rlsv3.RateLimitResponse_OK: http.StatusOK, rlsv3.RateLimitResponse_OVER_LIMIT: http.StatusTooManyRequests,
}

// healthHandler answers 200 with "OK", or 500 with a line for each fault. Both answers end with a line for each note.
func healthHandler(h *Health) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		faults, notes := h.Lines()
		if len(faults) > 0 {
			http.Error(w, strings.Join(append(faults, notes...), "\n"), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, strings.Join(append([]string{"OK"}, notes...), "\n"))
	}
}

func httpError(w http.ResponseWriter, code int, reason string) {
	http.Error(w, http.StatusText(code)+": "+reason, code)
}
