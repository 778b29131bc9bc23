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

const slotCount = 16384

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
	cluster := &RedisCluster{}
	for range masters {
		cluster.Masters = append(cluster.Masters, startNode(tb, certs))
	}
	if replicas {
		for range masters {
			cluster.Replicas = append(cluster.Replicas, startNode(tb, certs))
		}
	}
	ctx := context.Background()
	runCommand := func(node *Server, args ...any) string {
		tb.Helper()
		reply, err := node.command(ctx, args...)
		if err != nil {
			tb.Fatalf("%v: %v", args, err)
		}
		return reply
	}
	allNodes := cluster.nodes()
	for i, node := range cluster.Masters {
		addSlots := []any{"CLUSTER", "ADDSLOTS"} // Redis 6 has no ADDSLOTSRANGE
		for slot := i * slotCount / masters; slot < (i+1)*slotCount/masters; slot++ {
			addSlots = append(addSlots, slot)
		}
		runCommand(node, addSlots...)
		runCommand(node, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
	}
	for _, node := range allNodes[1:] {
		host, port, _ := strings.Cut(node.Addr, ":")
		runCommand(allNodes[0], "CLUSTER", "MEET", host, port, node.busPort)
	}
	cluster.awaitInfo(tb, "cluster_known_nodes:"+strconv.Itoa(len(allNodes)))
	for i, node := range cluster.Replicas {
		runCommand(node, "CLUSTER", "REPLICATE", runCommand(cluster.Masters[i], "CLUSTER", "MYID"))
	}
	cluster.awaitInfo(tb, "cluster_state:ok", "cluster_slots_ok:"+strconv.Itoa(slotCount), "cluster_size:"+strconv.Itoa(masters))
	err := eventually(20*time.Second, func(ctx context.Context) error {
		for _, node := range allNodes {
			text, err := node.command(ctx, "CLUSTER", "NODES")
			if err != nil {
				return err
			}
			if replicaCount := strings.Count(text, "slave "); replicaCount != len(cluster.Replicas) {
				return fmt.Errorf("%s knows %d of %d replicas", node.Addr, replicaCount, len(cluster.Replicas))
			}
		}
		for _, node := range cluster.Replicas {
			text, err := node.command(ctx, "INFO", "replication")
			if err != nil {
				return err
			}
			if !strings.Contains(text, "master_link_status:up") {
				return fmt.Errorf("%s is not linked with its master", node.Addr)
			}
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { // before the first node ends, because the others then call the Cluster down
		for _, node := range cluster.nodes() {
			checkCounters(tb, node, "")
		}
	})
	return cluster
}

// startNode runs a node without slots. If certs is not nil, the node uses TLS.
func startNode(tb testing.TB, certs *Certs) *Server {
	tb.Helper()
	var conf *tls.Config
	if certs != nil {
		conf = certs.client(tb)
	}
	node, err := onFreePort(func(port int) (*Server, error) {
		busPort, err := proctest.FreePort()
		if err != nil {
			return nil, err
		}
		settings := []string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
			"--cluster-replica-validity-factor", "0", "--dir", tb.TempDir(),
		}
		if certs == nil && isRedis6() {
			busPort = port + 10_000
		} else {
			settings = append(settings, "--cluster-port", strconv.Itoa(busPort))
		}
		if certs != nil {
			settings = append(settings, certs.settings(port)...)
			settings = append(settings, "--tls-cluster", "yes",
				"--cluster-announce-hostname", "localhost", "--cluster-preferred-endpoint-type", "hostname")
		}
		node, err := run(port, conf, settings...)
		if node != nil {
			node.busPort = busPort
		}
		return node, err
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(node.Kill)
	return node
}

func (c *RedisCluster) nodes() []*Server {
	return append(append([]*Server{}, c.Masters...), c.Replicas...)
}

// awaitInfo waits until CLUSTER INFO of every node has all lines.
func (c *RedisCluster) awaitInfo(tb testing.TB, lines ...string) {
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

// Migrate moves a slot from one master to another, key by key, as redis-cli does. It calls afterKey
// after every key.
func (c *RedisCluster) Migrate(tb testing.TB, slot int, sourceServer, targetServer *Server, afterKey func()) {
	tb.Helper()
	ctx := context.Background()
	source, target := sourceServer.Client(tb), targetServer.Client(tb)
	sourceID, targetID := source.Do(ctx, "CLUSTER", "MYID").Val(), target.Do(ctx, "CLUSTER", "MYID").Val()
	runCommand := func(client *goredis.Client, args ...any) {
		tb.Helper()
		if err := client.Do(ctx, args...).Err(); err != nil {
			tb.Fatalf("%v: %v", args, err)
		}
	}
	runCommand(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID)
	runCommand(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID)
	host, port, _ := strings.Cut(targetServer.Addr, ":")
	for {
		keys := source.ClusterGetKeysInSlot(ctx, slot, 1).Val()
		if len(keys) == 0 {
			break
		}
		runCommand(source, "MIGRATE", host, port, keys[0], 0, 5000)
		afterKey()
	}
	runCommand(target, "CLUSTER", "SETSLOT", slot, "NODE", targetID)
	runCommand(source, "CLUSTER", "SETSLOT", slot, "NODE", targetID)
	for _, s := range c.Masters {
		if s != sourceServer && s != targetServer {
			runCommand(s.Client(tb), "CLUSTER", "SETSLOT", slot, "NODE", targetID)
		}
	}
}
