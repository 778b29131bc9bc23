package codec

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// A request is large if it has more bytes or descriptors. An entry of two bytes takes a hundred after decoding.
	largeBytes, largeDescriptors = 128 << 10, 256

	// maxLargeWeight bounds the weight of the large requests that are decoded and answered at the same time. A few
	// of them would delay all other calls. A request weighs as much as its descriptors, or as a descriptor for each
	// bytesPerWeight.
	maxLargeWeight = 2048
	bytesPerWeight = 512

	// minDescriptorBytes is about the size of the shortest descriptor that can match a rule.
	minDescriptorBytes = 8
)

var largeTurns = semaphore.NewWeighted(maxLargeWeight)

// Call is a unary call whose large request waits for its turn before it is decoded.
type Call struct {
	Decode func(request any) error // for the handler

	ctx        context.Context
	grpcDecode func(any) error
	request    any
	weight     int64 // in largeTurns
}

var calls = sync.Pool{New: func() any {
	c := &Call{}
	c.Decode = func(request any) error {
		c.request = request
		return c.grpcDecode(c)
	}
	return c
}}

// Begin returns the Call of a handler with these arguments. The caller must call End after the answer.
func Begin(ctx context.Context, decode func(any) error) *Call {
	c := calls.Get().(*Call)
	c.ctx, c.grpcDecode = ctx, decode
	return c
}

// End ends the turn of the call.
func (c *Call) End() {
	if c.weight > 0 {
		largeTurns.Release(c.weight)
	}
	*c = Call{Decode: c.Decode}
	calls.Put(c)
}

// waitTurn waits for the turn of a request, or until the call ends.
func (c *Call) waitTurn(bytes, descriptors int) error {
	if bytes <= largeBytes && descriptors <= largeDescriptors {
		return nil
	}
	weight := int64(min(max(bytes/bytesPerWeight, descriptors), maxLargeWeight))
	if err := largeTurns.Acquire(c.ctx, weight); err != nil {
		return err
	}
	c.weight = weight
	return nil
}
