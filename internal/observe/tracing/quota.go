package tracing

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-81f232ab/rls/backend"
)

const quotaSpan = "quota update"

// QuotaStore returns a store that makes a span of each update of store. Reports of many Envoys can cause an update, so the
// span has no parent.
func (t *Tracer) QuotaStore(store backend.QuotaStore) backend.QuotaStore {
	return tracedQuotaStore{store, t.tracer}
}

type tracedQuotaStore struct {
	backend.QuotaStore
	tracer trace.Tracer
}

// Update implements backend.QuotaStore.
func (q tracedQuotaStore) Update(ctx context.Context, changes []*backend.QuotaChange) {
	ctx, span := q.tracer.Start(ctx, quotaSpan, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	q.QuotaStore.Update(ctx, changes)
	failures, conflicts := 0, 0
	for _, c := range changes {
		conflicts += c.Conflicts
		if c.Err != nil {
			failures++
			span.SetStatus(codes.Error, c.Err.Error())
		}
	}
	span.SetAttributes(
		attribute.Int("rls.quota.limits", len(changes)),
		attribute.Int("rls.quota.failures", failures),
		attribute.Int("rls.quota.conflicts", conflicts),
	)
}
