package events

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
)

func TestBreakerOfEachShardIsLogged(t *testing.T) {
	for _, c := range []struct {
		name   string
		shards []metrics.Shard
		want   []string
	}{
		{"several shards", []metrics.Shard{{Server: "main", Name: "0"}, {Server: "main", Name: "1"}}, []string{
			`level=WARN msg="Redis breaker opened" server=main shard=1 kind=other error=broken`,
			`level=INFO msg="Redis breaker closed" server=main shard=1 open_for=1.5s`,
			`level=WARN msg="Redis breaker opened" server=main shard=1 kind=other error=broken`,
		}},
		{"one shard: the outage has its own lines", []metrics.Shard{{}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				o := newEvents(&log).NewStore(StoreOptions{Name: "Redis", Shards: c.shards})
				shard := len(c.shards) - 1
				open := fallback.BreakerChange{Shard: shard, Open: true, Err: errors.New("broken")}
				closed := fallback.BreakerChange{Shard: shard, OpenFor: 1500 * time.Millisecond}
				for _, change := range []fallback.BreakerChange{open, closed, open, closed} { // the second opening comes too soon for a line
					o.BreakerChanged(change)
				}
				time.Sleep(breakerLogPause)
				o.BreakerChanged(open)
				var got []string
				for line := range strings.Lines(log.String()) {
					_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
					got = append(got, text)
				}
				assert.Equal(t, c.want, got)
			})
		})
	}
}

func TestPriceInTheLogNamesTheDearestLimits(t *testing.T) {
	var log bytes.Buffer
	outage := &fallback.Outage{Start: time.Unix(1, 0), End: time.Unix(3, 0), Calls: 9, AdmittedCalls: 8, AdmittedHits: 7, MaxExcessHits: 6, Limits: []fallback.LimitPrice{
		{Rule: "shop > a", Limit: "5 per day", MaxExcessHits: 3},
		{Rule: fallback.OtherRules, MaxExcessHits: 2},
		{Rule: "shop > b", Limit: "5 per day", MaxExcessHits: 1},
		{Rule: "shop > c", Limit: "5 per day", MaxExcessHits: 1},
	}}
	slog.New(slog.NewTextHandler(&log, nil)).Info("price", priceAttrs(outage)...)
	assert.Contains(t, log.String(), `lasted=2s calls=9 calls_admitted=8 hits_admitted=7 most_beyond_limits=6 `+
		`limits="shop > a (5 per day): 3; other (several): 2; shop > b (5 per day): 1"`)
}
