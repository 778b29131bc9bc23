package backend

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/limit"
)

// echoLimiter answers each hit. The error has the key, and Remaining is N.
type echoLimiter struct{ takes int }

func (e *echoLimiter) Take(_ context.Context, _ time.Time, hits []Hit, results []Result) {
	e.takes++
	for i, h := range hits {
		results[i] = Result{Err: fmt.Errorf("%s", h.Key), Result: limit.Result{Remaining: h.N}}
	}
}

func TestResultsAreCopiedToTheirPlaces(t *testing.T) {
	for round := range int64(3) { // a later round can use the memory of an earlier round
		s := NewSubBatch()
		key := []byte("a")
		s.Add(3, Hit{Key: []byte("d"), N: round})
		s.AddWithPrefix("own:", 1, Hit{Key: key, N: round + 1})
		key[0] = 'x' // SubBatch has a copy of the key
		var nextLimiter echoLimiter
		s.Take(t.Context(), time.Time{}, &nextLimiter)
		assert.Equal(t, 1, nextLimiter.takes)

		results := make([]Result, 4)
		s.CopyResults(results)
		assert.EqualError(t, results[3].Err, "d")
		assert.EqualError(t, results[1].Err, "own:a")
		assert.Equal(t, []int64{0, round + 1, 0, round}, []int64{results[0].Remaining, results[1].Remaining, results[2].Remaining, results[3].Remaining})
		s.Release()
	}
}

func TestEmptySubBatchMakesNoTake(t *testing.T) {
	var s SubBatch
	var nextLimiter echoLimiter
	s.Take(t.Context(), time.Time{}, &nextLimiter)
	s.CopyResults(nil)
	assert.Zero(t, nextLimiter.takes)
}

func TestTakePartSendsTheIncludedHitsInOneTake(t *testing.T) {
	hits := []Hit{{Key: []byte("a"), N: 1}, {Key: []byte("b"), N: 2}, {Key: []byte("c"), N: 3}}
	for _, c := range []struct {
		included []int
		takes    int
		want     []int64 // the Remaining of each result
	}{
		{nil, 0, []int64{0, 0, 0}},
		{[]int{0, 2}, 1, []int64{1, 0, 3}},
		{[]int{0, 1, 2}, 1, []int64{1, 2, 3}},
	} {
		var nextLimiter echoLimiter
		results := make([]Result, len(hits))
		TakePart(t.Context(), time.Time{}, &nextLimiter, hits, results, func(i int) bool { return slices.Contains(c.included, i) })
		assert.Equal(t, c.takes, nextLimiter.takes)
		assert.Equal(t, c.want, []int64{results[0].Remaining, results[1].Remaining, results[2].Remaining})
	}
}

func TestKeysWithPrefixSurviveGrowth(t *testing.T) {
	var s SubBatch
	for i := range 1000 {
		s.AddWithPrefix("own:", i, Hit{Key: fmt.Appendf(nil, "key %d", i)})
	}
	for i, h := range s.Hits {
		assert.Equal(t, fmt.Sprintf("own:key %d", i), string(h.Key))
	}
	s.Hits[0].Key = append(s.Hits[0].Key, "longer"...)
	assert.Equal(t, "own:key 1", string(s.Hits[1].Key))
}

func TestReleaseFreesHitsAndLargeKeys(t *testing.T) {
	var s SubBatch
	s.Add(0, Hit{Key: []byte("k"), Limit: new(limit.Limit)})
	s.AddWithPrefix("own:", 1, Hit{Key: bytes.Repeat([]byte("k"), maxKeptKeys)})
	s.Release()
	assert.Empty(t, s.Hits)
	for _, h := range s.Hits[:cap(s.Hits)] {
		assert.Zero(t, h)
	}
	assert.Zero(t, cap(s.keys))
}
