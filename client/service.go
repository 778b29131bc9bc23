package client

import (
	"context"
	"strconv"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/metadata"

	"github.com/seed-81f232ab/rls/limit"
)

// service decides calls by a service of rls, at a distance or in this process.
type service struct {
	// ask sends req with the keys and values of md. It returns the answer with its header.
	ask func(ctx context.Context, md []string, req *rlsv3.RateLimitRequest) (resp *rlsv3.RateLimitResponse, header metadata.MD, err error)
}

// decide implements decider.
func (s service) decide(ctx context.Context, c *call) (*answer, error) {
	md := []string{limit.AcquireKey, strconv.FormatBool(c.chargesNothingIfDenied)}
	if c.holdID != "" {
		md = append(md, limit.HoldKey, c.holdID)
	}
	resp, header, err := s.ask(ctx, md, c.request.proto(c.hits()))
	if err != nil {
		return nil, err
	}
	return newAnswer(c, resp, header), nil
}
