package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/base/fields"
	"github.com/seed-81f232ab/rls/internal/base/heap"
	"github.com/seed-81f232ab/rls/internal/base/wait"
	"github.com/seed-81f232ab/rls/internal/source"
)

const typeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

const (
	// pingInterval is the interval of pings that detect a dead server. A grpc-go server allows a ping every five minutes.
	pingInterval = 6 * time.Minute
	pingTimeout  = 20 * time.Second

	maxReasonBytes = 16 << 10
)

// stream is a connection to the server with one stream.
type stream struct {
	client *Client
	ads    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

	isConnected      bool
	hasAppliedLimits bool // a response of this stream came into force, at least in part

	// rejection is the reason why the last response was rejected, at least in part; otherwise nil. rejectedVersion is the
	// version of the last rejected response. go-control-plane sends a rejected response again at once, because the NACK
	// has an older version. So nackBackoff delays the second NACK in a row.
	rejection       error
	rejectedVersion string
	nackBackoff     *backoff.ExponentialBackOff
}

func (s *stream) run(ctx context.Context) error {
	c := s.client
	creds, err := c.TLS.Credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(c.Server,
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.MaxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.New(c.Headers)))
	defer cancel()
	if s.ads, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx); err != nil {
		return err
	}
	s.isConnected = true
	c.Log.Info("xDS server connected", "server", c.Server, "node", c.NodeID)
	receive := s.receiveFirst
	for err := s.subscribe(); ; receive = s.ads.Recv {
		var r *discoveryv3.DiscoveryResponse
		if err == nil || errors.Is(err, io.EOF) { // if Send returns EOF, Recv returns the reason
			r, err = receive()
		}
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the server closed the stream")
		case err != nil:
			return err
		}
		err = s.answer(ctx, r)
	}
}

// receiveFirst receives the first response. It warns if no response comes: the server may not know the node.
func (s *stream) receiveFirst() (r *discoveryv3.DiscoveryResponse, err error) {
	c := s.client
	responseArrived := make(chan struct{})
	go func() {
		defer close(responseArrived)
		r, err = s.ads.Recv()
	}()
	silenceErr := fmt.Errorf("xDS server %s is connected, but has sent nothing for node %q", c.Server, c.NodeID)
	if c.limits != nil { // with limits in force, the new connection ends the outage
		c.setOutage(nil)
	} else {
		c.setOutage(silenceErr)
	}
	select {
	case <-responseArrived:
		return r, err
	case <-time.After(c.maxSilence):
	}
	c.setOutage(silenceErr)
	c.Log.Warn("xDS server silent; "+c.outageEffect(), "server", c.Server, "node", c.NodeID)
	<-responseArrived
	return r, err
}

// subscribe requests all resources. It sends no version, because a restarted server can use the last version for other
// resources, and would then send nothing.
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

func (s *stream) answer(ctx context.Context, r *discoveryv3.DiscoveryResponse) error {
	c := s.client
	if r.GetTypeUrl() != typeURL {
		c.Log.Warn("xDS response ignored", "got_type", r.GetTypeUrl(), "want_type", typeURL)
		return nil
	}
	request := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.GetNonce()}
	lastRejection := s.rejection
	if s.apply(r); s.rejection == nil {
		c.lastAcceptedVersion = r.GetVersionInfo()
	} else {
		reason := s.rejection.Error()
		if len(reason) > maxReasonBytes {
			reason = fields.Cut(reason, maxReasonBytes) + " and more, see the log of the rate-limit service"
		}
		request.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: reason}
		if lastRejection != nil && !wait.Sleep(ctx, s.nackBackoff.NextBackOff()) {
			return ctx.Err()
		}
	}
	request.VersionInfo = c.lastAcceptedVersion
	return s.ads.Send(request)
}

// apply applies r and sets s.rejection. If r repeats the rejected response, apply ignores r.
func (s *stream) apply(r *discoveryv3.DiscoveryResponse) {
	defer heap.BeginLoad()()
	c, lastRejection := s.client, s.rejection
	update := c.parse(r)
	isSameProblem := lastRejection != nil && update.Problem != nil && lastRejection.Error() == update.Problem.Error()
	if isSameProblem && (update.Limits == nil || s.rejectedVersion == r.GetVersionInfo()) {
		return
	}
	if update.Limits != nil {
		c.limits, s.hasAppliedLimits = update.Limits, true
	}
	if s.rejection = c.apply(update); s.rejection != nil {
		s.rejectedVersion = r.GetVersionInfo()
		s.nackBackoff.Reset()
		c.Log.Error("xDS response rejected", "xds_version", r.GetVersionInfo(), "last_accepted", c.lastAcceptedVersion, "in_part", update.Limits != nil)
	}
}

// parse returns the update in r. If one resource can't be decoded, the whole response is invalid.
func (c *Client) parse(r *discoveryv3.DiscoveryResponse) source.Update {
	resources := make([]*confv3.RateLimitConfig, len(r.GetResources()))
	var errs []error
	var bounds limitsfile.XDSBounds
	for i, resource := range r.GetResources() {
		if err := bounds.Add(resource.GetValue()); err != nil {
			return source.Update{Problem: fmt.Errorf("resource %d: %w; send fewer or shorter resources", i+1, err)}
		}
		resources[i] = &confv3.RateLimitConfig{}
		if err := resource.UnmarshalTo(resources[i]); err != nil {
			errs = append(errs, fmt.Errorf("resource %d can't be decoded: %w", i+1, err))
		}
	}
	if len(errs) > 0 {
		return source.Update{Problem: errors.Join(errs...)}
	}
	// go-control-plane sends resources in a random order. Sorted resources give the same problems each time.
	slices.SortStableFunc(resources, func(a, b *confv3.RateLimitConfig) int { return strings.Compare(a.GetName(), b.GetName()) })
	limits, err := limitsfile.ParseXDS(resources, c.limits, c.Parse)
	if err != nil && len(limits.Domains) == 0 {
		return source.Update{Problem: err}
	}
	return source.Update{Limits: limits, Problem: err, Attrs: []slog.Attr{slog.String("xds_version", r.GetVersionInfo()), slog.Int("resources", len(resources))}}
}
