package local

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestTakeOfKnownKeysAllocatesNothing(t *testing.T) {
	for name, o := range map[string]Options{"each": {}, "all or none": {AllOrNone: true}} {
		t.Run(name, func(t *testing.T) {
			l := New(o)
			var hits []backend.Hit
			for _, a := range limit.Algorithms() {
				was := newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Second, Multiplier: 9})
				hits = append(hits,
					backend.Hit{Key: []byte("passes"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1 << 20, Unit: limit.Hour}), N: 1},
					backend.Hit{Key: []byte("is denied"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Minute}), N: 2, Shadow: true},
					backend.Hit{Key: []byte("peeks"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 1, Unit: limit.Day})},
					backend.Hit{Key: []byte("is carried over"), Limit: newLimit(t, limit.Spec{Algorithm: a, Requests: 9, Unit: limit.Hour}).After(was, noon.UnixMicro()), N: -1})
			}
			results := make([]backend.Result, len(hits))
			for _, h := range hits {
				for _, p := range h.Limit.Past(noon.UnixMicro(), nil) {
					charge(l, noon, h.Key, p.Limit, 1)
				}
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
