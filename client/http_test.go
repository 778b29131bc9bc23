package client_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

// tenantOf limits requests by the header Tenant.
func tenantOf(req *http.Request) *client.Request {
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

var accept = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })

func TestMiddlewareAnswersDeniedRequestsWith429(t *testing.T) {
	clock := clienttest.NewClock(start.Add(18500 * time.Millisecond))
	c := clienttest.New(t, limits, clock)
	h := &handlerTransport{handler: c.Middleware(tenantOf)(accept)}
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
	free := newRequest(t, nil)
	free.Header.Del("Tenant")
	resp, err := h.RoundTrip(free)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusCreated, resp.StatusCode, "a nil Request is not limited")
	assert.Empty(t, resp.Header.Get("RateLimit-Limit"))
}

func TestMiddlewareAnswersWith503WithoutDecision(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	require.NoError(t, c.Close())
	resp, err := (&handlerTransport{handler: c.Middleware(tenantOf)(accept)}).RoundTrip(newRequest(t, nil))
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
}

func TestTransportHonours429OfMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 10, "shop", tenant))
		time.Sleep(40 * time.Second)
		base := &handlerTransport{handler: c.Middleware(tenantOf)(accept)}
		begin := time.Now()
		resp, err := (&client.Transport{Base: base}).RoundTrip(newRequest(t, strings.NewReader("order")))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, http.StatusCreated, resp.StatusCode)
		assert.GreaterOrEqual(t, time.Since(begin), 20*time.Second)
		assert.Less(t, time.Since(begin), 22*time.Second)
		assert.Equal(t, []string{"order", "order"}, base.bodies)
	})
}

func TestTransportReturns429ThatItMayNotRepeat(t *testing.T) {
	denied := func(retryAfter string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if retryAfter != "" {
				w.Header().Set("Retry-After", retryAfter)
			}
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte("denied"))
		})
	}
	for name, test := range map[string]struct {
		retryAfter string
		body       io.Reader
		timeout    time.Duration
		wantCalls  int
	}{
		"no Retry-After":          {"", strings.NewReader("x"), time.Hour, 1},
		"invalid Retry-After":     {"-5", strings.NewReader("x"), time.Hour, 1},
		"longer than MaxWait":     {"11", strings.NewReader("x"), time.Hour, 1},
		"sum longer than MaxWait": {"4", strings.NewReader("x"), time.Hour, 3},
		"after MaxRetries":        {"1", strings.NewReader("x"), time.Hour, 4},
		"after the deadline":      {"8", strings.NewReader("x"), 5 * time.Second, 1},
		"body can be read once":   {"1", io.MultiReader(bytes.NewReader([]byte("x"))), time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := &handlerTransport{handler: denied(test.retryAfter)}
				ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
				defer cancel()
				transport := &client.Transport{Base: base, MaxWait: 10 * time.Second}
				resp, err := transport.RoundTrip(newRequest(t, test.body).WithContext(ctx))
				require.NoError(t, err)
				defer resp.Body.Close()
				assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "denied", string(body))
				assert.Len(t, base.bodies, test.wantCalls)
			})
		})
	}
}

func TestTransportReadsRetryAfterAsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(begin) < 5*time.Second {
				w.Header().Set("Retry-After", begin.Add(5*time.Second).UTC().Format(http.TimeFormat))
				w.WriteHeader(http.StatusTooManyRequests)
			}
		})
		resp, err := (&client.Transport{Base: &handlerTransport{handler: h}}).RoundTrip(newRequest(t, nil))
		require.NoError(t, err)
		defer resp.Body.Close()
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	})
}

func TestTransportAcquiresPermitsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		transport := &client.Transport{Base: &handlerTransport{handler: accept}, Client: c, Request: tenantOf}
		begin := time.Now()
		for range 11 {
			resp, err := transport.RoundTrip(newRequest(t, nil))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		assert.GreaterOrEqual(t, time.Since(begin), time.Minute)
	})
}
