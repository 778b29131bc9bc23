//go:build redis

package bench

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// TestPartitions measures what the number of partitions costs a Cluster of three masters. It
// prints a table and asserts no figure.
func TestPartitions(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false)
	var redis []*goredis.Client
	for _, s := range cluster.Masters {
		redis = append(redis, s.Client(t))
	}
	roundPlan := newRounds(t, 2)
	var targets []target
	for _, partitions := range []int{3, 6, 9, 12, 16, 48} {
		targets = append(targets, startRLS(t, strconv.Itoa(partitions), "", nil, redis,
			"REDIS_TYPE=cluster", "REDIS_URL="+cluster.URL(), "REDIS_CLUSTER_PARTITIONS="+strconv.Itoa(partitions)))
	}
	var table strings.Builder
	table.WriteString("| load | partitions | Redis CPU, µs | server CPU, µs | p99, µs |\n|---|---|---|---|---|\n")
	for _, load := range []curves.Load{{InFlight: 64, Descriptors: 1, Keys: 10_000}, {InFlight: 64, Descriptors: 4, Keys: 10_000}, {Rate: 2000, Descriptors: 1, Keys: 10_000}} {
		for _, cell := range roundPlan.measure(targets, load) {
			fmt.Fprintf(&table, "| %s | %s | %.1f | %.1f | %.0f |\n", load.Name(), cell.Server,
				cell.Figures[curves.RedisCPU].Median, cell.Figures[curves.ServerCPU].Median, cell.Figures[curves.P99].Median)
		}
	}
	t.Log("\n" + table.String())
}
