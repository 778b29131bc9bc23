//go:build e2e

package e2e_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-81f232ab/rls/test/envoyconf"
)

// config is an example's bootstrap on its way to a running Envoy. All of it stays
// as it is but for the addresses, and what a test says it edits.
type config struct {
	t *testing.T
	*bootstrapv3.Bootstrap
}

// example reads a bootstrap from examples/ and sends it to the given replicas. The
// filter waits for an answer longer than the example's 20 ms, as a busy machine
// isn't the subject of most tests.
func example(t *testing.T, name string, replicas ...*rls) config {
	t.Helper()
	b, err := envoyconf.Bootstrap(filepath.Join(root, "examples", name))
	require.NoError(t, err)
	c := config{t, b}
	c.StaticResources.Listeners = c.StaticResources.Listeners[:1] // the second is an upstream, as upstream() is
	address := c.StaticResources.Listeners[0].Address.GetSocketAddress()
	address.Address, address.PortSpecifier = "127.0.0.1", &corev3.SocketAddress_PortValue{}
	c.Admin = &bootstrapv3.Admin{Address: socketAddress("127.0.0.1:0")}
	c.endpoints("echo", upstream(t))
	var addrs []string
	for _, r := range replicas {
		addrs = append(addrs, r.grpc)
	}
	c.endpoints("rls", addrs...)
	c.filter(func(f *ratelimitv3.RateLimit) { f.Timeout = durationpb.New(5 * time.Second) })
	return c
}

// filter edits the rate-limit filter.
func (c config) filter(edit func(*ratelimitv3.RateLimit)) {
	c.t.Helper()
	c.http(func(hcm *hcmv3.HttpConnectionManager) { change(c.t, hcm.HttpFilters[0].GetTypedConfig(), edit) })
}

// http edits what is around it.
func (c config) http(edit func(*hcmv3.HttpConnectionManager)) {
	c.t.Helper()
	change(c.t, c.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig(), edit)
}

// change edits the message in an Any.
func change[M any, P interface {
	*M
	proto.Message
}](t *testing.T, in *anypb.Any, edit func(P)) {
	t.Helper()
	m := P(new(M))
	require.NoError(t, in.UnmarshalTo(m))
	edit(m)
	require.NoError(t, in.MarshalFrom(m))
}

// endpoints says where a cluster is.
func (c config) endpoints(cluster string, addrs ...string) {
	c.t.Helper()
	for _, have := range c.StaticResources.Clusters {
		if have.Name != cluster {
			continue
		}
		var endpoints []*endpointv3.LbEndpoint
		for _, addr := range addrs {
			endpoints = append(endpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: socketAddress(addr)},
			}})
		}
		have.LoadAssignment.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}}
		return
	}
	require.FailNow(c.t, "no cluster "+cluster)
}

func socketAddress(addr string) *corev3.Address {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(port, 10, 16)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

// upstream answers every request with 200, and tells as x-tokens what it was told.
func upstream(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-tokens", r.Header.Get("x-tokens"))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// envoy is a running Envoy.
type envoy struct {
	*process
	url   string
	admin string
}

// start runs Envoy until it listens and finds all replicas healthy.
func (c config) start() *envoy {
	c.t.Helper()
	require.NoError(c.t, envoyconf.Check(c.Bootstrap))
	text, err := protojson.Marshal(c.Bootstrap)
	require.NoError(c.t, err)
	dir := c.t.TempDir()
	file, adminFile := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	require.NoError(c.t, os.WriteFile(file, text, 0o600))
	e := &envoy{process: start(c.t, nil, envoyBin, "-c", file, "--admin-address-path", adminFile,
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")}
	e.await("admin's address", func() bool {
		addr, _ := os.ReadFile(adminFile)
		e.admin = "http://" + string(addr)
		return len(addr) > 0
	})
	e.await("listener", func() bool {
		var have struct {
			ListenerStatuses []struct {
				LocalAddress struct {
					SocketAddress struct {
						Address   string
						PortValue int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if json.Unmarshal([]byte(e.ask("/listeners?format=json")), &have) != nil || len(have.ListenerStatuses) == 0 {
			return false
		}
		at := have.ListenerStatuses[0].LocalAddress.SocketAddress
		e.url = "http://" + net.JoinHostPort(at.Address, strconv.Itoa(at.PortValue))
		return at.PortValue > 0 && e.ask("/ready") == "LIVE\n"
	})
	return e
}

// ask returns a page of Envoy's admin, "" if it can't be had.
func (e *envoy) ask(path string) string {
	resp, err := http.Get(e.admin + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}
