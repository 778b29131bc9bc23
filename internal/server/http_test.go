package server

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
)

// answerByDomain is a service. The domain of a request chooses the answer.
var answerByDomain = serviceFunc(func(ctx context.Context, req *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	switch req.GetDomain() {
	case "over":
		return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT}, nil
	case "unknown":
		return &rlsv3.RateLimitResponse{}, nil
	case "refused":
		return nil, status.Error(codes.Unavailable, "redis is gone")
	case "too-many-calls":
		return nil, status.Error(codes.ResourceExhausted, "caller 10.0.0.1: got more than 5 calls in a second")
	case "broken":
		return nil, fmt.Errorf("no status in here")
	case "not-utf8":
		return &rlsv3.RateLimitResponse{RawBody: []byte{1}, ResponseHeadersToAdd: nil, Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{
			{CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{Name: "\xff"}},
		}}, nil
	case "panic":
		panic("boom")
	}
	if d := req.GetDescriptors(); len(d) > 0 && d[0].GetLimit() != nil {
		return &rlsv3.RateLimitResponse{
			OverallCode: rlsv3.RateLimitResponse_OK,
			Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{
				CurrentLimit: &rlsv3.RateLimitResponse_RateLimit{
					RequestsPerUnit: d[0].GetLimit().GetRequestsPerUnit(),
					Unit:            rlsv3.RateLimitResponse_RateLimit_Unit(d[0].GetLimit().GetUnit()),
				},
				LimitRemaining: uint32(d[0].GetHitsAddend().GetValue()),
			}},
		}, nil
	}
	return alwaysOK(ctx, req)
})

