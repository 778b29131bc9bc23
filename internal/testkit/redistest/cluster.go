package redistest

import (
	"context"
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/testkit/proctest"
)

// RedisCluster is a running Redis Cluster.
type RedisCluster struct {
	Masters  []*Server
	Replicas []*Server // Replicas[i] is the replica of Masters[i]; empty if there are none
}

const slots = 16384

// StartCluster runs a cluster and returns when all nodes know each other.
func StartCluster(tb testing.TB, masters int, replicas bool) *RedisCluster {
	tb.Helper()
	return startCluster(tb, masters, replicas, nil)
}

// StartClusterTLS runs a cluster without replicas that accepts only TLS with client
// certificates. The nodes give clients the name localhost, for which they need a certificate.
func StartClusterTLS(tb testing.TB, masters int, certs Certs) *RedisCluster {
	tb.Helper()
	return startCluster(tb, masters, false, &certs)
}

func startCluster(tb testing.TB, masters int, replicas bool, certs *Certs) *RedisCluster {
	tb.Helper()
	c := &RedisCluster{}
	for range masters {
		c.Masters = append(c.Masters, startNode(tb, certs))
	}
	if replicas {
		for range masters {
			c.Replicas = append(c.Replicas, startNode(tb, certs))
		}
	}
	ctx := context.Background()
	must := func(s *Server, args ...any) string {
		tb.Helper()
		reply, err := s.command(ctx, args...)
		if err != nil {
			tb.Fatalf("%v: %v", args, err)
		}
		return reply
	}
	all := c.nodes()
	for i, s := range c.Masters {
		addSlots := []any{"CLUSTER", "ADDSLOTS"} // Redis 6 has no ADDSLOTSRANGE
		for slot := i * slots / masters; slot < (i+1)*slots/masters; slot++ {
			addSlots = append(addSlots, slot)
		}
		must(s, addSlots...)
		must(s, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	for _, s := range all[1:] {
		host, port, _ := strings.Cut(s.Addr, ":")
		must(all[0], "CLUSTER", "MEET", host, port, s.busPort)
	}
	c.await(tb, "cluster_known_nodes:"+strconv.Itoa(len(all)))
	for i, s := range c.Replicas {
		must(s, "CLUSTER", "REPLICATE", must(c.Masters[i], "CLUSTER", "MYID"))
	}
	c.await(tb, "cluster_state:ok", "cluster_slots_ok:"+strconv.Itoa(slots), "cluster_size:"+strconv.Itoa(masters))
	err := eventually(20*time.Second, func(ctx context.Context) error {
		for _, s := range all {
			text, err := s.command(ctx, "CLUSTER", "NODES")
			if err != nil {
				return err
			}
			if n := strings.Count(text, "slave "); n != len(c.Replicas) {
				return fmt.Errorf("%s knows %d of %d replicas", s.Addr, n, len(c.Replicas))
			}
		}
		for _, s := range c.Replicas {
			text, err := s.command(ctx, "INFO", "replication")
			if err != nil {
				return err
			}
			if !strings.Contains(text, "master_link_status:up") {
				return fmt.Errorf("%s is not linked with its master", s.Addr)
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { // before the first node ends, because the others then call the Cluster down
		for _, s := range c.nodes() {
			checkCounters(tb, s, "")
		}
	})
	return c
}

// startNode runs a node without slots. If certs is not nil, the node uses TLS.
func startNode(tb testing.TB, certs *Certs) *Server {
	tb.Helper()
	var conf *tls.Config
	if certs != nil {
		conf = certs.client(tb)
	}
	s, err := onFreePort(func(port int) (*Server, error) {
		bus, err := proctest.FreePort()
		if err != nil {
			return nil, err
		}
		settings := []string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
			"--cluster-replica-validity-factor", "0", "--dir", tb.TempDir(),
		}
		if certs == nil && isRedis6() {
			bus = port + 10_000
		} else {
			settings = append(settings, "--cluster-port", strconv.Itoa(bus))
		}
		if certs != nil {
			settings = append(settings, certs.settings(port)...)
			settings = append(settings, "--tls-cluster", "yes",
				"--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname")
		}
		s, err := run(port, conf, settings...)
		if s != nil {
			s.busPort = bus
		}
		return s, err
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Kill)
	return s
}

func (c *RedisCluster) nodes() []*Server {
	return append(append([]*Server{}, c.Masters...), c.Replicas...)
}

// await waits until CLUSTER INFO of every node has all lines.
func (c *RedisCluster) await(tb testing.TB, lines ...string) {
	tb.Helper()
	err := eventually(20*time.Second, func(ctx context.Context) error {
		for _, s := range c.nodes() {
			info, err := s.command(ctx, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			for _, line := range lines {
				if !strings.Contains(info, line+"\r\n") {
					return fmt.Errorf("%s has no %s in:\n%s", s.Addr, line, info)
				}
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// URL returns the addresses of the masters.
func (c *RedisCluster) URL() string {
	var addrs []string
	for _, s := range c.Masters {
		addrs = append(addrs, s.Addr)
	}
	return strings.Join(addrs, ",")
}

// Client returns a client of the cluster that is closed when the test ends.
func (c *RedisCluster) Client(tb testing.TB) *goredis.ClusterClient {
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: strings.Split(c.URL(), ","), TLSConfig: c.Masters[0].tls})
	tb.Cleanup(func() { client.Close() })
	return client
}

// Migrate moves a slot from one master to another, key by key, as redis-cli does. It calls each
// after every key.
func (c *RedisCluster) Migrate(tb testing.TB, slot int, from, to *Server, each func()) {
	tb.Helper()
	ctx := context.Background()
	source, target := from.Client(tb), to.Client(tb)
	fromID, toID := source.Do(ctx, "CLUSTER", "MYID").Val(), target.Do(ctx, "CLUSTER", "MYID").Val()
	must := func(client *goredis.Client, args ...any) {
		tb.Helper()
		if err := client.Do(ctx, args...).Err(); err != nil {
			tb.Fatalf("%v: %v", args, err)
		}
	}
	must(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	must(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	host, port, _ := strings.Cut(to.Addr, ":")
	for {
		keys := source.ClusterGetKeysInSlot(ctx, slot, 1).Val()
		if len(keys) == 0 {
			break
		}
		must(source, "MIGRATE", host, port, keys[0], 0, 5000)
		each()
	}
	must(target, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	must(source, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	for _, s := range c.Masters {
		if s != from && s != to {
			must(s.Client(tb), "CLUSTER", "SETSLOT", slot, "NODE", toID)
		}
	}
}
