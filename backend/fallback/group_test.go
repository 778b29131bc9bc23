package fallback

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/backendtest"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/limit"
)

// A group can have hits that the primary decides, and hits of a shard that has failed.
func TestGroupOverPrimaryAndSecondaryIsChargedCompletelyOrNotAtAll(t *testing.T) {
	for name, c := range map[string]struct {
		upHits   int64    // the hits on a limit of 10 in a shard that works
		downHits int64    // the hits on a limit of 10 in a shard that has failed; the secondary grants 5
		want     [2]int64 // the spent hits in the primary, and in the secondary
	}{
		"both admit":       {2, 2, [2]int64{2, 2}},
		"primary denies":   {11, 2, [2]int64{0, 0}},
		"secondary denies": {2, 6, [2]int64{0, 0}},
		"both deny":        {11, 6, [2]int64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				isDown := func(h *backend.Hit) bool { return string(h.Key) == "down" }
				l := newFixture(t, func(o *Options) {
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
				l.Take(t.Context(), time.Now(), []backend.Hit{
					{Key: []byte("up"), Limit: lim, N: c.upHits, AllOrNone: true}, {Key: []byte("down"), Limit: lim, N: c.downHits, AllOrNone: true},
				}, results)
				assert.Equal(t, []bool{c.upHits <= 10, c.downHits <= 5}, []bool{results[0].Allowed, results[1].Allowed})
				assert.Equal(t, c.want, [2]int64{spentHits(l.primaryCounters, "up", lim), spentHits(l.secondary, Namespace+"down", l.shareOf(lim))})
			})
		})
	}
}

// A limit with on_backend_failure: deny has no counter in this process.
func TestGroupWithAFixedDenialChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newFixture(t, nil)
		l.primary.SetError(errDown)
		localLimit := newLimit(t, 10, limit.Year)
		denyLimit, err := limit.New(limit.Spec{Requests: 10, Unit: limit.Year, OnBackendFailure: limit.FailDeny})
		require.NoError(t, err)
		results := make([]backend.Result, 2)
		l.Take(t.Context(), time.Now(), []backend.Hit{
			{Key: []byte("a"), Limit: localLimit, N: 2, AllOrNone: true}, {Key: []byte("b"), Limit: denyLimit, N: 1, AllOrNone: true},
		}, results)
		assert.Equal(t, []bool{true, false}, []bool{results[0].Allowed, results[1].Allowed})
		assert.Zero(t, spentHits(l.secondary, Namespace+"a", l.shareOf(localLimit)))
	})
}

// partHit is a hit that the primary or the secondary decides. Each partHit has its own counter.
type partHit struct {
	n, spentHits                       int64 // the hits, and the earlier spent hits, of a limit of 10, of which the secondary grants 5
	isDown, isGroup, isShadow, isFixed bool  // isFixed means that the limit has on_backend_failure: allow
}

// A group changes all of its counters or none, and no other counters, in the primary and in the secondary.
func TestGroupChangesNoCounterIfAnyPartDenies(t *testing.T) {
	localLimit := newLimit(t, 10, limit.Year)
	allowLimit := newLimit(t, 10, limit.Year, func(s *limit.Spec) { s.OnBackendFailure = limit.FailAllow })
	rapid.Check(t, func(t *rapid.T) {
		primary, secondary := local.New(local.Options{}), local.New(local.Options{})
		isDown := func(h *backend.Hit) bool { return h.Key[0] == 'd' }
		l := New(Options{
			Primary: backendtest.Func(func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
				backend.TakePart(ctx, now, primary, hits, results, func(i int) bool { return !isDown(&hits[i]) })
				for i := range hits {
					if isDown(&hits[i]) {
						results[i] = backend.Result{Err: errNotSent}
					}
				}
			}),
			Secondary: secondary, Ratio: 0.5, Observer: new(recorder),
			Shards: 1, ShardOf: func(*backend.Hit) int { return 0 },
			Probe: func(context.Context, int) error { return errDown }, // the probes fail, so there is no replay
		})
		defer l.Close()
		part := rapid.Custom(func(t *rapid.T) partHit {
			return partHit{
				n: rapid.Int64Range(1, 6).Draw(t, "n"), spentHits: rapid.Int64Range(1, 5).Draw(t, "spent"), isDown: rapid.Bool().Draw(t, "down"),
				isGroup: rapid.IntRange(0, 3).Draw(t, "group") > 0, isShadow: rapid.IntRange(0, 3).Draw(t, "shadow") == 0, isFixed: rapid.IntRange(0, 3).Draw(t, "fixed") == 0,
			}
		})
		parts := rapid.SliceOfN(part, 2, 5).Draw(t, "hits")
		counterOf := func(i int) (backend.Limiter, string, *limit.Limit) {
			if parts[i].isDown {
				return secondary, fmt.Sprint(Namespace, "d", i), l.shareOf(localLimit)
			}
			return primary, fmt.Sprint("u", i), localLimit
		}
		var hits []backend.Hit
		isDenied := false
		isAllowed := make([]bool, len(parts))
		for i, p := range parts {
			counterLimiter, key, grantedLimit := counterOf(i)
			if !p.isDown {
				parts[i].spentHits *= 2
			}
			takeOne(counterLimiter, key, grantedLimit, parts[i].spentHits)
			lim := localLimit
			if p.isFixed {
				lim = allowLimit
			}
			isAllowed[i] = parts[i].spentHits+p.n <= grantedLimit.Capacity() || p.isDown && p.isFixed
			isDenied = isDenied || p.isGroup && !p.isShadow && !isAllowed[i]
			hits = append(hits, backend.Hit{Key: []byte(strings.TrimPrefix(key, Namespace)), Limit: lim, N: p.n, AllOrNone: p.isGroup, Shadow: p.isShadow})
		}
		l.Take(context.Background(), time.Now(), hits, make([]backend.Result, len(hits)))
		for i, p := range parts {
			want := p.spentHits
			if isAllowed[i] && (!isDenied || !p.isGroup) && (!p.isDown || !p.isFixed) {
				want += p.n
			}
			counterLimiter, key, grantedLimit := counterOf(i)
			assert.Equal(t, want, spentHits(counterLimiter, key, grantedLimit), "hit %d of %+v", i, parts)
		}
	})
}
