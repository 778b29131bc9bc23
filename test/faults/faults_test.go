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
	"github.com/seed-81f232ab/rls/internal/testkit/polltest"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
)

// faults is the table. The race detector can't run as many goroutines as a fullOnly
// fault needs.
var faults = []struct {
	name     string
	fullOnly bool
	start    func(t *testing.T) scenario
}{
	{"killed, restarted empty", false, func(t *testing.T) scenario { return killScenario(t, true) }},
	{"killed, restarted with its data", false, func(t *testing.T) scenario {
		return killScenario(t, false, "--appendonly", "yes", "--appendfsync", "always", "--dir", t.TempDir())
	}},
	{"frozen (SIGSTOP, SIGCONT)", false, freezeScenario},
	{"refused from the start", false, refuseFromStartScenario},
	{"answers come 500 ms late", false, toxicScenario("latency", `"latency": 250`)},
	{"30% of connections reset, every 100 ms", false, resetConnectionsScenario},
	{"1 KB/s", false, toxicScenario("bandwidth", `"rate": 1`)},
	{"half-open: packets vanish", false, toxicScenario("timeout", `"timeout": 0`)},
	{"SCRIPT FLUSH, every 5 ms", false, flushScriptsScenario},
	{"out of memory (maxmemory)", false, outOfMemoryScenario},
	{"password changed, and restored", false, changePasswordScenario},
	{"name moves to another server", false, moveNameScenario},
	{"Sentinel promotes the replica", false, promoteReplicaScenario},
	{"cluster: a master dies, its replica takes over", false, replaceMasterScenario},
	{"cluster: a shard is lost for good", false, loseShardScenario},
	{"cluster: slots move to another master", false, migrateSlotsScenario},
	{"frozen, with 10,000 clients (5,000 calls a second)", true, freezeWithManyClientsScenario},
}

// shortUnlessFull returns d with -full, else a second.
func shortUnlessFull(d time.Duration) time.Duration {
	if !*isFullRun {
		return time.Second
	}
	return d
}

func singleRedis(addr string) redis.Server { return redis.Server{URL: addr} }

func killScenario(t *testing.T, losesCounts bool, settings ...string) scenario {
	server := redistest.Start(t, settings...)
	return scenario{redis: singleRedis(server.Addr), fault: server.Kill, duration: shortUnlessFull(3 * time.Second), heal: func() { server.Restart(t) }, losesCounts: losesCounts}
}

func freezeScenario(t *testing.T) scenario {
	server := redistest.Start(t)
	return scenario{redis: singleRedis(server.Addr), fault: server.Pause, duration: shortUnlessFull(5 * time.Second), heal: server.Resume}
}

func freezeWithManyClientsScenario(t *testing.T) scenario {
	s := freezeScenario(t)
	s.duration, s.callers, s.pause = shortUnlessFull(3*time.Second), 10_000, 2*time.Second
	return s
}

func refuseFromStartScenario(t *testing.T) scenario {
	s := killScenario(t, false)
	s.fromStart = true
	return s
}

// toxicScenario disturbs all connections through a proxy.
func toxicScenario(kind, attributes string) func(*testing.T) scenario {
	return func(t *testing.T) scenario {
		server := redistest.Start(t)
		proxy := startProxy(t, "127.0.0.1:0", server.Addr)
		return scenario{
			redis: singleRedis(proxy.Listen), duration: shortUnlessFull(3 * time.Second), heal: proxy.removeToxics,
			fault: func() { proxy.addToxic(kind, 1, attributes) },
		}
	}
}

// resetConnectionsScenario draws the connections anew every 100 ms, because the others live on.
func resetConnectionsScenario(t *testing.T) scenario {
	server := redistest.Start(t)
	proxy := startProxy(t, "127.0.0.1:0", server.Addr)
	begin, end := repeat(100*time.Millisecond, func() {
		proxy.removeToxics()
		proxy.addToxic("reset_peer", 0.3, `"timeout": 0`)
	})
	return scenario{redis: singleRedis(proxy.Listen), fault: begin, duration: shortUnlessFull(3 * time.Second), heal: func() { end(); proxy.removeToxics() }}
}

func flushScriptsScenario(t *testing.T) scenario {
	server := redistest.Start(t)
	client := server.Client(t)
	begin, end := repeat(5*time.Millisecond, func() { client.ScriptFlush(context.Background()) })
	return scenario{redis: singleRedis(server.Addr), fault: begin, duration: shortUnlessFull(3 * time.Second), heal: end}
}

