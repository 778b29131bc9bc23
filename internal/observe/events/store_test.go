package events

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed-81f232ab/rls/backend/fallback"
	"github.com/seed-81f232ab/rls/internal/observe/metrics"
	"github.com/seed-81f232ab/rls/internal/observe/timeline"
)

func TestBreakerOfEachShardIsLogged(t *testing.T) {
	for _, test := range []struct {
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
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				store := newEvents(&log).NewStore(StoreOptions{Name: "Redis", Shards: test.shards})
				shard := len(test.shards) - 1
				openedBreaker := fallback.BreakerChange{Shard: shard, Open: true, Err: errors.New("broken")}
				closedBreaker := fallback.BreakerChange{Shard: shard, OpenTime: 1500 * time.Millisecond}
				for _, change := range []fallback.BreakerChange{openedBreaker, closedBreaker, openedBreaker, closedBreaker} { // the second opening comes too soon for a line
					store.BreakerChanged(change)
				}
				time.Sleep(breakerLogPause)
				store.BreakerChanged(openedBreaker)
				var got []string
				for line := range strings.Lines(log.String()) {
					_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
					got = append(got, text)
				}
				assert.Equal(t, test.want, got)
			})
		})
	}
}

func TestPriceInTheLogNamesTheLimitsWithTheMostExcess(t *testing.T) {
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

func TestOutageInProgressIsLoggedAfterEachOfItsMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newEvents(&log).NewStore(StoreOptions{Name: "Redis", Advice: func(error) string { return "" }})
		outage := fallback.Outage{Start: time.Now().Add(50 * time.Second), Err: errors.New("broken")}
		go store.LogProgress(t.Context(), func() fallback.Status {
			return fallback.Status{Down: time.Now().After(outage.Start), Outage: outage}
		})
		time.Sleep(50*time.Second + 2*progressPause + time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"lasted=1m0s", "lasted=2m0s"}, regexp.MustCompile(`lasted=\w+`).FindAllString(log.String(), -1))
	})
}

func TestRepeatedOutagesFillNeitherLogNorTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		eventLog := newEvents(&log)
		for range 50 {
			eventLog.Add(timeline.Event{Kind: timeline.Reload, Text: "limits in force"})
		}
		store := eventLog.NewStore(StoreOptions{Name: "Redis", Address: "redis:6379", Shards: []metrics.Shard{{}}, Advice: func(error) string { return "the usual" }})
		startOutage := func() {
			store.StateChanged(fallback.StateChange{Down: true, Outage: fallback.Outage{Start: time.Now(), Err: context.DeadlineExceeded}})
		}
		endOutage := func() {
			store.StateChanged(fallback.StateChange{Outage: fallback.Outage{Start: time.Now().Add(-time.Second), End: time.Now(), Err: context.DeadlineExceeded, Calls: 2, MaxExcessHits: 1}})
		}
		for range 200 { // 420 seconds
			startOutage()
			time.Sleep(700 * time.Millisecond)
			endOutage()
			store.BlipEnded(fallback.Outage{Start: time.Now(), Calls: 1})
			time.Sleep(1400 * time.Millisecond)
		}
		time.Sleep(3 * outageLogPause)
		assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 2*42+4, "two lines in ten seconds")
		assert.GreaterOrEqual(t, strings.Count(log.String(), "outage started"), 30)
		assert.Equal(t, strings.Count(log.String(), "outage started"), strings.Count(log.String(), "outage ended"), "the log has the end of each outage whose start it has")

		events := eventLog.Events()
		assert.Len(t, events, 3+50+1)
		assert.Equal(t, []timeline.Attr{{Name: "times", Value: "200"}}, events[0].Attrs[:1])

		for _, step := range []struct {
			change func()
			want   string
		}{{startOutage, "outage started"}, {endOutage, "outage ended"}, {startOutage, ""}, {endOutage, ""}} {
			log.Reset()
			step.change()
			assert.Contains(t, log.String(), step.want)
			assert.Equal(t, step.want != "", log.Len() > 0)
		}
	})
}

func TestBlipDoesNotDelayTheLineAboutAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		store := newEvents(&log).NewStore(StoreOptions{Name: "Redis", Shards: []metrics.Shard{{}}, Advice: func(error) string { return "the usual" }})
		for range 2 { // the second blip has no line
			store.BlipEnded(fallback.Outage{Start: time.Now(), Calls: 1})
			time.Sleep(time.Second)
		}
		store.StateChanged(fallback.StateChange{Down: true, Outage: fallback.Outage{Start: time.Now(), Err: context.DeadlineExceeded}})
		assert.Equal(t, 1, strings.Count(log.String(), "for a short time"))
		assert.Contains(t, log.String(), "Redis outage started")
	})
}
