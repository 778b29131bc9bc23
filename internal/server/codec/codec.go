// Package codec encodes and decodes the messages of ShouldRateLimit faster than the general code of protobuf, and
// with fewer allocations. The general code handles all other messages, and messages with fields that Envoy rarely sets.
package codec

import (
	"context"
	"fmt"
	"slices"
	"sync"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// maxFastRequestBytes is the size of the largest request that decodeRequest decodes. All strings of such a request
// share one piece of memory, so a string that outlives the call keeps the memory of the whole request.
const maxFastRequestBytes = 1 << 10

// Codec is a codec of gRPC for protobuf.
type Codec struct {
	encoding.CodecV2           // the general code of protobuf
	maxDescriptors, maxEntries int
}

// New returns a Codec. The service rejects a request that has more than maxDescriptors descriptors, or more than
// maxEntries entries in all descriptors together. 0 means no bound. To reject the request, the service needs only the
// number of descriptors or entries, so the codec decodes the right number of empty descriptors or entries.
func New(maxDescriptors, maxEntries int) Codec {
	return Codec{encoding.GetCodecV2(proto.Name), maxDescriptors, maxEntries}
}

// Marshal implements encoding.CodecV2.
func (c Codec) Marshal(message any) (mem.BufferSlice, error) {
	if response, ok := message.(*rlsv3.RateLimitResponse); ok {
		if buffers, ok := encodeResponse(response); ok {
			return buffers, nil
		}
	}
	return c.CodecV2.Marshal(message)
}

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, message any) error {
	if m, isOfStream := message.(*StreamMessage); isOfStream {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()
		data, message = mem.BufferSlice{buffer}, m.Message
		if err := checkQuotaReports(buffer.ReadOnlyData()); err != nil {
			return err
		}
		if err := m.BeforeDecode(buffer.Len()); err != nil {
			return err
		}
	}
	call, isCall := message.(*Call)
	if isCall {
		message = call.request
	}
	request, ok := message.(*rlsv3.RateLimitRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, message)
	}
	if len(data) == 1 && data[0].Len() <= maxFastRequestBytes {
		if decodeRequest(string(data[0].ReadOnlyData()), request) {
			return nil
		}
		request.Reset()
	} else {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()
		data = mem.BufferSlice{buffer}
		parts, ok := countPartsOfLargeRequest(buffer.ReadOnlyData())
		switch {
		case !ok: // assume the largest number: the request consists of the shortest descriptors
			parts.descriptors = buffer.Len() / minDescriptorBytes
		case c.maxDescriptors > 0 && parts.descriptors > c.maxDescriptors:
			request.Domain = parts.domain
			request.Descriptors = slices.Repeat([]*ratelimitv3.RateLimitDescriptor{{}}, parts.descriptors)
			return nil
		}
		if isCall {
			if err := call.waitIfLarge(buffer.Len(), parts.descriptors); err != nil {
				return err
			}
		}
		if c.maxEntries > 0 && parts.entries > c.maxEntries {
			request.Domain = parts.domain
			entries := slices.Repeat([]*ratelimitv3.RateLimitDescriptor_Entry{{}}, parts.entries)
			request.Descriptors = []*ratelimitv3.RateLimitDescriptor{{Entries: entries}}
			return nil
		}
	}
	return c.CodecV2.Unmarshal(data, message)
}

// maxUsages bounds the buckets in a report of quotas. A decoded bucket takes at least 400 bytes.
const maxUsages = 16_384

func checkQuotaReports(data []byte) error {
	usages := 0
	forEachBytesField(data, func(tag byte, _ []byte) {
		if tag == usagesTag {
			usages++
		}
	})
	if usages > maxUsages {
		return fmt.Errorf("bucket_quota_usages: got %d, want at most %d", usages, maxUsages)
	}
	return nil
}

// StreamMessage is a message of a stream. The only streams are those of quotas, so each message of a client has reports.
type StreamMessage struct {
	Message      any
	BeforeDecode func(bytes int) error // can wait, or reject the message
}

const (
	// A request is large if it exceeds one of these bounds. A decoded entry of 2 bytes takes 100 bytes.
	maxSmallBytes, maxSmallDescriptors = 128 << 10, 256

	// maxLargeWeight bounds the total weight of the large requests that the server decodes and answers at the same
	// time. The weight of a request is its number of descriptors, or its size divided by bytesPerWeight if that is more.
	maxLargeWeight = 2048
	bytesPerWeight = 512

	// minDescriptorBytes is about the size of the shortest descriptor that can match a rule.
	minDescriptorBytes = 8
)

var largeRequests = semaphore.NewWeighted(maxLargeWeight)

// Call is a unary call. If its request is large, the call waits before it decodes the request.
type Call struct {
	Decode func(request any) error // the handler calls Decode to get the request

	ctx        context.Context
	grpcDecode func(any) error
	request    any
	weight     int64 // the part of largeRequests that the call uses; 0 for a small request
}

var calls = sync.Pool{New: func() any {
	c := &Call{}
	c.Decode = func(request any) error {
		c.request = request
		return c.grpcDecode(c) // calls Codec.Unmarshal with c as the message
	}
	return c
}}

// Begin returns a Call. ctx and decode are the arguments of grpc's handler. The caller must call End after the answer.
func Begin(ctx context.Context, decode func(any) error) *Call {
	c := calls.Get().(*Call)
	c.ctx, c.grpcDecode = ctx, decode
	return c
}

// End releases the weight of the call.
func (c *Call) End() {
	if c.weight > 0 {
		largeRequests.Release(c.weight)
	}
	*c = Call{Decode: c.Decode}
	calls.Put(c)
}

// waitIfLarge waits until maxLargeWeight allows a large request of this size. A small request does not wait.
func (c *Call) waitIfLarge(bytes, descriptors int) error {
	if bytes <= maxSmallBytes && descriptors <= maxSmallDescriptors {
		return nil
	}
	weight := int64(min(max(bytes/bytesPerWeight, descriptors), maxLargeWeight))
	if err := largeRequests.Acquire(c.ctx, weight); err != nil {
		return err
	}
	c.weight = weight
	return nil
}
