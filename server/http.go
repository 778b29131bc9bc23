package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// httpHandler serves /json and /healthcheck.
func httpHandler(o *Options) http.Handler {
	mux := http.NewServeMux()
	if o.JSON != nil {
		mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
			serveJSON(w, r, o.JSON, int64(o.GRPC.MaxMessageBytes))
		})
	}
	mux.Handle("/healthcheck", healthHandler(o.Health))
	return mux
}

// serveJSON answers ShouldRateLimit for callers without gRPC. It takes a
// RateLimitRequest as JSON by any method and answers a RateLimitResponse as JSON. The
// status is the decision: 200 is OK and 429 is OVER_LIMIT.
func serveJSON(w http.ResponseWriter, r *http.Request, service rlsv3.RateLimitServiceServer, maxBytes int64) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		httpError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("body exceeds %d bytes", tooLarge.Limit))
		return
	}
	var req rlsv3.RateLimitRequest
	if err == nil {
		err = protojson.Unmarshal(body, &req)
	}
	if err != nil {
		httpError(w, http.StatusBadRequest, err.Error())
		return
	}
	resp, err := service.ShouldRateLimit(r.Context(), &req)
	if err != nil {
		// The incumbent answers 400 to every failed call, and its callers expect 400.
		httpError(w, http.StatusBadRequest, status.Convert(err).Message())
		return
	}
	answer, err := protojson.Marshal(resp)
	if err != nil {
		httpError(w, http.StatusInternalServerError, err.Error())
		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus(resp.GetOverallCode()))
	_, _ = w.Write(answer) // an error means that the caller has gone
}

func httpStatus(code rlsv3.RateLimitResponse_Code) int {
	switch code {
	case rlsv3.RateLimitResponse_OK:
		return http.StatusOK
	case rlsv3.RateLimitResponse_OVER_LIMIT:
		return http.StatusTooManyRequests
	default:
		return http.StatusInternalServerError
	}
}

// healthHandler answers 200 with "OK", or 500 with a line for each fault. A line for
// each note follows in both cases.
func healthHandler(h *Health) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		faults, notes := h.Faults(), h.Notes()
		if len(faults) > 0 {
			http.Error(w, strings.Join(append(faults, notes...), "\n"), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, strings.Join(append([]string{"OK"}, notes...), "\n"))
	}
}

// httpError answers "<status text>: <reason>" as plain text.
func httpError(w http.ResponseWriter, code int, reason string) {
	http.Error(w, http.StatusText(code)+": "+reason, code)
}
