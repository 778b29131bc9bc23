package backend

import (
	"context"
	"slices"
	"time"
)

// SubBatch is the part of a batch of hits that goes to another Limiter. Its zero value
// is empty. It is not safe for concurrent use. Reset empties it and keeps its memory.
type SubBatch struct {
	Hits    []Hit
	Index   []int    // Index[j] is the place of Hits[j] in the whole batch
	Results []Result // Results[j] answers Hits[j]; set by Take

	keys []byte // memory of the keys that AddIn makes
}

// Add appends h, which is hit i of the whole batch.
func (s *SubBatch) Add(i int, h Hit) {
	s.Hits, s.Index = append(s.Hits, h), append(s.Index, i)
}

// AddIn appends h with its key prefixed by namespace.
func (s *SubBatch) AddIn(namespace string, i int, h Hit) {
	from := len(s.keys)
	s.keys = append(append(s.keys, namespace...), h.Key...) // growing keeps the memory of earlier keys
	h.Key = s.keys[from:len(s.keys):len(s.keys)]
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
	for j, i := range s.Index {
		results[i] = s.Results[j]
	}
}

// maxKeptKeys is the most memory for keys that Reset keeps, in bytes.
const maxKeptKeys = 64 << 10

// Reset empties s.
func (s *SubBatch) Reset() {
	clear(s.Hits)
	s.Hits, s.Index, s.Results, s.keys = s.Hits[:0], s.Index[:0], s.Results[:0], s.keys[:0]
	if cap(s.keys) > maxKeptKeys {
		s.keys = nil
	}
}
