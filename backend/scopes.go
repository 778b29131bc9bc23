package backend

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/seed-81f232ab/rls/limit"
)

// Scopes is a Layer that sends each hit to the Layer of its limit's scope. Shared decides the hits of all scopes but instance.
type Scopes struct{ Shared, Instance Layer }

// Take implements Limiter. It first takes the hits of scope instance. If one of them denies the group, the
// group charges no shared counter, so other replicas see no charge.
func (s Scopes) Take(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	isInstance := func(i int) bool { return hits[i].Limit.Scope == limit.Instance }
	TakePart(ctx, now, s.Instance, hits, results, isInstance)
	isShared := func(i int) bool { return !isInstance(i) }
	for i := range hits {
		if isInstance(i) && hits[i].DeniesGroup(&results[i]) {
			TakeDeniedGroup(ctx, now, s.Shared, hits, results, isShared)
			return
		}
	}
	TakePart(ctx, now, s.Shared, hits, results, isShared)
	if IsGroupDenied(hits, results) {
		s.refundInstance(ctx, now, hits, results)
	}
}

// Peek implements Layer.
func (s Scopes) Peek(ctx context.Context, now time.Time, hits []Hit, peeks []Peek) {
	for _, layer := range []Layer{s.Instance, s.Shared} {
		var part SubBatch
		for i, h := range hits {
			if s.layer(h.Limit.Scope) == layer {
				part.Add(i, h)
			}
		}
		if len(part.Hits) == 0 {
			continue
		}
		partPeeks := make([]Peek, len(part.Hits))
		layer.Peek(ctx, now, part.Hits, partPeeks)
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
	s.Shared.Forget(nil)
}

func (s Scopes) layer(scope limit.Scope) Layer {
	if scope == limit.Instance {
		return s.Instance
	}
	return s.Shared
}

// refundInstance refunds the hits of scope instance in the group after a shared hit has denied the group.
func (s Scopes) refundInstance(ctx context.Context, now time.Time, hits []Hit, results []Result) {
	refunds := NewSubBatch()
	defer refunds.Release()
	for i, h := range hits {
		isCharged := h.IsInGroup() && results[i].Allowed && !results[i].HoldExists // a renewal charges nothing
		if h.Limit.Scope == limit.Instance && isCharged {
			h.N = -h.N
			refunds.Add(i, h)
		}
	}
	refunds.Take(ctx, now, s.Instance)
	refunds.CopyResults(results)
}

// KeyPrefix matches keys that start with Start. If EndsAnywhere is false, Start must be the whole key, or a | and further
// entries must follow Start in the key.
type KeyPrefix struct {
	Start        string
	EndsAnywhere bool
}

// Matches reports whether key has the prefix.
func (p KeyPrefix) Matches(key string) bool {
	suffix, ok := strings.CutPrefix(key, p.Start)
	return ok && (p.EndsAnywhere || suffix == "" || suffix[0] == '|')
}

// PrefixReset is the outcome of a reset by prefix.
type PrefixReset struct {
	// Counters is the number of counters with the prefix, or -1 if the backend can't count them.
	Counters int

	// UnclearCounters is the number of counters whose shortened names may have the prefix. These counters are not reset.
	UnclearCounters int
}

// ErrTooManyCounters is in the error of ResetPrefix if more counters have the prefix than the caller allows. The reset
// has changed nothing.
var ErrTooManyCounters = errors.New("too many counters have the prefix")

// PrefixResetterPair resets counters by prefix in two places.
type PrefixResetterPair struct{ First, Second PrefixResetter }

// ResetPrefix implements PrefixResetter. The result counts only the counters of First.
func (p PrefixResetterPair) ResetPrefix(ctx context.Context, prefix KeyPrefix, maxCounters int, dryRun bool) (PrefixReset, error) {
	r, err := p.First.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	if err == nil {
		_, err = p.Second.ResetPrefix(ctx, prefix, maxCounters, dryRun)
	}
	return r, err
}

// PrefixResetter resets counters by prefix.
type PrefixResetter interface {
	// ResetPrefix resets all counters with the prefix, or none if there are more than maxCounters. With dryRun,
	// it only counts the counters. After an error, a part of the counters may be reset.
	ResetPrefix(ctx context.Context, p KeyPrefix, maxCounters int, dryRun bool) (PrefixReset, error)
}
