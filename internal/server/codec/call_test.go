package codec

import (
	"context"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// decode decodes a request in the Call that beginCall begins. Each descriptor of the request has one entry, and the
// value of the entry has valueBytes bytes.
func decode(t *testing.T, beginCall func(decode func(any) error) *Call, descriptors, valueBytes int) (end func(), err error) {
	t.Helper()
	request := &rlsv3.RateLimitRequest{Domain: "d"}
	for range descriptors {
		request.Descriptors = append(request.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: strings.Repeat("v", valueBytes)}},
		})
	}
	encodedRequest, err := proto.Marshal(request)
	require.NoError(t, err)
	decodedRequest := &rlsv3.RateLimitRequest{}
	c := beginCall(func(message any) error {
		return New(4000, 0).Unmarshal(mem.BufferSlice{mem.SliceBuffer(encodedRequest)}, message)
	})
	if err = c.Decode(decodedRequest); err == nil {
		assert.True(t, proto.Equal(request, decodedRequest))
	}
	return c.End, err
}

func TestLargeRequestsTakeTurns(t *testing.T) {
	for name, test := range map[string]struct{ descriptors, valueBytes, concurrentCalls int }{
		"1,024 descriptors":                             {1024, 1, 2},
		"257 descriptors with values of 600 bytes":      {257, 600, 6},
		"a megabyte":                                    {256, 4 << 10, 1},
		"more descriptors than the weight of all turns": {3000, 1, 1},
		"256 descriptors need no turn":                  {256, 1, 100},
		"128 KiB need no turn":                          {1, 127 << 10, 100},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func(d func(any) error) *Call { return Begin(t.Context(), d) }
			var ends []func()
			for range test.concurrentCalls {
				end, err := decode(t, begin, test.descriptors, test.valueBytes)
				require.NoError(t, err)
				ends = append(ends, end)
			}
			if test.concurrentCalls < 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				end, err := decode(t, func(d func(any) error) *Call { return Begin(ctx, d) }, test.descriptors, test.valueBytes)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				end()
				end, err = decode(t, begin, 256, 1)
				require.NoError(t, err, "a small request never waits")
				end()
			}
			for _, end := range ends {
				end()
			}
			require.True(t, largeRequests.TryAcquire(maxLargeWeight))
			largeRequests.Release(maxLargeWeight)
		})
	}
}
