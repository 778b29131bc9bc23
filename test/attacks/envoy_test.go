//go:build attacks

package attacks

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// envoyConfig is an Envoy that denies a request if rls does not answer in a second.
const envoyConfig = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: front
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: d
              timeout: 1s
              failure_mode_deny: true
              rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: rls}}}
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /}
                route: {cluster: upstream}
              rate_limits: [{actions: [{request_headers: {header_name: client, descriptor_key: k}}]}]
  clusters:
  - name: upstream
    type: STATIC
    load_assignment:
      cluster_name: upstream
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: UPSTREAM_PORT}}}}]}]
  - name: rls
    type: STATIC
    load_assignment:
      cluster_name: rls
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: RLS_PORT}}}}]}]
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
`

// envoy is a running Envoy before the service.
type envoy struct{ addr, admin string }

var listenerAddr = regexp.MustCompile(`front::(\S+)`)

// startEnvoy starts an Envoy with one connection to the service.
func startEnvoy(s *service) {
	program, err := envoyconf.Program(os.Getenv("ENVOY_BIN"), "../..")
	require.NoError(s.t, err)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.t.Cleanup(upstream.Close)
	ports := strings.NewReplacer("RLS_PORT", port(s.grpc), "UPSTREAM_PORT", port(upstream.Listener.Addr().String()))
	dir := s.t.TempDir()
	config, adminFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	require.NoError(s.t, os.WriteFile(config, []byte(ports.Replace(envoyConfig)), 0o600))
	cmd := exec.Command(program, "-c", config, "--admin-address-path", adminFile, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error")
	cmd.Stderr = os.Stderr
	require.NoError(s.t, cmd.Start())
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	polltest.Until(s.t, 30*time.Second, func() bool {
		admin, _ := os.ReadFile(adminFile)
		s.envoy.admin = string(admin)
		addr := listenerAddr.FindStringSubmatch(s.envoy.page("/listeners"))
		if addr == nil {
			return false
		}
		s.envoy.addr = addr[1]
		return callEnvoy(s.t.Context(), s.envoy.addr) == nil
	})
}

// port returns the port of an address.
func port(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }

// page returns a page of the admin interface, or nothing if Envoy does not answer.
func (e *envoy) page(path string) string {
	resp, err := http.Get("http://" + e.admin + path)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// cancelledCalls returns the number of calls to the service that Envoy reset.
func (e *envoy) cancelledCalls() int {
	_, count, _ := strings.Cut(strings.TrimSpace(e.page("/stats?filter=cluster.rls.upstream_rq_tx_reset")), ": ")
	n, _ := strconv.Atoi(count)
	return n
}

// callEnvoy sends a request that Envoy admits only if the service answers.
func callEnvoy(ctx context.Context, addr string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr, nil)
	if err != nil {
		return err
	}
	req.Header.Set("client", "other")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("Envoy answered %s", resp.Status)
	}
	return nil
}

// cancelThroughEnvoy sends requests to Envoy and cancels each at once. Envoy closes a connection
// with many cancelled requests, so it needs new connections.
func cancelThroughEnvoy(perSecond int) func(context.Context, *service) {
	const conns, pause = 4, 10 * time.Millisecond
	return func(ctx context.Context, s *service) {
		start := time.Now()
		var goroutines sync.WaitGroup
		for range conns {
			goroutines.Go(func() {
				var conn *frameConn
				var err error
				for sendTime := start; ctx.Err() == nil; sendTime = sendTime.Add(pause) {
					if conn == nil {
						conn, err = dialFrames(ctx, s.envoy.addr)
					}
					for range perSecond * int(pause) / int(time.Second) / conns {
						if err == nil {
							err = conn.cancelRequest()
						}
					}
					if err != nil {
						conn, err = nil, nil
					}
					time.Sleep(time.Until(sendTime))
				}
			})
		}
		goroutines.Wait()
		rate := float64(s.envoy.cancelledCalls()) / time.Since(start).Seconds()
		s.t.Logf("Envoy cancelled %.0f calls a second", rate)
		assert.Greater(s.t, rate, float64(perSecond)/4)
	}
}

// cancelRequest sends a request to Envoy and resets it.
func (f *frameConn) cancelRequest() error {
	f.headers.Reset()
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "x"}, {"client", "attacker"}} {
		_ = f.encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	stream := f.stream
	f.stream += 2
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.headers.Bytes(), EndHeaders: true, EndStream: true})
	if err == nil {
		err = f.WriteRSTStream(stream, http2.ErrCodeCancel)
	}
	return err
}
