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
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
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

// config is the bootstrap of an example. It differs from the example in the addresses
// and in the edits of the test.
type config struct {
	t *testing.T
	*bootstrapv3.Bootstrap
}

// exampleConfig returns a bootstrap from examples/ that sends calls to the given replicas.
// Its filter waits longer than the 0.1 s of the example, because most tests must pass
// on a busy machine.
func exampleConfig(t *testing.T, name string, replicas ...*rls) config {
	t.Helper()
	envoyConfig := bootstrap(t, name, replicas...)
	envoyConfig.editFilter(func(f *ratelimitv3.RateLimit) { f.Timeout = durationpb.New(5 * time.Second) })
	return envoyConfig
}

// bootstrap does the same as exampleConfig, but leaves the filter as it is.
func bootstrap(t *testing.T, name string, replicas ...*rls) config {
	t.Helper()
	b, err := envoyconf.Bootstrap(filepath.Join(root, "examples", name))
	require.NoError(t, err)
	c := config{t, b}
	c.StaticResources.Listeners = c.StaticResources.Listeners[:1] // startUpstream replaces the second listener
	address := c.StaticResources.Listeners[0].Address.GetSocketAddress()
	address.Address, address.PortSpecifier = "127.0.0.1", &corev3.SocketAddress_PortValue{}
	c.Admin = &bootstrapv3.Admin{Address: socketAddress("127.0.0.1:0")}
	c.setEndpoints("echo", startUpstream(t))
	var addrs []string
	for _, replica := range replicas {
		addrs = append(addrs, replica.grpc)
	}
	c.setEndpoints("rls", addrs...)
	return c
}

// editFilter edits the rate-limit filter.
func (c config) editFilter(edit func(*ratelimitv3.RateLimit)) {
	c.t.Helper()
	c.editHTTP(func(hcm *hcmv3.HttpConnectionManager) { editAny(c.t, hcm.HttpFilters[0].GetTypedConfig(), edit) })
}

// editHTTP edits the connection manager around the filter.
func (c config) editHTTP(edit func(*hcmv3.HttpConnectionManager)) {
	c.t.Helper()
	editAny(c.t, c.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig(), edit)
}

// editAny edits the message inside an Any.
func editAny[M any, P interface {
	*M
	proto.Message
}](t *testing.T, container *anypb.Any, edit func(P)) {
	t.Helper()
	m := P(new(M))
	require.NoError(t, container.UnmarshalTo(m))
	edit(m)
	require.NoError(t, container.MarshalFrom(m))
}

// setEndpoints sets the addresses of a cluster.
func (c config) setEndpoints(name string, addrs ...string) {
	c.t.Helper()
	c.cluster(name).LoadAssignment = loadAssignment(name, addrs)
}

// cluster returns the cluster of that name.
func (c config) cluster(name string) *clusterv3.Cluster {
	c.t.Helper()
	for _, cluster := range c.StaticResources.Clusters {
		if cluster.Name == name {
			return cluster
		}
	}
	require.FailNow(c.t, "no cluster "+name)
	return nil
}

// loadAssignment returns the endpoints of a cluster.
func loadAssignment(cluster string, addrs []string) *endpointv3.ClusterLoadAssignment {
	var endpoints []*endpointv3.LbEndpoint
	for _, addr := range addrs {
		endpoints = append(endpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
			Endpoint: &endpointv3.Endpoint{Address: socketAddress(addr)},
		}})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}}}
}

func socketAddress(addr string) *corev3.Address {
	host, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(port, 10, 16)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}

// startUpstream answers every request with 200 and repeats the request's x-items header.
func startUpstream(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("x-items", r.Header.Get("x-items"))
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// envoy is a running Envoy.
type envoy struct {
	*process
	url   string
	admin string
}

// start runs Envoy and returns once it listens and all replicas are healthy.
func (c config) start() *envoy {
	c.t.Helper()
	require.NoError(c.t, envoyconf.Check(c.Bootstrap))
	text, err := protojson.Marshal(c.Bootstrap)
	require.NoError(c.t, err)
	dir := c.t.TempDir()
	file, adminFile := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	require.NoError(c.t, os.WriteFile(file, text, 0o600))
	testEnvoy := &envoy{process: start(c.t, nil, envoyBin, "-c", file, "--admin-address-path", adminFile,
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--file-flush-interval-msec", "100")}
	testEnvoy.await("admin's address", func() bool {
		addr, _ := os.ReadFile(adminFile)
		testEnvoy.admin = "http://" + string(addr)
		return len(addr) > 0
	})
	testEnvoy.await("listener", func() bool {
		var reply struct {
			ListenerStatuses []struct {
				LocalAddress struct {
					SocketAddress struct {
						Address   string
						PortValue int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if json.Unmarshal([]byte(testEnvoy.adminPage("/listeners?format=json")), &reply) != nil || len(reply.ListenerStatuses) == 0 {
			return false
		}
		address := reply.ListenerStatuses[0].LocalAddress.SocketAddress
		testEnvoy.url = "http://" + net.JoinHostPort(address.Address, strconv.Itoa(address.PortValue))
		return address.PortValue > 0 && testEnvoy.adminPage("/ready") == "LIVE\n"
	})
	return testEnvoy
}

// adminPage returns a page of Envoy's admin interface, "" if the request fails.
func (e *envoy) adminPage(path string) string {
	resp, err := http.Get(e.admin + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}
