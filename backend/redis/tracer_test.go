package redis_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

type callNameKey struct{}

// contextRecorder is a Tracer that keeps the names of the Takes of each batch.
type contextRecorder struct {
	mu    sync.Mutex
	hits  int
	names [][]string
}

func (r *contextRecorder) BatchAnswered(b redis.Batch, _ time.Time, takeContexts []context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits += b.Hits
	var names []string
	for _, ctx := range takeContexts {
		names = append(names, ctx.Value(callNameKey{}).(string))
	}
	r.names = append(r.names, names)
}

func TestTracerReceivesTheCallsOfEachBatch(t *testing.T) {
	tracer := &contextRecorder{}
	db := redistest.Open(t)
	l, err := redis.New(redis.Options{Main: redis.Server{URL: db.Addr}, KeyPrefix: db.Prefix, Timeout: testTimeout, Tracer: tracer})
	require.NoError(t, err)
	lim := perDay(t, 100)
	for _, name := range []string{"first", "second"} {
		ctx := context.WithValue(t.Context(), callNameKey{}, name)
		hits := []backend.Hit{hit("a", lim, 1), hit("b", lim, 1)}
		l.Take(ctx, time.Now(), hits, make([]backend.Result, len(hits)))
	}
	assert.NoError(t, l.Probe(t.Context(), 0))
	assert.NoError(t, l.Close())
	assert.Equal(t, [][]string{{"first"}, {"second"}, nil}, tracer.names, "a probe has no context of a Take")
	assert.Equal(t, 5, tracer.hits)
}
