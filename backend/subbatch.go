package backend

import (
	"context"
	"slices"
	"sync"
	"time"
)

// SubBatch is the part of a batch of hits that goes to another Limiter.
type SubBatch struct {
	Hits    []Hit
	Index   []int    // Index[j] is the index of Hits[j] in the whole batch
	Results []Result // Results[j] answers Hits[j]; Take sets it

	keys []byte // the memory of the keys of AddWithPrefix
}

var subBatches = sync.Pool{New: func() any { return new(SubBatch) }}

// NewSubBatch returns an empty SubBatch. It may use the memory of a released SubBatch.
func NewSubBatch() *SubBatch { return subBatches.Get().(*SubBatch) }

// maxKeptKeys bounds the memory for keys that a released SubBatch keeps, in bytes.
const maxKeptKeys = 64 << 10

// Release makes the memory of s available to NewSubBatch. The caller must not use s afterwards.
func (s *SubBatch) Release() {
	clear(s.Hits)
	s.Hits, s.Index, s.Results, s.keys = s.Hits[:0], s.Index[:0], s.Results[:0], s.keys[:0]
	if cap(s.keys) > maxKeptKeys {
		s.keys = nil
	}
	subBatches.Put(s)
}

// Add appends h, which is hit i of the whole batch.
func (s *SubBatch) Add(i int, h Hit) {
	s.Hits, s.Index = append(s.Hits, h), append(s.Index, i)
}

// AddWithPrefix appends h with a prefix before its key.
func (s *SubBatch) AddWithPrefix(prefix string, i int, h Hit) {
	start := len(s.keys)
	s.keys = append(append(s.keys, prefix...), h.Key...) // earlier keys keep their memory if keys grows
	h.Key = s.keys[start:len(s.keys):len(s.keys)]
	s.Add(i, h)
}

// Take sends the hits to l and sets Results. It does nothing if there are no hits.
func (s *SubBatch) Take(ctx context.Context, now time.Time, l Limiter) {
	if len(s.Hits) == 0 {
		return
	}
	s.Results = slices.Grow(s.Results[:0], len(s.Hits))[:len(s.Hits)]
	l.Take(ctx, now, s.Hits, s.Results)
}

// CopyResults copies Results to their places in the results of the whole batch.
func (s *SubBatch) CopyResults(results []Result) {
	for batchIndex, i := range s.Index {
		results[i] = s.Results[batchIndex]
	}
}

// HasGroup reports whether there are several hits and at least one of them is in the group of its Take.
func HasGroup(hits []Hit) bool {
	for i := range hits {
		if len(hits) > 1 && hits[i].IsInGroup() {
			return true
		}
	}
	return false
}

// IsGroupDenied reports whether a hit denies the group.
func IsGroupDenied(hits []Hit, results []Result) bool {
	for i := range hits {
		if hits[i].DeniesGroup(&results[i]) {
			return true
		}
	}
	return false
}

// TakeDeniedGroup does what TakePart does, after a hit outside of the part has denied the group. l gets the hits of the
// group as peeks, so that it does not charge them.
func TakeDeniedGroup(ctx context.Context, now time.Time, l Limiter, hits []Hit, results []Result, isIncluded func(i int) bool) {
	s := NewSubBatch()
	defer s.Release()
	for i, h := range hits {
		if !isIncluded(i) {
			continue
		}
		if h.IsInGroup() {
			h.N = 0
		}
		s.Add(i, h)
	}
	s.Take(ctx, now, l)
	for batchIndex, i := range s.Index {
		if h, r := &hits[i], &s.Results[batchIndex]; h.IsInGroup() && r.Err == nil {
			r.Result = h.Limit.ResultFromPeek(r.Result, h.N)
		}
	}
	s.CopyResults(results)
}

// TakePart sends to l only the hits for which isIncluded returns true, and sets their results.
func TakePart(ctx context.Context, now time.Time, l Limiter, hits []Hit, results []Result, isIncluded func(i int) bool) {
	count := 0
	for i := range hits {
		if isIncluded(i) {
			count++
		}
	}
	switch count {
	case 0:
		return
	case len(hits):
		l.Take(ctx, now, hits, results)
		return
	}
	s := NewSubBatch()
	defer s.Release()
	for i := range hits {
		if isIncluded(i) {
			s.Add(i, hits[i])
		}
	}
	s.Take(ctx, now, l)
	s.CopyResults(results)
}
