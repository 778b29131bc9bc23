//go:build e2e

package e2e_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// call is a request to Envoy. Its first element is "POST /path" or "/path". The other
// elements are headers as "name: value".
type call []string

// answer is the response of Envoy.
type answer struct {
	status int
	body   string
	http.Header
}

var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 32},
}

// trySend sends a request and returns the answer.
func (e *envoy) trySend(c call) (answer, error) {
	method, path, ok := strings.Cut(c[0], " ")
	if !ok {
		method, path = http.MethodGet, c[0]
	}
	req, err := http.NewRequest(method, e.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	for _, header := range c[1:] {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, string(body), resp.Header}, err
}

// send sends a request and fails the test if no answer arrives.
func (e *envoy) send(t *testing.T, c call) answer {
	t.Helper()
	a, err := e.trySend(c)
	require.NoError(t, err)
	return a
}

// awaitTimeLeft waits until at least minTimeLeft is left of a window that starts at a multiple of its
// length since 1970. So the calls that follow fall into one window.
func awaitTimeLeft(window, minTimeLeft time.Duration) {
	if remaining := window - time.Duration(time.Now().UnixNano())%window; remaining < minTimeLeft {
		time.Sleep(remaining)
	}
}
