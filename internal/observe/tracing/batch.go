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
func (t *Tracer) BatchAnswered(batch redis.Batch, start time.Time, calls []context.Context) {
	var parentCall context.Context
	var otherSpans []trace.Span
	var links []trace.Link
	for _, call := range calls {
		span := trace.SpanFromContext(call)
		switch {
		case !span.SpanContext().IsSampled():
		case parentCall == nil:
			parentCall = call
		case trace.SpanContextFromContext(parentCall).Equal(span.SpanContext()): // the same request has several calls in the batch
		default:
			otherSpans = append(otherSpans, span)
			links = append(links, trace.Link{SpanContext: span.SpanContext()})
		}
	}
	if parentCall == nil {
		return
	}
	_, span := t.tracer.Start(parentCall, batchSpan,
		trace.WithTimestamp(start),
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithLinks(links...),
		trace.WithAttributes(
			attribute.String("db.system.name", "redis"),
			attribute.String("rls.redis.server", batch.Role.String()),
			attribute.Int("rls.batch.calls", len(calls)),
			attribute.Int("rls.batch.hits", batch.Hits),
			attribute.Int("rls.batch.queued_hits", batch.QueuedHits),
			attribute.Int64("rls.batch.wait_us", batch.Wait.Microseconds()),
		))
	for _, otherSpan := range otherSpans {
		otherSpan.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	if batch.Err != nil {
		span.SetStatus(codes.Error, batch.Err.Error())
	}
	span.End(trace.WithTimestamp(start.Add(batch.Duration)))
}
