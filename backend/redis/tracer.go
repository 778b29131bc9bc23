package redis

import (
	"context"
	"time"
)

// Tracer receives each batch with the contexts of its calls, right after the Observer. It
// is called by the workers of all queues at once and must not block.
type Tracer interface {
	// BatchAnswered receives a batch that was sent at start. calls has the context of each
	// Take with a hit in the batch. Some of these Takes may have returned already.
	BatchAnswered(b Batch, start time.Time, calls []context.Context)
}

// sendToTracer passes the batch to the Tracer, if there is one.
func (b *batch) sendToTracer(sentBatch Batch, start time.Time) {
	t := b.queue.limiter.options.Tracer
	if t == nil {
		return
	}
	var calls []context.Context
	for i, h := range b.hits {
		if h.call.ctx != nil && (i == 0 || h.call != b.hits[i-1].call) {
			calls = append(calls, h.call.ctx)
		}
	}
	t.BatchAnswered(sentBatch, start, calls)
}
