package redis_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// kindRecorder is an Observer that remembers the kinds of errors.
type kindRecorder struct {
	mu    sync.Mutex
	kinds map[redis.ErrorKind]int
}

func (*kindRecorder) BatchDone(redis.Batch) {}

func (*kindRecorder) CountersLost(redis.Role, bool) {}

func (r *kindRecorder) ErrorOccurred(_ redis.Role, kind redis.ErrorKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = map[redis.ErrorKind]int{}
	}
	r.kinds[kind]++
}

func (r *kindRecorder) count(kind redis.ErrorKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kinds[kind]
}

func TestErrorsOfRealRedisHaveTheirKind(t *testing.T) {
	for _, c := range []struct {
		kind       redis.ErrorKind
		breakRedis func(t *testing.T, s *redistest.Server)
	}{
		{redis.KindRefused, func(_ *testing.T, s *redistest.Server) { s.Kill() }},
		{redis.KindTimeout, func(t *testing.T, s *redistest.Server) {
			s.Pause()
			t.Cleanup(s.Resume)
		}},
		{redis.KindNoScript, func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).ScriptFlush(t.Context()).Err())
		}},
		{redis.KindOOM, func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
		}},
		{redis.KindNoReplicas, func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
		}},
		{redis.KindMisconf, func(t *testing.T, s *redistest.Server) { failSave(t, s) }},
		{redis.KindMaxClients, func(t *testing.T, s *redistest.Server) {
			client := s.Client(t)
			require.NoError(t, client.ConfigSet(t.Context(), "maxclients", "1").Err())
			require.NoError(t, client.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
		}},
		{redis.KindNoPerm, func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-evalsha", "-eval").Err())
		}},
		{redis.KindReadOnly, func(t *testing.T, s *redistest.Server) {
			require.NoError(t, s.Client(t).Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
		}},
		{redis.KindWrongType, func(t *testing.T, s *redistest.Server) {
			client := s.Client(t)
			keys, err := client.Keys(t.Context(), "*").Result()
			require.NoError(t, err)
			for _, key := range keys {
				require.NoError(t, client.Del(t.Context(), key).Err())
				require.NoError(t, client.LPush(t.Context(), key, "x").Err())
				require.NoError(t, client.Expire(t.Context(), key, time.Hour).Err())
			}
		}},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, "--dir", t.TempDir())
			observer := new(kindRecorder)
			l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Observer: observer}), perDay(t, 100)
			awaitRecovery(t, l, lim)
			countBefore := observer.count(c.kind)
			c.breakRedis(t, s)
			polltest.Until(t, testTimeout, func() bool {
				take(l, hit("key", lim, 1))
				return observer.count(c.kind) > countBefore
			})
			assert.Zero(t, observer.count(redis.KindOther))
		})
	}
}

// failSave makes the save of a Redis with a directory of its own fail, so that Redis rejects writes.
func failSave(t *testing.T, s *redistest.Server) {
	t.Helper()
	client := s.Client(t)
	require.NoError(t, client.ConfigSet(t.Context(), "save", "3600 1").Err()) // without save, Redis accepts writes
	require.NoError(t, os.Mkdir(client.ConfigGet(t.Context(), "dir").Val()["dir"]+"/rls-test.rdb", 0o700))
	require.NoError(t, client.BgSave(t.Context()).Err())
	polltest.Until(t, testTimeout, func() bool {
		return strings.Contains(client.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
	})
}

func TestAdviceFitsAnErrorThatRedisAnswered(t *testing.T) {
	for text, want := range map[string]string{
		"MISCONF Errors writing to the AOF file": "free the disk of Redis",
		"NOREPLICAS Not enough good replicas":    "start Redis replicas",
		"ERR unknown":                            "Redis runs, but refuses a command",

		"ERR This instance has cluster support disabled": "set REDIS_TYPE=single",
	} {
		assert.Contains(t, redis.AdviceFor(replyError(text)), want)
	}
	assert.Contains(t, redis.AdviceFor(errors.New("new")), "check that Redis runs")
}

func TestErrorsHaveTheirKind(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind redis.ErrorKind
	}{
		{fmt.Errorf("dial: %w", &net.DNSError{Err: "no such host", Name: "redis"}), redis.KindUnreachable},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, redis.KindUnreachable},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, redis.KindReset},
		{io.EOF, redis.KindReset},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, redis.KindTimeout},
		{&backend.Error{Reason: backend.ReasonLate}, redis.KindTimeout},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, redis.KindTLS},
		{tls.RecordHeaderError{Msg: "not TLS"}, redis.KindTLS},
		{replyError("WRONGPASS invalid username-password pair"), redis.KindAuth},
		{fmt.Errorf("redis: %w", replyError("MOVED 1 127.0.0.1:1")), redis.KindCluster},
		{replyError("CLUSTERDOWN Hash slot not served"), redis.KindCluster},
		{replyError("LOADING Redis is loading"), redis.KindLoading},
		{replyError("ERR unknown"), redis.KindOther},
		{errors.New("new"), redis.KindOther},
		{nil, redis.KindOther},
	} {
		assert.Equal(t, c.kind.String(), redis.KindOf(c.err).String(), c.err)
	}
}

