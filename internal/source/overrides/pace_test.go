package overrides_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// TestReadsAfterMessagesHavePauses applies each update in 100 ms. Between two reads, the store pauses for up to 300 ms.
// After a time without messages, the store reads without a pause.
func TestReadsAfterMessagesHavePauses(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	var appliedUpdates atomic.Int64
	applyStarted := make(chan struct{}, 1000)
	store := overrides.New(overrides.Options{
		Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: time.Hour,
		IsExpired: neverExpired, OnReset: func(string) {}, OnMissedResets: func() {}, Log: slog.New(slog.DiscardHandler),
	})
	apply := func(source.Update) error {
		appliedUpdates.Add(1)
		applyStarted <- struct{}{}
		time.Sleep(100 * time.Millisecond)
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = store.Run(ctx, apply)
	}()
	defer func() {
		cancel()
		<-done
	}()
	<-applyStarted
	client := db.Client(t)
	awaitSubscriptions(t, db.Prefix+"rls:overrides", 1, client)
	change := func(i int) {
		require.NoError(t, client.HSet(t.Context(), db.Prefix+"rls:overrides", "a", strconv.Itoa(i)).Err())
		require.NoError(t, client.Publish(t.Context(), db.Prefix+"rls:overrides", "a").Err())
	}

	// A busy machine makes some changes slow, but not all.
	i := 0
	polltest.Until(t, timeout, func() bool {
		time.Sleep(600 * time.Millisecond) // longer than the pause
		start := time.Now()
		i++
		change(i)
		<-applyStarted
		return time.Since(start) < 250*time.Millisecond
	}, "a read after a time without messages has no pause")

	firstCount, start := appliedUpdates.Load(), time.Now()
	for time.Since(start) < 2*time.Second {
		i++
		change(i)
	}
	updates, maxUpdates := appliedUpdates.Load()-firstCount, 2+time.Since(start)/(400*time.Millisecond)
	assert.LessOrEqual(t, updates, int64(maxUpdates), "many messages cause few reads")
}
