package redis

import (
	"context"
	"time"
)

// Tracer receives each batch with the contexts of its calls, right after the Observer. It
// is called by the workers of all queues at once and must not block.
type Tracer interface {
	// BatchAnswered receives a batch that was sent at start. The contexts are those of the
	// calls of Take, some of which may have ended.
	BatchAnswered(b Batch, start time.Time, calls []context.Context)
}

// traceBy keeps the context of r for the Tracer t, if any.
func (r *request) traceBy(t Tracer, ctx context.Context) {
	if t != nil {
		r.ctx = ctx
	}
}

// trace reports the batch to the Tracer, if any.
func (b *batch) trace(done Batch, start time.Time) {
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
	t.BatchAnswered(done, start, calls)
}