func TestJSONAnswersWithStatusOfDecision(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(answerByDomain), JSON: answerByDomain, GRPC: GRPC{MaxMessageBytes: 1000}})

	ok := &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OK,
		Statuses:    []*rlsv3.RateLimitResponse_DescriptorStatus{{Code: rlsv3.RateLimitResponse_OK, LimitRemaining: 7}},
	}
	fivePerWeek := &rlsv3.RateLimitResponse{
		OverallCode: rlsv3.RateLimitResponse_OK,
		Statuses: []*rlsv3.RateLimitResponse_DescriptorStatus{{
			CurrentLimit:   &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 5, Unit: rlsv3.RateLimitResponse_RateLimit_WEEK},
			LimitRemaining: 3,
		}},
	}
	fivePerMinute := proto.CloneOf(fivePerWeek)
	fivePerMinute.Statuses[0].CurrentLimit.Unit = rlsv3.RateLimitResponse_RateLimit_MINUTE

	for _, tt := range []struct {
		name, method, body string
		code               int
		want               proto.Message // nil if the call fails
		reason             string        // a part of the text if the call fails
	}{
		{name: "OK", body: `{"domain":"shop"}`, code: 200, want: ok},
		{name: "GET", method: "GET", body: `{"domain":"shop"}`, code: 200, want: ok},
		{name: "PUT", method: "PUT", body: `{"domain":"shop"}`, code: 200, want: ok},
		{name: "empty object", body: `{}`, code: 200, want: ok},
		{
			name: "over limit", body: `{"domain":"over"}`, code: 429,
			want: &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT},
		},
		{name: "answer without a code", body: `{"domain":"unknown"}`, code: 500, want: &rlsv3.RateLimitResponse{}},
		{
			name: "camel case, enum by number, 64 bits as text", code: 200, want: fivePerWeek,
			body: `{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":{"requestsPerUnit":5,"unit":7},"hitsAddend":"3"}]}`,
		},
		{
			name: "original names, enum by name, 64 bits as number", code: 200, want: fivePerMinute,
			body: `{"domain":"shop","descriptors":[{"entries":[{"key":"a"}],"limit":{"requests_per_unit":5,"unit":"MINUTE"},"hits_addend":3}]}`,
		},

		{name: "call that fails", body: `{"domain":"refused"}`, code: 400, reason: "redis is gone"},
		{name: "call of a caller that sends too many", body: `{"domain":"too-many-calls"}`, code: 429, reason: "got more than 5 calls"},
		{name: "call that fails without a gRPC status", body: `{"domain":"broken"}`, code: 400, reason: "no status in here"},
		{name: "empty body", body: ``, code: 400, reason: "unexpected token"},
		{name: "not JSON", body: `domain=shop`, code: 400, reason: "syntax error"},
		{name: "an array", body: `[]`, code: 400, reason: "unexpected token"},
		{name: "object without its end", body: `{"domain":"shop"`, code: 400, reason: "unexpected EOF"},
		{name: "two objects", body: `{"domain":"shop"}{}`, code: 400, reason: "unexpected token"},
		{name: "unknown field", body: `{"domain":"shop","color":"red"}`, code: 400, reason: "color"},
		{name: "duplicate field", body: `{"domain":"shop","domain":"shop"}`, code: 400, reason: "duplicate field"},
		{name: "wrong type", body: `{"domain":5}`, code: 400, reason: "domain"},
		{name: "unknown enum name", body: `{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}`, code: 400, reason: "FORTNIGHT"},
		{name: "negative hits", body: `{"hits_addend":-1}`, code: 400, reason: "hitsAddend"},
		{name: "invalid UTF-8", body: "{\"domain\":\"a\xffb\"}", code: 400, reason: "UTF-8"},
		{name: "deeply nested", body: strings.Repeat("[", 999), code: 400, reason: "unexpected token"},
		{name: "body at the limit", body: `{"domain":"` + strings.Repeat("x", 1000-13) + `"}`, code: 200, want: ok},
		{name: "body over the limit", body: `{"domain":"` + strings.Repeat("x", 1000-12) + `"}`, code: 413, reason: "exceeds 1000 bytes"},

		{name: "answer that JSON can't express", body: `{"domain":"not-utf8"}`, code: 500, reason: "UTF-8"},
		{name: "panic", body: `{"domain":"panic"}`, code: 500, reason: "internal error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method := tt.method
			if method == "" {
				method = http.MethodPost
			}
			code, header, body := request(t, method, server.HTTPAddr(), "/json", tt.body)
			assert.Equal(t, tt.code, code)
			if tt.want == nil {
				assert.Equal(t, "text/plain; charset=utf-8", header.Get("Content-Type"))
				assert.True(t, strings.HasPrefix(body, http.StatusText(tt.code)+": "), body)
				assert.True(t, strings.HasSuffix(body, "\n"), body)
				assert.Contains(t, body, tt.reason)
				return
			}
			assert.Equal(t, "application/json", header.Get("Content-Type"))
			var got rlsv3.RateLimitResponse
			if assert.NoError(t, protojson.Unmarshal([]byte(body), &got), body) {
				assert.True(t, proto.Equal(tt.want, &got), body)
			}
		})
	}
	assert.Contains(t, server.log.String(), "panic=boom")
	assert.Contains(t, server.log.String(), "http_test.go", "the log has the stack")
}

func TestHTTPListenerServesNoDebugPages(t *testing.T) {
	t.Parallel()
	server := start(t, Options{DebugPages: []Page{{Path: "/rlconfig", Help: "limits", Handler: http.NotFoundHandler()}}})
	for _, path := range []string{"/", "/json/", "/rlconfig", "/debug/pprof/", "/debug/pprof/heap"} {
		code, _, _ := request(t, http.MethodGet, server.HTTPAddr(), path, "")
		assert.Equal(t, http.StatusNotFound, code, path)
	}
}

