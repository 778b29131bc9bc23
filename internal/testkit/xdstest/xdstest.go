// Package xdstest is an xDS management server for tests. As in Envoy Gateway, the server of go-control-plane
// runs with a SnapshotCache and mutual TLS.
package xdstest

import (
	"context"
	"net"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const (
	// Node is the node that gets the resources.
	Node = "envoy-ratelimit"

	// Patience is the longest time that tests wait for an event.
	Patience = 20 * time.Second
)

// ControlPlane is a management server.
type ControlPlane struct {
	Addr string

	// Headers gets the headers of each new stream.
	Headers chan metadata.MD

	t        *testing.T
	cache    cache.SnapshotCache
	requests chan *discoveryv3.DiscoveryRequest
	server   *grpc.Server
}

// Serve serves a control plane without resources at addr until the test ends. It waits
// if the port is in use.
func Serve(t *testing.T, addr string, options ...grpc.ServerOption) *ControlPlane {
	t.Helper()
	controlPlane := &ControlPlane{
		Headers:  make(chan metadata.MD, 1000),
		t:        t,
		cache:    cache.NewSnapshotCache(false, cache.IDHash{}, nil),
		requests: make(chan *discoveryv3.DiscoveryRequest, 10_000),
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	controlPlane.Addr, controlPlane.server = Listen(t, addr, serverv3.NewServer(ctx, controlPlane.cache, serverv3.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
			md, _ := metadata.FromIncomingContext(ctx)
			controlPlane.Headers <- md
			return nil
		},
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			controlPlane.requests <- proto.Clone(r).(*discoveryv3.DiscoveryRequest)
			return nil
		},
	}), options...)
	return controlPlane
}

// Listen serves ads at addr until the test ends. It waits if the port is in use.
func Listen(t *testing.T, addr string, ads discoveryv3.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) (string, *grpc.Server) {
	t.Helper()
	var listener net.Listener
	require.Eventually(t, func() (ok bool) {
		var err error
		listener, err = net.Listen("tcp", addr)
		return err == nil
	}, Patience, time.Millisecond)
	server := grpc.NewServer(append(options, grpc.WaitForHandlers(true))...) // Stop leaves no goroutine behind
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, ads)
	serveEnded := make(chan struct{})
	go func() {
		defer close(serveEnded)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-serveEnded
	})
	return listener.Addr().String(), server
}

// Stop ends the server and all its streams.
func (p *ControlPlane) Stop() { p.server.Stop() }

// Set replaces all resources. Each resource needs a name of its own.
func (p *ControlPlane) Set(version string, resources ...*confv3.RateLimitConfig) {
	p.t.Helper()
	var allResources []types.Resource
	for _, r := range resources {
		allResources = append(allResources, r)
	}
	s, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: allResources})
	require.NoError(p.t, err)
	require.NoError(p.t, p.cache.SetSnapshot(context.Background(), Node, s))
}

// Request returns the next request.
func (p *ControlPlane) Request() *discoveryv3.DiscoveryRequest {
	p.t.Helper()
	select {
	case r := <-p.requests:
		return r
	case <-time.After(Patience):
		require.FailNow(p.t, "no request arrives")
		return nil
	}
}

// Config returns a resource with a limit of n per day for each tenant. name is also the domain.
func Config(name string, n uint32) *confv3.RateLimitConfig {
	return &confv3.RateLimitConfig{Name: name, Domain: name, Descriptors: []*confv3.RateLimitDescriptor{{
		Key:       "tenant",
		RateLimit: &confv3.RateLimitPolicy{Unit: confv3.RateLimitUnit_DAY, RequestsPerUnit: n},
	}}}
}

// Broken returns an invalid resource. Its limit has no unit.
func Broken(name string) *confv3.RateLimitConfig {
	r := Config(name, 1)
	r.Descriptors[0].RateLimit.Unit = confv3.RateLimitUnit_UNKNOWN
	return r
}
