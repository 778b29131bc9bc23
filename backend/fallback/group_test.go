package fallback

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/limit"
)

// A group can have hits that the primary decides, and hits of a shard that has failed.
func TestGroupOverBothPartsIsChargedOrNot(t *testing.T) {
	for name, c := range map[string]struct {
		up, down int64    // hits on a limit of 10, of which the secondary grants 5
		want     [2]int64 // spent in the primary and in the secondary
	}{
		"both admit":       {2, 2, [2]int64{2, 2}},
		"primary denies":   {11, 2, [2]int64{0, 0}},
		"secondary denies": {2, 6, [2]int64{0, 0}},
		"both deny":        {11, 6, [2]int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isDown := func(h *backend.Hit) bool { return string(h.Key) == "down" }
				r := newFixture(t, func(o *Options) {
					next := o.Primary
					o.Primary = backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
						backend.TakePart(ctx, now, next, hits, results, func(i int) bool { return !isDown(&hits[i]) })
						for i := range hits {
							if isDown(&hits[i]) {
								results[i] = backend.Result{Err: errDown}
							}
						}
					})
				})
				lim := newLimit(t, 10, limit.Year)
				results := make([]backend.Result, 2)
				r.Take(t.Context(), time.Now(), []backend.Hit{
					{Key: []byte("up"), Limit: lim, N: c.up, AllOrNone: true}, {Key: []byte("down"), Limit: lim, N: c.down, AllOrNone: true},
				}, results)
				assert.Equal(t, []bool{c.up <= 10, c.down <= 5}, []bool{results[0].Allowed, results[1].Allowed})
				assert.Equal(t, c.want, [2]int64{spent(r.shared, "up", lim), spent(r.secondary, Namespace+"down", r.share(lim))})
			})
		})
	}
}

// A limit with on_backend_failure: deny has no counter in this process.
func TestGroupWithAFixedDenialChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, nil)
		r.primary.SetError(errDown)
		counted := newLimit(t, 10, limit.Year)
		denying, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Year, OnBackendFailure: limit.FailDeny})
		require.NoError(t, err)
		results := make([]backend.Result, 2)
		r.Take(t.Context(), time.Now(), []backend.Hit{
			{Key: []byte("a"), Limit: counted, N: 2, AllOrNone: true}, {Key: []byte("b"), Limit: denying, N: 1, AllOrNone: true},
		}, results)
		assert.Equal(t, []bool{true, false}, []bool{results[0].Allowed, results[1].Allowed})
		assert.Zero(t, spent(r.secondary, Namespace+"a", r.share(counted)))
	})
}