// replyError is an error with which Redis answers.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestPoolStatsCountConnections(t *testing.T) {
	s := redistest.Start(t)
	l, lim := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}), perDay(t, 100)
	assert.Equal(t, []redis.PoolStats{{Budget: testTimeout}}, l.PoolStats())
	awaitRecovery(t, l, lim)
	stats := l.PoolStats()[0]
	assert.Positive(t, stats.RoundTrip)
	stats.RoundTrip = 0
	assert.Equal(t, redis.PoolStats{Connections: 1, IdleConnections: 1, OpenedConnections: 1, Budget: testTimeout}, stats)
	require.NoError(t, s.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	awaitRecovery(t, l, lim)
	stats = l.PoolStats()[0]
	assert.Equal(t, int64(2), stats.OpenedConnections)
	assert.Equal(t, 1, stats.Connections)
}

func TestShardsAreNamedByRedisAndPartition(t *testing.T) {
	l := open(t, redis.Options{
		Main: redis.Server{Kind: redis.Cluster, URL: "127.0.0.1:1,127.0.0.1:2"}, Partitions: 3, PerSecond: &redis.Server{URL: "127.0.0.1:3"},
	})
	var names []string
	for shard := range l.Shards() {
		role, partition := l.RoleAndPartition(shard)
		names = append(names, role.String()+string(rune('0'+partition)))
		assert.Zero(t, l.QueuedHits(shard))
	}
	assert.Equal(t, []string{"main0", "main1", "main2", "per_second0"}, names)
}

// lossRecorder remembers for each loss whether all counters were lost.
type lossRecorder struct {
	kindRecorder
	allLost []bool
}

func (r *lossRecorder) CountersLost(_ redis.Role, all bool) { r.allLost = append(r.allLost, all) }

func TestProbesNoticeLostCounters(t *testing.T) {
	s := redistest.Start(t)
	losses := &lossRecorder{}
	l := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout, Observer: losses})
	probe := func() bool {
		require.NoError(t, l.Probe(t.Context(), 0))
		return l.HasKeptCounters(0)
	}
	assert.False(t, probe(), "nobody knows after the first probe")
	assert.True(t, probe())
	assert.True(t, probe())
	assert.Empty(t, losses.allLost)
	require.NoError(t, s.Client(t).FlushAll(t.Context()).Err())
	assert.False(t, probe())
	assert.True(t, probe())
	assert.Equal(t, []bool{true}, losses.allLost, "each loss is reported once")

	assert.True(t, probe())
	key := s.Client(t).Keys(t.Context(), "*rls:probe*").Val()[0]
	require.NoError(t, s.Client(t).Decr(t.Context(), key).Err())
	assert.False(t, probe(), "the last charge is lost")
	assert.Equal(t, []bool{true, false}, losses.allLost)

	otherLimiter := open(t, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout})
	require.NoError(t, otherLimiter.Probe(t.Context(), 0))
	assert.False(t, otherLimiter.HasKeptCounters(0), "each process has its own counter")
}
