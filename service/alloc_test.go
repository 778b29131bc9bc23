//go:build !race

// The race detector makes pools forget, so allocations are counted without it.

package service

import (
	"context"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
)

func TestAllocationsPerCall(t *testing.T) {
	r := newRig(t, tenPerMinute)
	req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(1, desc("k=v"))}
	call := func() { _, _ = r.svc.ShouldRateLimit(context.Background(), req) }
	call()
	assert.Equal(t, 1.0, testing.AllocsPerRun(1000, call), "the response, in one piece")
}
