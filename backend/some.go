package backend

import (
	"context"
	"slices"
	"time"
)

// Some is some of the hits of a Take, to be asked for on their own. The zero value has
// none. It is for one goroutine; Reset lets it use its memory again.
type Some struct {
	Hits    []Hit
	Index   []int    // of each hit in the whole Take
	Results []Result // once asked

	keys []byte // of those that are not the caller's
}

// Add adds h, which is hit i of the Take.
func (s *Some) Add(i int, h Hit) {
	s.Hits, s.Index = append(s.Hits, h), append(s.Index, i)
}

// AddIn is Add, with the counter of the same key in a namespace.
func (s *Some) AddIn(namespace string, i int, h Hit) {
	from := len(s.keys)
	s.keys = append(append(s.keys, namespace...), h.Key...) // if it moves, the keys before stay where they are
	h.Key = s.keys[from:len(s.keys):len(s.keys)]
	s.Add(i, h)
}

// Ask has l take the hits, if there are any.
func (s *Some) Ask(ctx context.Context, now time.Time, l Limiter) {
	if len(s.Hits) == 0 {
		return
	}
	s.Results = slices.Grow(s.Results[:0], len(s.Hits))[:len(s.Hits)]
	l.Take(ctx, now, s.Hits, s.Results)
}

// PutBack sets these hits' results among those of the whole Take.
func (s *Some) PutBack(results []Result) {
	for j, i := range s.Index {
		results[i] = s.Results[j]
	}
}

// maxKeptKeys bounds the memory for keys that Reset keeps, in bytes.
const maxKeptKeys = 64 << 10

// Reset forgets the hits, which are the caller's.
func (s *Some) Reset() {
	clear(s.Hits)
	s.Hits, s.Index, s.Results, s.keys = s.Hits[:0], s.Index[:0], s.Results[:0], s.keys[:0]
	if cap(s.keys) > maxKeptKeys {
		s.keys = nil
	}
}
