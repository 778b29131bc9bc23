package overrides_test

import (
	"context"
	"errors"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/source/changes"
	"github.com/seed-81f232ab/rls/internal/source/overrides"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// repeatHook sends each command twice, as the client does if the reply to the first is late.
type repeatHook struct{ commandHook }

func (repeatHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if err := next(ctx, cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

// TestChangesInRedisAndMemoryAgree makes random changes in Redis and in memory. The outcomes,
// the values, the versions and the histories must be equal, also if a client repeats its commands.
func TestChangesInRedisAndMemoryAgree(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	repeatingClient := connect(t, redis.Server{URL: db.Addr})
	repeatingClient.AddHook(repeatHook{})
	for prefix, client := range map[string]goredis.UniversalClient{"": connect(t, redis.Server{URL: db.Addr}), "{tag}": connect(t, redis.Server{URL: db.Addr}), "repeats": repeatingClient} {
		replica := startReplica(t, overrides.Options{Client: client, Prefix: db.Prefix + prefix, Resync: noResync})
		var memory changes.Memory
		value := rapid.SampledFrom([]string{"", "1", `{"a": "\u0001\"ä"}`, "2"})
		rapid.Check(t, func(rt *rapid.T) {
			change := changes.Change{Origin: changes.Origin{
				Author: "ä \"b\"", Address: "10.0.0.1:5", Action: rapid.SampledFrom([]changes.Action{changes.Put, changes.Rollback}).Draw(rt, "action"),
				Reason: value.Draw(rt, "reason"), ChangedAt: time.Unix(rapid.Int64Range(0, 1e9).Draw(rt, "at"), 0), RestoredVersion: rapid.Int64Range(0, 2).Draw(rt, "restored"),
			}}
			for _, field := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"shop|a", "|rule|shop|a", "\x00 \n"}), 1, 3, rapid.ID).Draw(rt, "fields") {
				w := changes.Write{Field: field, Condition: changes.Condition{Exists: rapid.Bool().Draw(rt, "exists")}}
				switch rapid.IntRange(0, 3).Draw(rt, "condition") {
				case 0:
					w.Condition.Absent = true
				case 1:
					w.Condition.Tag = changes.Tag(value.Draw(rt, "tag"))
				}
				if rapid.Bool().Draw(rt, "set") {
					text := value.Draw(rt, "value")
					w.Value = &text
				}
				change.Writes = append(change.Writes, w)
			}
			want, wantErr := memory.MakeChange(t.Context(), change)
			got, err := replica.MakeChange(t.Context(), change)
			if wantConflict := (*changes.ConflictError)(nil); errors.As(wantErr, &wantConflict) {
				var conflict *changes.ConflictError
				require.ErrorAs(rt, err, &conflict)
				require.Equal(rt, wantConflict, conflict)
				return
			}
			require.NoError(rt, err)
			require.Equal(rt, want, got)
			require.Equal(rt, memory.Version(), replica.Version())
			require.Equal(rt, memory.Fields(), replica.currentOverrides())
		})
		history, err := replica.History(t.Context())
		require.NoError(t, err)
		want, err := memory.History(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, history)
	}
}

func TestHistoryKeepsTheLastChanges(t *testing.T) {
	t.Parallel()
	db := redistest.Open(t)
	replica := startReplica(t, overrides.Options{Client: connect(t, redis.Server{URL: db.Addr}), Prefix: db.Prefix, Resync: noResync})
	for range changes.MaxHistory + 3 {
		_, _, err := replica.Put(t.Context(), "a", "1")
		require.NoError(t, err)
	}
	history, err := replica.History(t.Context())
	require.NoError(t, err)
	require.Len(t, history, changes.MaxHistory)
	assert.EqualValues(t, changes.MaxHistory+3, history[0].Version)

	t.Run("a lost hash does not restart the versions", func(t *testing.T) {
		require.NoError(t, db.Client(t).Del(t.Context(), db.Prefix+"rls:overrides").Err())
		_, _, err := replica.Put(t.Context(), "a", "2")
		require.NoError(t, err)
		assert.EqualValues(t, changes.MaxHistory+4, replica.Version())
	})
}
