package local

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestTakeOfKnownKeysDoesNotAllocate(t *testing.T) {
	for name, allOrNone := range map[string]bool{"each hit alone": false, "all or none": true} {
		t.Run(name, func(t *testing.T) {
			l := New(Options{})
			var hits []backend.Hit
			for _, a := range limit.Algorithms() {
				if len(hits) > 12 {
					break // more than 16 hits allocate
				}
				hits = append(hits,
					backend.Hit{Key: []byte("passes"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1 << 20, Unit: limit.Hour}), N: 1, AllOrNone: allOrNone},
					backend.Hit{Key: []byte("is denied"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Minute}), N: 2, Shadow: true},
					backend.Hit{Key: []byte("peeks"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Day})})
			}
			results := make([]backend.Result, len(hits))
			for _, h := range hits {
				charge(l, noon, h.Key, h.Limit, 1)
			}
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				l.Take(context.Background(), noon, hits, results)
			}))
			assert.True(t, results[0].Allowed)
			assert.False(t, results[1].Allowed)
		})
	}
}
