package reload_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/reload"
	"github.com/seed-81f232ab/rls/limit"
)

// TestEachCounterAdmitsAtMostItsLargestLimit reloads limits, sets and deletes overrides, and charges hits in any order,
// but the clock stands still. Limits with the same algorithm, window and scope share a counter, and the counter admits
// at most the largest of these limits. So an old and a new limit with two counters admit at most their sum.
// docs/limits.md lists two exceptions. The test does not draw the first exception, a lowered and raised burst. It
// ignores the second exception, a sliding_log with charge_denied.
func TestEachCounterAdmitsAtMostItsLargestLimit(t *testing.T) {
	t.Parallel()
	requests := rapid.IntRange(0, 20)
	drawLimit := func(t *rapid.T, unit string) string {
		return fmt.Sprintf("{unit: %s, requests_per_unit: %d, algorithm: %s}", unit, requests.Draw(t, "requests"), algorithm.Draw(t, "algorithm"))
	}
	t.Run("rules of one limit", func(t *testing.T) {
		unit := rapid.SampledFrom([]string{"hour", "day"})
		changeGenerator{
			rule: func(t *rapid.T) string { return "rate_limit: " + drawLimit(t, unit.Draw(t, "unit")) },
			override: func(t *rapid.T) string {
				return rapid.SampledFrom([]string{
					fmt.Sprintf(`{"requests_per_unit": %d}`, requests.Draw(t, "requests")),
					fmt.Sprintf(`{"algorithm": %q}`, algorithm.Draw(t, "algorithm")),
					fmt.Sprintf(`{"algorithm": %q, "unit": %q, "factor": 1.5}`, algorithm.Draw(t, "algorithm"), unit.Draw(t, "unit")),
					`{"charge_denied": true}`, `nonsense`,
				}).Draw(t, "override")
			},
		}.check(t)
	})
	t.Run("rules of two limits, in any order", func(t *testing.T) {
		changeGenerator{
			rule: func(t *rapid.T) string {
				return "rate_limits: [" + strings.Join(rapid.Permutation([]string{drawLimit(t, "hour"), drawLimit(t, "day")}).Draw(t, "order"), ", ") + "]"
			},
			override: func(t *rapid.T) string {
				return rapid.SampledFrom([]string{
					fmt.Sprintf(`{"rate_limits": [{"algorithm": %q}, {}]}`, algorithm.Draw(t, "algorithm")),
					fmt.Sprintf(`{"rate_limits": [{"algorithm": %q}, {"algorithm": %q, "factor": 2}]}`, algorithm.Draw(t, "algorithm"), algorithm.Draw(t, "second algorithm")),
					`{"factor": 1.5}`, `{"charge_denied": true}`, `nonsense`,
				}).Draw(t, "override")
			},
		}.check(t)
	})
}

// algorithm draws an algorithm without holds. A limit with holds admits more hits after each release.
var algorithm = rapid.Map(rapid.SampledFrom(slices.DeleteFunc(limit.Algorithms(), limit.Algorithm.HasHolds)), limit.Algorithm.String)

// changeGenerator draws the fields of a rule, and overrides.
type changeGenerator struct{ rule, override func(*rapid.T) string }

func (g changeGenerator) check(t *testing.T) {
	values := []string{"acme", "big", "x", "bob", "acme /a", "big /a", "bob /a", "acme /b"}
	target := rapid.SampledFrom([]string{
		"shop|tenant", "shop|tenant=acme", "shop|tenant=big", "shop|tenant=gone", "shop|tenant|path",
		"shop|tenant=acme|path", "shop|tenant|path=/a", "shop|tenant=acme|path=/a",
	})
	rapid.Check(t, func(t *rapid.T) {
		var store descriptors.Store
		reloader := reload.New(reload.Options{Store: &store, Observer: &fixture{}})
		counters := local.New(local.Options{MaxKeys: 1000})
		overrides := map[string]string{}
		applyOverrides := func(t *rapid.T) {
			require.NoError(t, reloader.Apply("overrides", source.Update{Overrides: maps.Clone(overrides)}))
		}
		// The key of these maps is a counter: a value and a Tag.
		largestLimit, admittedHits := map[string]int64{}, map[string]int64{}
		isIgnored := map[string]bool{} // a sliding_log with charge_denied is ignored
		now := time.Now()
		load := func(t *rapid.T) {
			text := "domain: shop\ndescriptors:\n"
			add := func(tenant, path string) {
				text += "  - {key: tenant" + tenant + ", " + g.rule(t) + ", descriptors: [{key: path, " + g.rule(t) + "}"
				if rapid.Bool().Draw(t, "a rule for some paths") {
					text += ", {key: path, value: '" + path + "', " + g.rule(t) + "}"
				}
				text += "]}\n"
			}
			add("", "/a")
			if rapid.Bool().Draw(t, "a rule for big") {
				add(", value: big", "/a")
			}
			if rapid.Bool().Draw(t, "a rule for a pattern") {
				add(", value: 'b*'", "/*")
			}
			set, err := limitsfile.Parse([]limitsfile.File{{Name: "f", Data: []byte(text)}}, limitsfile.Options{})
			require.NoError(t, err)
			require.NoError(t, reloader.Apply("file", source.Update{Limits: set}))
		}
		load(t)
		t.Repeat(map[string]func(*rapid.T){
			"reload": load,
			"override": func(t *rapid.T) {
				overrides[target.Draw(t, "target")] = g.override(t)
				applyOverrides(t)
			},
			"remove": func(t *rapid.T) {
				delete(overrides, target.Draw(t, "target"))
				applyOverrides(t)
			},
			"hit": func(t *rapid.T) {
				value := rapid.SampledFrom(values).Draw(t, "value")
				tenant, path, hasPath := strings.Cut(value, " ")
				entries := []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: tenant}}
				if hasPath {
					entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "path", Value: path})
				}
				rule := store.Load().Domain("shop").Match(entries)
				n := rapid.Int64Range(1, 8).Draw(t, "hits")
				var hits []backend.Hit
				for _, lim := range rule.Limits {
					counter := value + " " + lim.Tag()
					largestLimit[counter] = max(largestLimit[counter], lim.Capacity())
					isIgnored[counter] = isIgnored[counter] || lim.Algorithm == limit.SlidingLog && lim.ChargeDenied
					hits = append(hits, backend.Hit{Key: rule.AppendKey(nil, "shop", entries), Limit: lim.Limit, N: n})
				}
				results := make([]backend.Result, len(hits))
				counters.Take(context.Background(), now, hits, results)
				for _, r := range results {
					require.NoError(t, r.Err)
					if !r.Allowed {
						return
					}
				}
				for _, lim := range rule.Limits {
					admittedHits[value+" "+lim.Tag()] += n
				}
			},
			"": func(t *rapid.T) {
				for counter, n := range admittedHits {
					if n > largestLimit[counter] && !isIgnored[counter] {
						t.Fatalf("%s: got %d hits admitted, want at most %d", counter, n, largestLimit[counter])
					}
				}
			},
		})
	})
}
