package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-81f232ab/rls/backend/redis"
)

const batchSpan = "redis batch"

// BatchAnswered implements redis.Tracer. The span of a batch is a child of the span of the first recorded call. The span
// of the batch and the spans of the other recorded calls link to each other. Without recorded calls, there is no span.
func (t *Tracer) BatchAnswered(b redis.Batch, start time.Time, calls []context.Context) {
	var parent context.Context
	var otherSpans []trace.Span
	var links []trace.Link
	for _, ctx := range calls {
		span := trace.SpanFromContext(ctx)
		switch {
		case !span.SpanContext().IsSampled():
		case parent == nil:
			parent = ctx
		case trace.SpanContextFromContext(parent).Equal(span.SpanContext()): // the same request has several calls in the batch
		default:
			otherSpans = append(otherSpans, span)
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		}
	}
	if parent == nil {
		return
	}
	_, span := t.tracer.Start(parent, batchSpan,
		trace.WithTimestamp(start),
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(links...),
		trace.WithAttributes(
			attribute.String("db.system.name", "redis"),
			attribute.String("rls.redis.server", b.Role.String()),
			attribute.Int("rls.batch.calls", len(calls)),
			attribute.Int("rls.batch.hits", b.Hits),
			attribute.Int("rls.batch.queued_hits", b.QueuedHits),
			attribute.Int64("rls.batch.wait_us", b.Wait.Microseconds()),
		))
	for _, other := range otherSpans {
		other.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	if b.Err != nil {
		span.SetStatus(codes.Error, b.Err.Error())
	}
	span.End(trace.WithTimestamp(start.Add(b.Duration)))
}
