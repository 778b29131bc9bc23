package overrides_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
	"github.com/seed-81f232ab/rls/source/overrides"
)

// Who takes 100 ms to apply rests for as long as 300 ms, but only after it has applied.
func TestMessagesArePaced(t *testing.T) {
	db := redistest.Open(t)
	var applied atomic.Int64
	told := make(chan struct{}, 1000)
	s := overrides.New(overrides.Options{
		Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: time.Hour,
		Apply: func(map[string]string) {
			applied.Add(1)
			told <- struct{}{}
			time.Sleep(100 * time.Millisecond)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	<-told
	c := db.Client(t)
	subscribed(t, db.Prefix+"rls:overrides", 1, c)
	change := func(i int) {
		require.NoError(t, c.HSet(t.Context(), db.Prefix+"rls:overrides", "a", strconv.Itoa(i)).Err())
		require.NoError(t, c.Publish(t.Context(), db.Prefix+"rls:overrides", "a").Err())
	}

	// Had it not rested while nothing happened, none would be so quick. A busy machine
	// makes some slow, but not all.
	i := 0
	polltest.Until(t, ample, func() bool {
		time.Sleep(600 * time.Millisecond) // longer than any rest
		began := time.Now()
		i++
		change(i)
		<-told
		return time.Since(began) < 250*time.Millisecond
	}, "it has rested")

	before, began := applied.Load(), time.Now()
	for time.Since(began) < 2*time.Second {
		i++
		change(i)
	}
	times, most := applied.Load()-before, 2+time.Since(began)/(400*time.Millisecond)
	assert.LessOrEqual(t, times, int64(most), "a storm is applied a few times")
}
