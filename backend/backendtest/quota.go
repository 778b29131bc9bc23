package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
)

// RunQuotas checks a QuotaStore. replicas are stores with the same states.
func RunQuotas(t *testing.T, replicas ...backend.QuotaStore) {
	t.Run("EachReplicaSeesTheLastState", func(t *testing.T) {
		value, firstCreated := []byte{}, int64(0)
		for i := range 6 {
			next := append(bytes.Clone(value), 0, 'x', byte(i))
			c := &backend.QuotaChange{Key: []byte("last"), Apply: func(old []byte, created, now int64) ([]byte, time.Duration) {
				assert.Equal(t, string(value), string(old))
				assert.WithinDuration(t, time.Now(), time.UnixMicro(now), 10*time.Second)
				assert.LessOrEqual(t, created, now)
				if firstCreated == 0 {
					firstCreated = created
				}
				assert.Equal(t, firstCreated, created)
				return next, time.Minute
			}}
			replicas[i%len(replicas)].Update(t.Context(), []*backend.QuotaChange{c})
			require.NoError(t, c.Err)
			value = next
		}
	})
	t.Run("ManyKeysChangeInOneUpdate", func(t *testing.T) {
		for _, want := range []string{"", "1"} {
			var changes []*backend.QuotaChange
			for i := range 600 {
				key := fmt.Sprintf("many|%d%s", i, strings.Repeat("x", i))
				changes = append(changes, &backend.QuotaChange{Key: []byte(key), Apply: func(old []byte, _, _ int64) ([]byte, time.Duration) {
					assert.Equal(t, want, string(old), key)
					return []byte(want + "1"), time.Minute
				}})
			}
			replicas[0].Update(t.Context(), changes)
			for _, c := range changes {
				require.NoError(t, c.Err)
			}
		}
	})
	t.Run("NoChangeIsLostAmongReplicas", func(t *testing.T) {
		const workers, turns = 4, 50
		var added atomic.Int64
		add := func(n uint64) func([]byte, int64, int64) ([]byte, time.Duration) {
			return func(old []byte, _, _ int64) ([]byte, time.Duration) {
				if len(old) == 8 {
					n += binary.LittleEndian.Uint64(old)
				}
				return binary.LittleEndian.AppendUint64(nil, n), time.Minute
			}
		}
		var group sync.WaitGroup
		for i := range workers {
			group.Go(func() {
				for range turns {
					c := &backend.QuotaChange{Key: []byte("sum")}
					c.Apply = func(old []byte, created, now int64) ([]byte, time.Duration) { return add(1)(old, created, now) }
					replicas[i%len(replicas)].Update(t.Context(), []*backend.QuotaChange{c})
					if c.Err == nil {
						added.Add(1)
					}
				}
			})
		}
		group.Wait()
		assert.Greater(t, added.Load(), int64(workers*turns/2))
		c := &backend.QuotaChange{Key: []byte("sum"), Apply: func(old []byte, _, _ int64) ([]byte, time.Duration) {
			assert.Equal(t, uint64(added.Load()), binary.LittleEndian.Uint64(old))
			return old, time.Minute
		}}
		replicas[0].Update(t.Context(), []*backend.QuotaChange{c})
		require.NoError(t, c.Err)
	})
	t.Run("StateEndsAfterItsTimeToLive", func(t *testing.T) {
		isEmpty := false
		c := &backend.QuotaChange{Key: []byte("short"), Apply: func(old []byte, _, _ int64) ([]byte, time.Duration) {
			isEmpty = len(old) == 0
			return []byte("x"), 20 * time.Millisecond
		}}
		replicas[0].Update(t.Context(), []*backend.QuotaChange{c})
		require.NoError(t, c.Err)
		require.Eventually(t, func() bool {
			time.Sleep(30 * time.Millisecond) // each Update renews the state
			replicas[0].Update(t.Context(), []*backend.QuotaChange{c})
			return c.Err == nil && isEmpty
		}, 10*time.Second, time.Millisecond)
	})
}
