package redis_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
)

// BenchmarkTake measures Takes of 1 caller and of 64 callers on 10,000 keys. It also reports the CPU
// time of Redis.
func BenchmarkTake(b *testing.B) {
	s := redistest.Start(b)
	for _, callers := range []int{1, 64} {
		for _, batches := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("callers=%d/inflight=%d", callers, batches), func(b *testing.B) {
				runBenchmark(b, redis.Options{Main: redis.Server{URL: s.Addr}, MaxInflightBatches: batches, Timeout: testTimeout}, callers, 1, s.Client(b))
			})
		}
	}
	b.Run("callers=64/hits=4", func(b *testing.B) {
		runBenchmark(b, redis.Options{Main: redis.Server{URL: s.Addr}, Timeout: testTimeout}, 64, 4, s.Client(b))
	})
}

// BenchmarkCluster measures a Cluster of 3 nodes with 4, 16 and 64 partitions.
func BenchmarkCluster(b *testing.B) {
	c := redistest.StartCluster(b, 3, false)
	var clients []*goredis.Client
	for _, s := range c.Masters {
		clients = append(clients, s.Client(b))
	}
	for _, partitions := range []int{4, 16, 64} {
		for _, hits := range []int{1, 4} {
			b.Run(fmt.Sprintf("partitions=%d/hits=%d", partitions, hits), func(b *testing.B) {
				runBenchmark(b, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: c.URL()}, Partitions: partitions, Timeout: testTimeout}, 64, hits, clients...)
			})
		}
	}
}

func runBenchmark(b *testing.B, o redis.Options, callers, hits int, clients ...*goredis.Client) {
	l := open(b, o)
	lim := newLimit(b, limit.Spec{Requests: 1_000_000, Unit: limit.Hour, ChargeDenied: true})
	var keys [10_000][]byte
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "shop|ip=192.0.%d.%d", i/256, i%256)
	}
	if r := take(l, hit("first", lim, 1))[0]; r.Err != nil {
		b.Fatal(r.Err)
	}
	microsBefore := cpuMicros(b, clients)
	var seed atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(max(1, callers/2))
	if callers == 1 {
		batch, results := make([]backend.Hit, hits), make([]backend.Result, hits)
		for i := range b.N {
			takeHits(b, l, lim, keys[:], i*7919, batch, results)
		}
	} else {
		b.RunParallel(func(pb *testing.PB) {
			batch, results := make([]backend.Hit, hits), make([]backend.Result, hits)
			for i := int(seed.Add(1)) * 1000; pb.Next(); i++ {
				takeHits(b, l, lim, keys[:], i*7919, batch, results)
			}
		})
	}
	b.ReportMetric((cpuMicros(b, clients)-microsBefore)/float64(b.N), "redis-us/op")
}

func takeHits(b *testing.B, l *redis.Limiter, lim *limit.Limit, keys [][]byte, seed int, hits []backend.Hit, results []backend.Result) {
	for j := range hits {
		hits[j] = backend.Hit{Key: keys[(seed+j*101)%len(keys)], Limit: lim, N: 1}
	}
	l.Take(b.Context(), start, hits, results)
	if results[0].Err != nil {
		b.Error(results[0].Err)
	}
}

// cpuMicros returns the CPU time that the servers have used, in microseconds.
func cpuMicros(b *testing.B, clients []*goredis.Client) (sum float64) {
	for _, c := range clients {
		for line := range strings.Lines(c.Info(b.Context(), "cpu").Val()) {
			for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
				if v, ok := strings.CutPrefix(line, name); ok {
					seconds, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
					if err != nil {
						b.Fatal(err)
					}
					sum += seconds * 1e6
				}
			}
		}
	}
	return sum
}
