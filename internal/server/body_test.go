package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// echo answers with the body and the value of echoKey in the context.
type echo struct{}

type echoKey struct{}

func (echo) ServeBody(w http.ResponseWriter, r *http.Request, body []byte) {
	if string(body) == "panic" {
		panic("boom")
	}
	fmt.Fprintf(w, "%s %v", body, r.Context().Value(echoKey{}))
}

func (echo) Refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, "refused: %s", reason)
}

func TestCheckGetsBodiesWithinTheBounds(t *testing.T) {
	t.Parallel()
	server := start(t, Options{
		Services: servicesOf(alwaysOK), Check: echo{}, GRPC: GRPC{MaxMessageBytes: 1000},
		HTTPContext: func(r *http.Request) context.Context {
			return context.WithValue(r.Context(), echoKey{}, r.Header.Get("X-Trace"))
		},
		HTTPPages: []Page{{Path: "/v1/openapi.json", Handler: healthHandler(NewHealth())}},
	})
	for name, tt := range map[string]struct {
		body, header, value string
		code                int
		want                string
	}{
		"a body":                 {"hello", "X-Trace", "t1", 200, "hello t1"},
		"a body over the limit":  {strings.Repeat("x", 1001), "X-Trace", "", 413, "refused: body exceeds 1000 bytes"},
		"a page of another site": {"hello", "Origin", "https://evil.example", 403, "refused: request comes from a page of another site"},
		"a panic":                {"panic", "X-Trace", "", 500, "Internal Server Error: internal error\n"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+server.HTTPAddr().String()+"/v1/check", strings.NewReader(tt.body))
			require.NoError(t, err)
			req.Header.Set(tt.header, tt.value)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, tt.code, resp.StatusCode)
			assert.Equal(t, tt.want, string(text))
		})
	}
	_, _, page := request(t, http.MethodGet, server.HTTPAddr(), "/v1/openapi.json", "")
	assert.Equal(t, "OK", page)
}

func TestCheckIsMissingByDefault(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	code, _, _ := request(t, http.MethodPost, server.HTTPAddr(), "/v1/check", "{}")
	assert.Equal(t, http.StatusNotFound, code)
}

func TestLargeBodyIsRefusedBeforeItArrives(t *testing.T) {
	t.Parallel()
	server := start(t, Options{Services: servicesOf(alwaysOK), Check: echo{}, GRPC: GRPC{MaxMessageBytes: 1000}})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.HTTPAddr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	assert.True(t, resp.Close)
}