// repeat returns a function that starts calling f in a loop, and one that ends the loop.
func repeat(pause time.Duration, f func()) (begin, end func()) {
	stop := make(chan struct{})
	var goroutines sync.WaitGroup
	begin = func() {
		goroutines.Go(func() {
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
	return begin, func() { close(stop); goroutines.Wait() }
}

func outOfMemoryScenario(t *testing.T) scenario {
	server := redistest.Start(t)
	client := server.Client(t)
	return scenario{
		redis: singleRedis(server.Addr), duration: shortUnlessFull(3 * time.Second),
		fault: func() { command(t, client, "CONFIG", "SET", "maxmemory", "1") },
		heal:  func() { command(t, client, "CONFIG", "SET", "maxmemory", "0") },
	}
}

func changePasswordScenario(t *testing.T) scenario {
	server := redistest.Start(t)
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr, PoolSize: 1, Protocol: 2})
	t.Cleanup(func() { client.Close() })
	return scenario{
		redis: singleRedis(server.Addr), duration: shortUnlessFull(3 * time.Second),
		fault: func() {
			command(t, client, "CONFIG", "SET", "requirepass", "other")
			command(t, client, "AUTH", "other")
			command(t, client, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		heal: func() { command(t, client, "CONFIG", "SET", "requirepass", "") },
	}
}

// moveNameScenario has two servers behind one name, at two loopback addresses.
func moveNameScenario(t *testing.T) scenario {
	oldServer, newServer := redistest.Start(t), redistest.Start(t)
	oldAddress := startProxy(t, "127.0.0.1:0", oldServer.Addr)
	_, port, err := net.SplitHostPort(oldAddress.Listen)
	require.NoError(t, err)
	startProxy(t, "127.0.0.2:"+port, newServer.Addr)
	dns := startDNS(t, "127.0.0.1")
	return scenario{
		redis: singleRedis("redis.faults.test:" + port), fault: oldAddress.Stop, duration: time.Second,
		heal: func() { dns.setAddress("127.0.0.2") }, losesCounts: true,
	}
}

func promoteReplicaScenario(t *testing.T) scenario {
	sentinels := redistest.StartSentinels(t)
	replica := sentinels.Replica.Client(t)
	return scenario{
		redis: redis.Server{Kind: redis.Sentinel, URL: sentinels.URL()}, fault: sentinels.Master.Kill, losesCounts: true,
		heal: func() { await(t, "a new master", func() bool { return isMaster(replica) }) },
	}
}

func replaceMasterScenario(t *testing.T) scenario {
	cluster := redistest.StartCluster(t, 3, true)
	replica, otherMaster := cluster.Replicas[0].Client(t), cluster.Masters[1].Client(t)
	return scenario{
		redis: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, fault: cluster.Masters[0].Kill, losesCounts: true,
		heal: func() {
			await(t, "a new master", func() bool {
				return isMaster(replica) && strings.Contains(otherMaster.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
			})
		},
	}
}

func loseShardScenario(t *testing.T) scenario {
	cluster := redistest.StartCluster(t, 3, false)
	for _, m := range cluster.Masters {
		command(t, m.Client(t), "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	return scenario{redis: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, fault: cluster.Masters[0].Kill, duration: 6 * time.Second}
}

// migrateSlotsScenario moves each slot of the first master that has keys to the second master
// and back.
func migrateSlotsScenario(t *testing.T) scenario {
	cluster := redistest.StartCluster(t, 3, false)
	firstMaster := cluster.Masters[0].Client(t)
	pause := func() { time.Sleep(20 * time.Millisecond) }
	return scenario{
		redis: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, heal: func() {},
		fault: func() {
			ctx, slots := context.Background(), map[int]bool{}
			for _, key := range firstMaster.Keys(ctx, "*").Val() {
				slots[int(firstMaster.ClusterKeySlot(ctx, key).Val())] = true
			}
			require.NotEmpty(t, slots)
			for slot := range slots {
				cluster.Migrate(t, slot, cluster.Masters[0], cluster.Masters[1], pause)
				cluster.Migrate(t, slot, cluster.Masters[1], cluster.Masters[0], pause)
			}
		},
	}
}

func command(t *testing.T, c *goredis.Client, args ...any) {
	require.NoError(t, c.Do(context.Background(), args...).Err(), fmt.Sprint(args...))
}

func isMaster(c *goredis.Client) bool {
	role, err := c.Do(context.Background(), "ROLE").Slice()
	return err == nil && role[0] == "master"
}

// awaitAllExpire waits until the servers have keys, and each has a time to live. A replica sets the time
// to live again for keys that Redis has lost, and for hits without an answer.
func awaitAllExpire(t *testing.T, servers ...*redistest.Server) {
	await(t, "a time to live for each key", func() bool {
		expiringKeys, lastingKeys := redistest.Keys(t, servers...)
		return len(expiringKeys) > 0 && len(lastingKeys) == 0
	})
}

func await(t *testing.T, what string, done func() bool) {
	polltest.Until(t, 30*time.Second, done, what)
}