func TestJSONRejectsRefundsUnlessTheyAreAllowed(t *testing.T) {
	t.Parallel()
	const refund = `{"domain":"shop","descriptors":[{"entries":[{"key":"a"}],"isNegativeHits":true,"hitsAddend":3}]}`
	for isAllowed, want := range map[bool]int{false: http.StatusBadRequest, true: http.StatusOK} {
		server := start(t, Options{Services: servicesOf(answerByDomain), JSON: answerByDomain, JSONRefunds: isAllowed})
		code, _, body := request(t, http.MethodPost, server.HTTPAddr(), "/json", refund)
		assert.Equal(t, want, code, body)
		if !isAllowed {
			assert.Contains(t, body, "JSON_REFUNDS=true")
		}
	}
}

func TestPostsOfOtherSitesAreRejected(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(answerByDomain), JSON: answerByDomain, Check: echo{}, DebugNames: []string{"rls.example.com"}})
	addr := server.HTTPAddr().String()
	for name, tt := range map[string]struct {
		host, header, value string
		want                int
	}{
		"curl":                              {addr, "User-Agent", "curl", http.StatusOK},
		"curl to a public name":             {"rls.example.org:8080", "User-Agent", "curl", http.StatusOK},
		"origin of another site":            {addr, "Origin", "https://evil.example", http.StatusForbidden},
		"origin of the same host":           {addr, "Origin", "http://" + addr, http.StatusOK},
		"origin of a name of the cluster":   {"rls.svc:8080", "Origin", "http://rls.svc:8080", http.StatusOK},
		"origin of a name in DEBUG_NAMES":   {"rls.example.com", "Origin", "http://rls.example.com", http.StatusOK},
		"DNS rebinding":                     {"evil.example:8080", "Origin", "http://evil.example:8080", http.StatusForbidden},
		"DNS rebinding, with fetch headers": {"evil.example:8080", "Sec-Fetch-Site", "same-origin", http.StatusForbidden},
		"browser says cross-site":           {addr, "Sec-Fetch-Site", "cross-site", http.StatusForbidden},
		"browser says same-origin":          {addr, "Sec-Fetch-Site", "same-origin", http.StatusOK},
	} {
		for _, path := range []string{"/json", "/v1/check"} {
			t.Run(name+", to "+path, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+path, strings.NewReader(`{"domain":"shop"}`))
				require.NoError(t, err)
				req.Host = tt.host
				req.Header.Set(tt.header, tt.value)
				resp, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				_ = resp.Body.Close()
				assert.Equal(t, tt.want, resp.StatusCode)
			})
		}
	}
}

func TestJSONBoundsLargeBodiesThatAreReadAtTheSameTime(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(answerByDomain), JSON: answerByDomain, GRPC: GRPC{MaxMessageBytes: maxLargeBodyBytes / 2}})
	largeBody := `{"domain":"` + strings.Repeat("x", 2*maxSmallBody) + `"}`
	postWithoutLastByte := func() *io.PipeWriter {
		body, writer := io.Pipe()
		go func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+server.HTTPAddr().String()+"/json", body)
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		_, err := io.WriteString(writer, largeBody[:len(largeBody)-1])
		require.NoError(t, err)
		return writer
	}
	firstPost, secondPost := postWithoutLastByte(), postWithoutLastByte()
	polltest.Until(t, maxWait, func() bool {
		code, _, _ := request(t, http.MethodPost, server.HTTPAddr(), "/json", largeBody)
		return code == http.StatusServiceUnavailable
	}, "both slots are in use")
	code, _, _ := request(t, http.MethodPost, server.HTTPAddr(), "/json", `{"domain":"shop"}`)
	assert.Equal(t, http.StatusOK, code, "small bodies need no slot")
	_, _ = io.WriteString(firstPost, "}")
	_ = firstPost.Close()
	_ = secondPost.CloseWithError(io.ErrUnexpectedEOF)
	polltest.Until(t, maxWait, func() bool {
		code, _, _ := request(t, http.MethodPost, server.HTTPAddr(), "/json", largeBody)
		return code == http.StatusOK
	}, "the server has read or lost both bodies, so the slots are free")
}
