package backend

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/limit"
)

// echo answers each hit with its key as an error, and N remaining.
type echo struct{ takes int }

func (e *echo) Take(_ context.Context, _ time.Time, hits []Hit, results []Result) {
	e.takes++
	for i, h := range hits {
		results[i] = Result{Err: fmt.Errorf("%s", h.Key), Result: limit.Result{Remaining: h.N}}
	}
}

func TestResultsAreCopiedToTheirPlaces(t *testing.T) {
	var s SubBatch
	for round := range int64(3) { // the rounds share memory
		key := []byte("a")
		s.Add(3, Hit{Key: []byte("d"), N: round})
		s.AddIn("own:", 1, Hit{Key: key, N: round + 1})
		key[0] = 'x' // the key in the namespace is a copy
		var next echo
		s.Take(t.Context(), time.Time{}, &next)
		assert.Equal(t, 1, next.takes)

		results := make([]Result, 4)
		s.CopyResults(results)
		assert.EqualError(t, results[3].Err, "d")
		assert.EqualError(t, results[1].Err, "own:a")
		assert.Equal(t, []int64{0, round + 1, 0, round}, []int64{results[0].Remaining, results[1].Remaining, results[2].Remaining, results[3].Remaining})
		s.Reset()
	}
}

func TestEmptySubBatchCallsNobody(t *testing.T) {
	var s SubBatch
	var next echo
	s.Take(t.Context(), time.Time{}, &next)
	s.CopyResults(nil)
	s.Reset()
	assert.Zero(t, next.takes)
}

func TestKeysInANamespaceSurviveGrowth(t *testing.T) {
	var s SubBatch
	for i := range 1000 {
		s.AddIn("own:", i, Hit{Key: fmt.Appendf(nil, "key %d", i)})
	}
	for i, h := range s.Hits {
		assert.Equal(t, fmt.Sprintf("own:key %d", i), string(h.Key))
	}
	s.Hits[0].Key = append(s.Hits[0].Key, "longer"...)
	assert.Equal(t, "own:key 1", string(s.Hits[1].Key))
}

func TestResetFreesHitsAndLargeKeys(t *testing.T) {
	var s SubBatch
	s.Add(0, Hit{Key: []byte("k"), Limit: new(limit.Limit)})
	s.AddIn("own:", 1, Hit{Key: bytes.Repeat([]byte("k"), maxKeptKeys)})
	s.Reset()
	assert.Empty(t, s.Hits)
	for _, h := range s.Hits[:cap(s.Hits)] {
		assert.Zero(t, h)
	}
	assert.Zero(t, cap(s.keys))
}

func TestReusedSubBatchDoesNotAllocate(t *testing.T) {
	var s SubBatch
	key, results := []byte("key"), make([]Result, 9)
	next := nop{}
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range results {
			s.AddIn("own:", i, Hit{Key: key})
		}
		s.Take(context.Background(), time.Time{}, next)
		s.CopyResults(results)
		s.Reset()
	}))
}

type nop struct{}

func (nop) Take(context.Context, time.Time, []Hit, []Result) {}
