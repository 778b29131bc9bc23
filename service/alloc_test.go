//go:build !race

// The race detector empties pools at random, so allocations are counted without it.

package service

import (
	"context"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
)

func TestCallAllocatesOnlyTheResponse(t *testing.T) {
	f := newFixture(t, tenPerMinute, func(o *Options) { o.Observers = []Observer{new(decisionCounter)} })
	req := &rlsv3.RateLimitRequest{Domain: "d", Descriptors: repeat(1, desc("k=v"))}
	call := func() { _, _ = f.svc.ShouldRateLimit(context.Background(), req) }
	call()
	assert.Equal(t, 1.0, testing.AllocsPerRun(1000, call), "only the response is allocated")
}

// decisionCounter is an Observer that counts decisions.
type decisionCounter struct{ decisions int }

func (c *decisionCounter) CallAnswered(_ context.Context, call *Call) {
	for i := range call.DecisionCount() {
		if call.Decision(i).Result.Err == nil {
			c.decisions++
		}
	}
}
