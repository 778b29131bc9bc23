package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	confv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed-81f232ab/rls/internal/wait"
)

// typeURL is that of a RateLimitConfig.
const typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

const (
	// pingEvery finds out that a silent server is gone. More often than each five
	// minutes a grpc-go server takes as an attack unless it is told otherwise.
	pingEvery   = 6 * time.Minute
	pingTimeout = 20 * time.Second

	// maxReasonBytes bounds what a NACK says.
	maxReasonBytes = 16 << 10
)

// stream is one connection to the server and one stream on it.
type stream struct {
	client *Client
	ads    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

	connected bool
	accepted  bool // an update, at least

	// A server may send a refused update again at once, perhaps as a new version:
	// go-control-plane's does, as a NACK names another version than the one it has.
	// So the answer to a refused update after another waits.
	refused error // why the last update was refused, if it was
	renack  *backoff.ExponentialBackOff
}

// run connects, subscribes and receives until the stream ends; the error says how.
func (s *stream) run(ctx context.Context) error {
	creds, err := s.client.TLS.credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(s.client.Server,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(s.client.MaxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(s.client.Headers)))
	defer cancel()
	if s.ads, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx); err != nil {
		return err
	}
	s.connected = true
	s.client.Log.Info("xDS server connected", "server", s.client.Server, "node", s.client.NodeID)
	if err := s.subscribe(); err != nil {
		return s.ended(err)
	}
	for r, err := s.first(); ; r, err = s.ads.Recv() {
		if err != nil {
			return ended(err)
		}
		if err := s.answer(ctx, r); err != nil {
			return s.ended(err)
		}
	}
}

// first receives the first response, and tells if it is long in coming: a server
// that doesn't know the node says nothing at all.
func (s *stream) first() (r *discoveryv3.DiscoveryResponse, err error) {
	c := s.client
	received := make(chan struct{})
	go func() {
		defer close(received)
		r, err = s.ads.Recv()
	}()
	silent := fmt.Errorf("xDS server %s is connected, but has sent nothing for node %q", c.Server, c.NodeID)
	if c.accepted {
		c.State(nil)
	} else {
		c.State(silent)
	}
	select {
	case <-received:
		return r, err
	case <-time.After(c.silence):
	}
	c.State(silent)
	c.Log.Warn("xDS server is silent; "+c.inForce(), "server", c.Server, "node", c.NodeID)
	<-received
	return r, err
}

// ended is why the stream has ended, after err from sending on it.
func (s *stream) ended(err error) error {
	if errors.Is(err, io.EOF) { // the reason is for the receiver
		_, err = s.ads.Recv()
	}
	return ended(err)
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the server closed it")
	}
	return err
}

// subscribe asks for all resources. It names no version, though one may be in
// force: a restarted server could mean another by it, and send nothing.
func (s *stream) subscribe() error {
	node := &corev3.Node{Id: s.client.NodeID}
	if len(s.client.NodeMetadata) > 0 {
		node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for name, v := range s.client.NodeMetadata {
			node.Metadata.Fields[name] = structpb.NewStringValue(v)
		}
	}
	return s.ads.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL})
}

// answer puts r in force or refuses it, and tells the server.
func (s *stream) answer(ctx context.Context, r *discoveryv3.DiscoveryResponse) error {
	c := s.client
	if r.GetTypeUrl() != typeURL {
		c.Log.Warn("xDS response ignored: it is of a type that wasn't asked for", "type", r.GetTypeUrl())
		return nil
	}
	c.State(nil)
	before := s.refused
	if s.refused = c.apply(r); s.refused == nil {
		c.version, c.accepted, s.accepted = r.GetVersionInfo(), true, true
		return s.ads.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, VersionInfo: c.version, ResponseNonce: r.GetNonce()})
	}
	if before == nil || before.Error() != s.refused.Error() {
		s.renack.Reset()
		c.Log.Error("xDS update refused", "xds_version", r.GetVersionInfo(), "last_accepted", c.version)
		c.Refused(s.refused)
	}
	if before != nil && !wait.For(ctx, s.renack.NextBackOff()) {
		return ctx.Err()
	}
	return s.ads.Send(&discoveryv3.DiscoveryRequest{
		TypeUrl:       typeURL,
		VersionInfo:   c.version,
		ResponseNonce: r.GetNonce(),
		ErrorDetail:   &statuspb.Status{Code: int32(codes.InvalidArgument), Message: short(s.refused.Error())},
	})
}

// apply puts all resources of r in force, or none.
func (c *Client) apply(r *discoveryv3.DiscoveryResponse) error {
	resources := make([]*confv3.RateLimitConfig, len(r.GetResources()))
	var errs []error
	for i, wrapped := range r.GetResources() {
		resources[i] = &confv3.RateLimitConfig{}
		if err := wrapped.UnmarshalTo(resources[i]); err != nil {
			errs = append(errs, fmt.Errorf("resource %d can't be decoded: %w", i+1, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// go-control-plane's order is random; ours makes messages and the order of what
	// is merged the same each time.
	slices.SortStableFunc(resources, func(a, b *confv3.RateLimitConfig) int { return strings.Compare(a.GetName(), b.GetName()) })
	return c.Apply(r.GetVersionInfo(), resources)
}

// short is s, or as much of it as a NACK should hold.
func short(s string) string {
	if len(s) <= maxReasonBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxReasonBytes], "") + "\n… and more, see the log of the rate-limit service"
}
