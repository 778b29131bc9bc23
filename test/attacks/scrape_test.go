//go:build attacks

package attacks

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// scrapedRules is the number of rules that TestScrapesOfManyRulesTakeBoundedMemory calls and scrapes.
const scrapedRules = 100_000

// maxScrapeMemory and maxScrapeTime are the promises of docs/metrics.md for that many rules with traffic.
const (
	maxScrapeMemory = 260_000_000
	maxScrapeTime   = 5 * time.Second
)

// manyRules returns a limits file.
func manyRules() string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range scrapedRules {
		fmt.Fprintf(&b, "  - key: k\n    value: v%d\n    rate_limit:\n      unit: day\n      requests_per_unit: 1000\n", i)
	}
	return b.String()
}

// callEachRule sends a hit for each rule, in calls of 100 descriptors.
func (s *service) callEachRule() {
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(s.t, err)
	defer func() { _ = conn.Close() }()
	const perCall = 100
	firstRules := make(chan int)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for firstRule := range firstRules {
				r := &rlsv3.RateLimitRequest{Domain: "d"}
				for i := range perCall {
					r.Descriptors = append(r.Descriptors, &ratelimitv3.RateLimitDescriptor{
						Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "k", Value: fmt.Sprint("v", firstRule+i)}},
					})
				}
				_, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(s.t.Context(), r)
				assert.NoError(s.t, err)
			}
		})
	}
	for firstRule := 0; firstRule < scrapedRules; firstRule += perCall {
		firstRules <- firstRule
	}
	close(firstRules)
	callers.Wait()
}

// scrape reads /metrics as Prometheus does, with gzip, and returns its lines and the time.
func (s *service) scrape() (lines int, duration time.Duration, err error) {
	start := time.Now()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.debug+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := gzip.NewReader(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	scanner := bufio.NewScanner(text)
	for scanner.Scan() {
		lines++
	}
	return lines, time.Since(start), scanner.Err()
}

func TestScrapesOfManyRulesTakeBoundedMemory(t *testing.T) {
	_, checksTimes := attackTime(t)
	program := build(t)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	require.NoError(t, os.WriteFile(limits, []byte(manyRules()), 0o600))
	rows := "\n| 100,000 rules with traffic, and | peak memory before, MiB | peak memory, MiB | slowest scrape, s |\n|---|---|---|---|\n"
	for _, attack := range []struct {
		name     string
		settings []string
		scrapes  int // at the same time
	}{
		{"no scrape", nil, 0},
		{"one scrape", nil, 1},
		{"two scrapes at the same time", nil, 2},
		{"one scrape with `GOMEMLIMIT=200MiB`", []string{"GOMEMLIMIT=200MiB"}, 1},
		{"no scrape, but metrics to the log (`USE_STATSD=false`)", []string{"USE_STATSD=false", "STATS_FLUSH_INTERVAL=2s"}, 0},
	} {
		t.Run(attack.name, func(t *testing.T) {
			resetPeak(t)
			service := startService(t, program, append([]string{"LIMITS_PATH=" + limits}, attack.settings...)...)
			service.callEachRule()
			memoryBefore := service.peakMemory()
			var scrapes sync.WaitGroup
			var mu sync.Mutex
			slowest := time.Duration(0)
			for range attack.scrapes {
				scrapes.Go(func() {
					lines, duration, err := service.scrape()
					assert.NoError(t, err)
					assert.Greater(t, lines, 6*scrapedRules)
					mu.Lock()
					defer mu.Unlock()
					slowest = max(slowest, duration)
				})
			}
			scrapes.Wait()
			rows += fmt.Sprintf("| %s | %d | %d | %.1f |\n", attack.name, memoryBefore>>20, service.peakMemory()>>20, slowest.Seconds())
			assert.LessOrEqual(t, service.peakMemory(), int64(maxScrapeMemory))
			if checksTimes && attack.scrapes == 1 {
				assert.Less(t, slowest, maxScrapeTime)
			}
		})
	}
	fmt.Println(rows)
}
