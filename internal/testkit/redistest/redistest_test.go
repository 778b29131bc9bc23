package redistest

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpenGivesEachTestItsOwnKeys(t *testing.T) {
	var first DB
	t.Run("writer", func(t *testing.T) {
		first = Open(t)
		require.NoError(t, first.Client(t).Set(t.Context(), first.Prefix+"key", 1, 0).Err())
		assert.Equal(t, []string{first.Prefix + "key"}, first.Keys(t))
	})
	second := Open(t)
	assert.Equal(t, first.Addr, second.Addr)
	assert.NotEqual(t, first.Prefix, second.Prefix)
	assert.Empty(t, first.Keys(t), "deleted with the test")
}

func TestKillPauseAndRestart(t *testing.T) {
	s := Start(t)
	ctx, c := t.Context(), s.Client(t)
	require.NoError(t, c.Set(ctx, "key", 1, 0).Err())

	s.Pause()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := s.command(short, "PING")
	assert.Error(t, err)
	s.Resume()
	assert.NoError(t, c.Ping(ctx).Err())

	s.Kill()
	assert.Zero(t, s.PID())
	_, err = s.command(ctx, "PING")
	assert.Error(t, err)
	s.Kill()

	s.Restart(t)
	assert.Equal(t, int64(0), c.Exists(ctx, "key").Val(), "empty")
}

func TestServerDetectsAnotherServerOnItsPort(t *testing.T) {
	s := Start(t)
	_, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	_, err = run(n, nil)
	require.ErrorContains(t, err, "in use")
	require.NoError(t, s.answers(t.Context(), s.PID()))
	require.ErrorContains(t, s.answers(t.Context(), s.PID()+1), "got another server")

	s.Kill()
	other, err := run(n, nil)
	require.NoError(t, err)
	t.Cleanup(other.Kill)
	time.AfterFunc(300*time.Millisecond, other.Kill)
	s.Restart(t)
	assert.Zero(t, other.PID())
	assert.NoError(t, s.answers(t.Context(), s.PID()))
}

func TestAwaitReplica(t *testing.T) {
	master := Start(t)
	replica := master.StartReplica(t)
	master.AwaitReplica(t)
	for i := range 3 {
		replica.Pause()
		require.NoError(t, master.Client(t).Set(t.Context(), "key", i, 0).Err())
		var resumed atomic.Bool
		time.AfterFunc(100*time.Millisecond, func() {
			resumed.Store(true)
			replica.Resume()
		})
		master.AwaitReplica(t)
		assert.True(t, resumed.Load())
		assert.Equal(t, strconv.Itoa(i), replica.Client(t).Get(t.Context(), "key").Val())
	}
}

func TestStartReportsTheServersOutput(t *testing.T) {
	_, err := startAnywhere("--no-such-setting", "1")
	assert.ErrorContains(t, err, "no-such-setting")
}
