package client_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

// tenantRequest returns a request with the tenant in the header Tenant, or nil without this header.
func tenantRequest(req *http.Request) *client.Request {
	name := req.Header.Get("Tenant")
	if name == "" {
		return nil
	}
	return &client.Request{Domain: "shop", Descriptors: []client.Descriptor{client.NewDescriptor("tenant", name)}}
}

// handlerTransport is a transport that lets a handler answer, without a network.
type handlerTransport struct {
	handler http.Handler
	bodies  []string
}

func (h *handlerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		body, _ := io.ReadAll(req.Body)
		_ = req.Body.Close()
		h.bodies = append(h.bodies, string(body))
	}
	recorder := httptest.NewRecorder()
	h.handler.ServeHTTP(recorder, req)
	return recorder.Result(), nil
}

func newRequest(t *testing.T, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://shop.example/orders", body)
	require.NoError(t, err)
	req.Header.Set("Tenant", "acme")
	return req
}

var acceptHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })

func TestMiddlewareAnswersDeniedRequestsWith429(t *testing.T) {
	clock := clienttest.NewClock(start.Add(18500 * time.Millisecond))
	c := clienttest.New(t, limits, clock)
	h := &handlerTransport{handler: c.Middleware(tenantRequest)(acceptHandler)}
	for i := range 12 {
		resp, err := h.RoundTrip(newRequest(t, nil))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, "10", resp.Header.Get("RateLimit-Limit"))
		assert.Equal(t, "42", resp.Header.Get("RateLimit-Reset"))
		if i < 10 {
			assert.Equal(t, http.StatusCreated, resp.StatusCode)
			assert.Empty(t, resp.Header.Get("Retry-After"))
			continue
		}
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, "0", resp.Header.Get("RateLimit-Remaining"))
		assert.Equal(t, "42", resp.Header.Get("Retry-After"))
	}
	unlimitedRequest := newRequest(t, nil)
	unlimitedRequest.Header.Del("Tenant")
	resp, err := h.RoundTrip(unlimitedRequest)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusCreated, resp.StatusCode, "a nil Request is not limited")
	assert.Empty(t, resp.Header.Get("RateLimit-Limit"))
}

func TestMiddlewareAnswersWith503WithoutDecision(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	require.NoError(t, c.Close())
	resp, err := (&handlerTransport{handler: c.Middleware(tenantRequest)(acceptHandler)}).RoundTrip(newRequest(t, nil))
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
}
