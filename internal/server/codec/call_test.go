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

// decode decodes a request with descriptors of one entry, whose value has that many bytes.
func decode(t *testing.T, call func(decode func(any) error) *Call, descriptors, valueBytes int) (end func(), err error) {
	t.Helper()
	request := &rlsv3.RateLimitRequest{Domain: "d"}
	for range descriptors {
		request.Descriptors = append(request.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: strings.Repeat("v", valueBytes)}},
		})
	}
	wire, err := proto.Marshal(request)
	require.NoError(t, err)
	decoded := &rlsv3.RateLimitRequest{}
	c := call(func(message any) error {
		return New(4000, 0).Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, message)
	})
	if err = c.Decode(decoded); err == nil {
		assert.True(t, proto.Equal(request, decoded))
	}
	return c.End, err
}

func TestLargeRequestsTakeTurns(t *testing.T) {
	for name, size := range map[string]struct{ descriptors, valueBytes, together int }{
		"1,024 descriptors":                {1024, 1, 2},
		"a policy of 64 headers":           {257, 600, 6},
		"a megabyte":                       {256, 4 << 10, 1},
		"more descriptors than all turns":  {3000, 1, 1},
		"256 descriptors wait for nothing": {256, 1, 100},
		"128 KiB wait for nothing":         {1, 127 << 10, 100},
	} {
		t.Run(name, func(t *testing.T) {
			begin := func(d func(any) error) *Call { return Begin(t.Context(), d) }
			var ends []func()
			for range size.together {
				end, err := decode(t, begin, size.descriptors, size.valueBytes)
				require.NoError(t, err)
				ends = append(ends, end)
			}
			if size.together < 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				end, err := decode(t, func(d func(any) error) *Call { return Begin(ctx, d) }, size.descriptors, size.valueBytes)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				end()
				end, err = decode(t, begin, 256, 1)
				require.NoError(t, err, "a small request never waits")
				end()
			}
			for _, end := range ends {
				end()
			}
			require.True(t, largeTurns.TryAcquire(maxLargeWeight))
			largeTurns.Release(maxLargeWeight)
		})
	}
}
