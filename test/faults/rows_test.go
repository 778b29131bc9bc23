package faults

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/polltest"
	"github.com/seed-81f232ab/rls/internal/redistest"
)

// rows is the matrix. short marks those that make test runs.
var rows = []struct {
	name  string
	short bool
	start func(t *testing.T) subject
}{
	{"killed, restarted empty", true, func(t *testing.T) subject { return killed(t, true) }},
	{"killed, restarted with its data", false, func(t *testing.T) subject {
		return killed(t, false, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	}},
	{"frozen (SIGSTOP, SIGCONT)", true, func(t *testing.T) subject {
		s := redistest.Start(t)
		return subject{redis: single(s.Addr), fault: s.Pause, lasts: atFullLength(5 * time.Second), heal: s.Resume}
	}},
	{"refused from the start", true, func(t *testing.T) subject {
		s := redistest.Start(t)
		return subject{redis: single(s.Addr), fault: s.Kill, lasts: atFullLength(3 * time.Second), heal: func() { s.Restart(t) }, fromStart: true}
	}},
	{"answers come 500 ms late", false, toxic("latency", `"latency": 250`)},
	{"30% of connections reset, every 100 ms", true, resets},
	{"1 KB/s", false, toxic("bandwidth", `"rate": 1`)},
	{"half-open: packets vanish", true, toxic("timeout", `"timeout": 0`)},
	{"SCRIPT FLUSH, every 5 ms", true, flushed},
	{"out of memory (maxmemory)", true, configured([]any{"maxmemory", "1"}, []any{"maxmemory", "0"})},
	{"password changed, and restored", false, password},
	{"name moves to another server", false, moved},
	{"Sentinel promotes the replica", false, promoted},
	{"cluster: a master dies, its replica takes over", false, failover},
	{"cluster: a shard is lost for good", false, lostShard},
	{"cluster: slots move to another master", false, migration},
	{"frozen, with 10,000 clients (5,000 calls a second)", false, crowd},
}

func single(addr string) redis.Server { return redis.Server{URL: addr} }

// atFullLength is how long a fault lasts; a second in the short version.
func atFullLength(d time.Duration) time.Duration {
	if !*full {
		return time.Second
	}
	return d
}

func killed(t *testing.T, loses bool, settings ...string) subject {
	s := redistest.Start(t, settings...)
	return subject{redis: single(s.Addr), fault: s.Kill, lasts: atFullLength(3 * time.Second), heal: func() { s.Restart(t) }, loses: loses}
}

func toxic(kind, attributes string) func(*testing.T) subject {
	return func(t *testing.T) subject {
		s := redistest.Start(t)
		p := startProxy(t, "127.0.0.1:0", s.Addr)
		return subject{
			redis: single(p.Listen), lasts: atFullLength(3 * time.Second), heal: p.mend,
			fault: func() { p.worsen(kind, 1, attributes) },
		}
	}
}

// resets draws anew every 100 ms who is reset, as connections live on.
func resets(t *testing.T) subject {
	s := redistest.Start(t)
	p := startProxy(t, "127.0.0.1:0", s.Addr)
	again := func() {
		p.mend()
		p.worsen("reset_peer", 0.3, `"timeout": 0`)
	}
	begin, end := every(100*time.Millisecond, again)
	return subject{redis: single(p.Listen), fault: begin, lasts: atFullLength(3 * time.Second), heal: func() { end(); p.mend() }}
}

func flushed(t *testing.T) subject {
	s := redistest.Start(t)
	c := s.Client(t)
	begin, end := every(5*time.Millisecond, func() { c.ScriptFlush(context.Background()) })
	return subject{redis: single(s.Addr), fault: begin, lasts: atFullLength(3 * time.Second), heal: end}
}

// every returns what starts doing f again and again, and what ends that.
func every(pause time.Duration, f func()) (begin, end func()) {
	stop := make(chan struct{})
	var running sync.WaitGroup
	begin = func() {
		running.Go(func() {
			for {
				f()
				select {
				case <-stop:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	return begin, func() { close(stop); running.Wait() }
}

func configured(fault, healing []any) func(*testing.T) subject {
	return func(t *testing.T) subject {
		s := redistest.Start(t)
		c := s.Client(t)
		set := func(to []any) func() {
			return func() { command(t, c, append([]any{"CONFIG", "SET"}, to...)...) }
		}
		return subject{redis: single(s.Addr), fault: set(fault), lasts: atFullLength(3 * time.Second), heal: set(healing)}
	}
}

func password(t *testing.T) subject {
	s := redistest.Start(t)
	c := goredis.NewClient(&goredis.Options{Addr: s.Addr, PoolSize: 1, Protocol: 2})
	t.Cleanup(func() { c.Close() })
	return subject{
		redis: single(s.Addr), lasts: atFullLength(3 * time.Second),
		fault: func() {
			command(t, c, "CONFIG", "SET", "requirepass", "other")
			command(t, c, "AUTH", "other")
			command(t, c, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		heal: func() { command(t, c, "CONFIG", "SET", "requirepass", "") },
	}
}

// moved: two servers behind one name, at two addresses of the loopback.
func moved(t *testing.T) subject {
	old, next := redistest.Start(t), redistest.Start(t)
	from := startProxy(t, "127.0.0.1:0", old.Addr)
	_, port, err := net.SplitHostPort(from.Listen)
	require.NoError(t, err)
	startProxy(t, "127.0.0.2:"+port, next.Addr)
	names := startNames(t, "127.0.0.1")
	return subject{
		redis: single("redis.faults.test:" + port), fault: from.Stop, lasts: time.Second,
		heal: func() { names.move("127.0.0.2") }, loses: true,
	}
}

func promoted(t *testing.T) subject {
	s := redistest.StartSentinels(t)
	replica := s.Replica.Client(t)
	return subject{
		redis: redis.Server{Kind: redis.Sentinel, URL: s.URL()}, fault: s.Master.Kill, loses: true,
		heal: func() { await(t, "a new master", func() bool { return isMaster(replica) }) },
	}
}

func failover(t *testing.T) subject {
	c := redistest.StartCluster(t, 3, true)
	replica, other := c.Replicas[0].Client(t), c.Masters[1].Client(t)
	return subject{
		redis: redis.Server{Kind: redis.Cluster, URL: c.URL()}, fault: c.Masters[0].Kill, loses: true,
		heal: func() {
			await(t, "a new master", func() bool {
				return isMaster(replica) && strings.Contains(other.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
			})
		},
	}
}

func lostShard(t *testing.T) subject {
	c := redistest.StartCluster(t, 3, false)
	for _, m := range c.Masters {
		command(t, m.Client(t), "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	return subject{redis: redis.Server{Kind: redis.Cluster, URL: c.URL()}, fault: c.Masters[0].Kill, lasts: 6 * time.Second}
}

// migration moves all slots of the first master that hold keys, and back.
func migration(t *testing.T) subject {
	c := redistest.StartCluster(t, 3, false)
	first := c.Masters[0].Client(t)
	return subject{
		redis: redis.Server{Kind: redis.Cluster, URL: c.URL()}, heal: func() {},
		fault: func() {
			ctx, slots := context.Background(), map[int]bool{}
			for _, key := range first.Keys(ctx, "*").Val() {
				slots[int(first.ClusterKeySlot(ctx, key).Val())] = true
			}
			require.NotEmpty(t, slots)
			for slot := range slots {
				c.Migrate(t, slot, c.Masters[0], c.Masters[1], func() { time.Sleep(20 * time.Millisecond) })
				c.Migrate(t, slot, c.Masters[1], c.Masters[0], func() { time.Sleep(20 * time.Millisecond) })
			}
		},
	}
}

func crowd(t *testing.T) subject {
	s := redistest.Start(t)
	return subject{
		redis: single(s.Addr), callers: 10_000, pause: 2 * time.Second,
		fault: s.Pause, lasts: atFullLength(3 * time.Second), heal: s.Resume,
	}
}

func command(t *testing.T, c *goredis.Client, args ...any) {
	require.NoError(t, c.Do(context.Background(), args...).Err(), fmt.Sprint(args...))
}

func isMaster(c *goredis.Client) bool {
	role, err := c.Do(context.Background(), "ROLE").Slice()
	return err == nil && role[0] == "master"
}

func await(t *testing.T, what string, done func() bool) {
	polltest.Until(t, 30*time.Second, done, what)
}
