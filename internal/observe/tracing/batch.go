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

// BatchAnswered implements redis.Tracer. The span of a batch is a child of its first recorded call, if there is one.
// It and the spans of further recorded calls link to each other.
func (t *Tracer) BatchAnswered(b redis.Batch, start time.Time, calls []context.Context) {
	var parent context.Context
	var others []trace.Span
	var links []trace.Link
	for _, ctx := range calls {
		span := trace.SpanFromContext(ctx)
		switch {
		case !span.SpanContext().IsSampled():
		case parent == nil:
			parent = ctx
		case trace.SpanContextFromContext(parent).Equal(span.SpanContext()): // another call of one Take
		default:
			others = append(others, span)
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
	for _, other := range others {
		other.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	if b.Err != nil {
		span.SetStatus(codes.Error, b.Err.Error())
	}
	span.End(trace.WithTimestamp(start.Add(b.Duration)))
}
