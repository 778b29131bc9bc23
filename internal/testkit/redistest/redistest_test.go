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
	var firstDB DB
	t.Run("writer", func(t *testing.T) {
		firstDB = Open(t)
		require.NoError(t, firstDB.Client(t).Set(t.Context(), firstDB.Prefix+"key", 1, 0).Err())
		assert.Equal(t, []string{firstDB.Prefix + "key"}, firstDB.Keys(t))
	})
	secondDB := Open(t)
	assert.Equal(t, firstDB.Addr, secondDB.Addr)
	assert.NotEqual(t, firstDB.Prefix, secondDB.Prefix)
	assert.Empty(t, firstDB.Keys(t), "the keys are deleted with the test")
}

func TestServerCanBeKilledPausedAndRestarted(t *testing.T) {
	s := Start(t)
	ctx, c := t.Context(), s.Client(t)
	require.NoError(t, c.Set(ctx, "key", 1, 0).Err())

	s.Pause()
	shortContext, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := s.command(shortContext, "PING")
	assert.Error(t, err)
	s.Resume()
	assert.NoError(t, c.Ping(ctx).Err())

	s.Kill()
	assert.Zero(t, s.PID())
	_, err = s.command(ctx, "PING")
	assert.Error(t, err)
	s.Kill()

	s.Restart(t)
	assert.Equal(t, int64(0), c.Exists(ctx, "key").Val(), "the restarted server is empty")
}

func TestServerDetectsAnotherServerOnItsPort(t *testing.T) {
	s := Start(t)
	_, port, err := net.SplitHostPort(s.Addr)
	require.NoError(t, err)
	portNumber, err := strconv.Atoi(port)
	require.NoError(t, err)
	_, err = run(portNumber, nil)
	require.ErrorContains(t, err, "in use")
	require.NoError(t, s.answers(t.Context(), s.PID()))
	require.ErrorContains(t, s.answers(t.Context(), s.PID()+1), "got another server")

	s.Kill()
	otherServer, err := run(portNumber, nil)
	require.NoError(t, err)
	t.Cleanup(otherServer.Kill)
	time.AfterFunc(300*time.Millisecond, otherServer.Kill)
	s.Restart(t)
	assert.Zero(t, otherServer.PID())
	assert.NoError(t, s.answers(t.Context(), s.PID()))
}

func TestAwaitReplicaWaitsForAllWrites(t *testing.T) {
	master := Start(t)
	replica := master.StartReplica(t)
	master.AwaitReplica(t)
	for i := range 3 {
		replica.Pause()
		require.NoError(t, master.Client(t).Set(t.Context(), "key", i, 0).Err())
		var wasResumed atomic.Bool
		time.AfterFunc(100*time.Millisecond, func() {
			wasResumed.Store(true)
			replica.Resume()
		})
		master.AwaitReplica(t)
		assert.True(t, wasResumed.Load())
		assert.Equal(t, strconv.Itoa(i), replica.Client(t).Get(t.Context(), "key").Val())
	}
}

func TestStartReportsTheServersOutput(t *testing.T) {
	_, err := startAnywhere("--no-such-setting", "1")
	assert.ErrorContains(t, err, "no-such-setting")
}
