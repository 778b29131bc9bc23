package backend

import (
	"context"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// Scopes is a Layer that sends each hit to the Layer of its limit's scope. Limits of scope
// global have one budget for all replicas. Limits of scope instance have a budget in each
// replica.
type Scopes struct{ Global, Instance Layer }

var _ Layer = Scopes{}

// Take implements Limiter. Hits of scope instance come first, because their counters belong to
// this process. So if they deny the group of the Take, other replicas see no charge.
func (s Scopes) Take(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	isInstance := func(i int) bool { return hits[i].Limit.Scope == limit.Instance }
	TakePart(ctx, now, s.Instance, hits, results, isInstance)
	isGlobal := func(i int) bool { return !isInstance(i) }
	for i := range hits {
		if isInstance(i) && hits[i].DeniesGroup(&results[i]) {
			TakeDeniedGroup(ctx, now, s.Global, hits, results, isGlobal)
			return
		}
	}
	TakePart(ctx, now, s.Global, hits, results, isGlobal)
	if IsGroupDenied(hits, results) {
		s.refundInstance(ctx, now, hits, results)
	}
}

// Peek implements Layer.
func (s Scopes) Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek) {
	for _, scope := range []limit.Scope{limit.Instance, limit.Global} {
		var part SubBatch
		for i, h := range hits {
			if h.Limit.Scope == scope {
				part.Add(i, h)
			}
		}
		if len(part.Hits) == 0 {
			continue
		}
		partPeeks := make([]Peek, len(part.Hits))
		s.layer(scope).Peek(ctx, now, part.Hits, partPeeks)
		for j, i := range part.Index {
			peeks[i] = partPeeks[j]
		}
	}
}

// Forget implements Layer.
func (s Scopes) Forget(h *Hit) {
	if h != nil {
		s.layer(h.Limit.Scope).Forget(h)
		return
	}
	s.Instance.Forget(nil)
	s.Global.Forget(nil)
}

func (s Scopes) layer(scope limit.Scope) Layer {
	if scope == limit.Instance {
		return s.Instance
	}
	return s.Global
}

// refundInstance refunds the hits of scope instance in the group, because a hit of scope global denies
// the group.
func (s Scopes) refundInstance(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	refunds := NewSubBatch()
	defer refunds.Release()
	for i, h := range hits {
		isCharged := h.InGroup() && results[i].Allowed && !results[i].Held // a renewal charges nothing
		if h.Limit.Scope == limit.Instance && isCharged {
			h.N = -h.N
			refunds.Add(i, h)
		}
	}
	refunds.Take(ctx, now, s.Instance)
	refunds.CopyResults(results)
}
