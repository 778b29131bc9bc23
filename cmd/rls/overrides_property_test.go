package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/local"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/internal/metrics"
	"github.com/seed-81f232ab/rls/server"
)

// TestOverridesNeverAdmitMoreThanTheLargestLimit overrides, reloads and removes in any
// order while hits of a few values come, all within a moment: what is admitted of each
// never exceeds the largest limit that it was held to. (But for a burst of its own that
// is lowered and raised: docs/limits.md.)
func TestOverridesNeverAdmitMoreThanTheLargestLimit(t *testing.T) {
	values := []string{"acme", "big", "x", "acme /a", "big /a", "acme /b"}
	algorithm := rapid.SampledFrom([]string{"fixed_window", "sliding_window", "sliding_log", "token_bucket"})
	unit := rapid.SampledFrom([]string{"hour", "day"})
	requests := rapid.IntRange(0, 20)
	rapid.Check(t, func(t *rapid.T) {
		l := newLimits(&settings{}, server.NewHealth(), metrics.New(), slog.New(slog.DiscardHandler))
		l.overrides = &overriding{}
		counters := local.New(local.Options{MaxKeys: 1000})
		overrides := map[string]string{}
		most, admitted := map[string]int64{}, map[string]int64{}
		now := time.Now()
		rule := func(t *rapid.T) string {
			return fmt.Sprintf("rate_limit: {unit: %s, requests_per_unit: %d, algorithm: %s}",
				unit.Draw(t, "unit"), requests.Draw(t, "requests"), algorithm.Draw(t, "algorithm"))
		}
		reload := func(t *rapid.T) {
			text := "domain: shop\ndescriptors:\n  - {key: tenant, " + rule(t) + ", descriptors: [{key: path, " + rule(t) + "}]}\n"
			if rapid.Bool().Draw(t, "a rule for big") {
				text += "  - {key: tenant, value: big, " + rule(t) + ", descriptors: [{key: path, " + rule(t) + "}]}\n"
			}
			cfg, err := descriptors.Compile([]descriptors.File{{Name: "f", Data: []byte(text)}}, descriptors.Options{})
			require.NoError(t, err)
			l.install(cfg)
		}
		reload(t)
		target := rapid.SampledFrom([]string{"shop|tenant", "shop|tenant=acme", "shop|tenant=big", "shop|tenant=gone", "shop|tenant|path", "shop|tenant=acme|path", "shop|tenant|path=/a", "shop|tenant=acme|path=/a"})
		t.Repeat(map[string]func(*rapid.T){
			"reload": reload,
			"override": func(t *rapid.T) {
				overrides[target.Draw(t, "target")] = rapid.SampledFrom([]string{
					fmt.Sprintf(`{"requests_per_unit": %d}`, requests.Draw(t, "requests")),
					fmt.Sprintf(`{"algorithm": %q}`, algorithm.Draw(t, "algorithm")),
					fmt.Sprintf(`{"algorithm": %q, "unit": %q, "factor": 1.5}`, algorithm.Draw(t, "algorithm"), unit.Draw(t, "unit")),
					`{"charge_denied": true}`, `nonsense`,
				}).Draw(t, "override")
				l.override(overrides)
			},
			"remove": func(t *rapid.T) {
				delete(overrides, target.Draw(t, "target"))
				l.override(overrides)
			},
			"hit": func(t *rapid.T) {
				value := rapid.SampledFrom(values).Draw(t, "value")
				tenant, path, below := strings.Cut(value, " ")
				entries := []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: tenant}}
				if below {
					entries = append(entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: "path", Value: path})
				}
				rule := l.store.Load().Domain("shop").Match(entries)
				lim := rule.Limits[0].Limit
				most[value] = max(most[value], lim.Capacity())
				n := rapid.Int64Range(1, 8).Draw(t, "hits")
				results := make([]backend.Result, 1)
				counters.Take(context.Background(), now, []backend.Hit{{Key: rule.AppendKey(nil, "shop", entries), Limit: lim, N: n}}, results)
				require.NoError(t, results[0].Err)
				if results[0].Allowed {
					admitted[value] += n
				}
			},
			"": func(t *rapid.T) {
				for _, value := range values {
					if admitted[value] > most[value] {
						t.Fatalf("%s: %d admitted, %d were the most", value, admitted[value], most[value])
					}
				}
			},
		})
	})
}
