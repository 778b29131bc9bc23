//go:build e2e

package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// call is a request to Envoy: "POST /path" or "/path", then headers as "name: value".
type call []string

// answer is what came back.
type answer struct {
	status int
	http.Header
}

var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 32},
}

func (e *envoy) try(c call) (answer, error) {
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
	return answer{resp.StatusCode, resp.Header}, resp.Body.Close()
}

func (e *envoy) send(t *testing.T, c call) answer {
	t.Helper()
	a, err := e.try(c)
	require.NoError(t, err)
	return a
}

// room waits until the window that is aligned to the clock has more than need left,
// so that what follows falls into one window.
func room(window, need time.Duration) {
	if left := window - time.Duration(time.Now().UnixNano())%window; left < need {
		time.Sleep(left)
	}
}
