package upgrade

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-81f232ab/rls/backend/redis"
	"github.com/seed-81f232ab/rls/descriptors"
	"github.com/seed-81f232ab/rls/descriptors/limitsfile"
	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/service"
)

var updateGolden = flag.Bool("update", false, "write the expected keys and answers anew")

const breaksUpgrades = "This breaks upgrades: replicas of the last version would lose counters or count wrongly. " +
	"If it must be, give the layout another version (backend/redis/key.go), and tell users in CHANGELOG.md."

// start is the time of all calls, 37.25 seconds into a minute.
var start = time.Date(2026, 3, 14, 15, 9, 37, 250_000_000, time.UTC)

// calls are the calls before the keys are compared.
var calls = []struct {
	sinceStart time.Duration // since start
	descriptor string
	hits       uint64
}{
	{0, "fixed=acme", 3},
	{time.Second, "fixed=acme", 1},
	{0, "fixed_uncharged=acme", 3},
	{0, "fixed_uncharged=acme", 2}, // denied
	{0, "fixed_uncharged=acme", 1},
	{0, "first_hit=acme", 4},
	{2 * time.Second, "first_hit=acme", 3},
	{0, "sliding=acme", 4},
	{time.Minute, "sliding=acme", 2},
	{0, "log=acme", 1},
	{time.Second, "log=acme", 2},
	{1500 * time.Millisecond, "log=acme", 3},
	{0, "bucket=acme", 20},
	{time.Second, "bucket=acme", 2},
	{0, "several=acme", 2},
	{0, "shorter_than_a_second=acme", 3},
	{0, "month_of_a_zone=acme", 7},
	{0, "path=/api/orders", 1},
	{0, "path=/api/users", 2},
	{0, "address=192.0.2.1,path=/login", 2},
	{0, "fixed=" + strings.Repeat("long-value ", 30), 5},
	{0, "log=" + strings.Repeat("long-value ", 30), 5},
}

// replica is a service on a Redis, with the clock of the test.
type replica struct {
	*service.Service
	now time.Time
}

func newReplica(t *testing.T, o redis.Options) *replica {
	t.Helper()
	text, err := os.ReadFile("testdata/limits.yaml")
	require.NoError(t, err)
	limits, err := limitsfile.Parse([]limitsfile.File{{Name: "limits.yaml", Data: text}}, limitsfile.Options{})
	require.NoError(t, err)
	store := new(descriptors.Store)
	store.Set(descriptors.Compile(limits))

	o.CallersClock, o.Timeout = true, 10*time.Second
	limiter, err := redis.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, limiter.Close()) })
	r := &replica{}
	r.Service = service.New(service.Options{Limits: store, Limiter: limiter, Now: func() time.Time { return r.now }})
	return r
}

// ask sends a call and returns the answer as text. A call without hits charges nothing.
func (r *replica) ask(t *testing.T, now time.Time, descriptor string, hits uint64) string {
	t.Helper()
	r.now = now
	d := &ratelimitv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(hits)}
	for entry := range strings.SplitSeq(descriptor, ",") {
		key, value, _ := strings.Cut(entry, "=")
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	response, err := r.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{d}})
	require.NoError(t, err)
	status := response.Statuses[0]
	return fmt.Sprintf("%s, %d remain, reset after %v", status.Code, status.LimitRemaining, status.DurationUntilReset.AsDuration())
}

// answers asks for the counter of each descriptor at the time of its last call.
func (r *replica) answers(t *testing.T) (lines []string) {
	t.Helper()
	lastCallTime := map[string]time.Duration{}
	for _, c := range calls {
		lastCallTime[c.descriptor] = c.sinceStart
	}
	for _, descriptor := range slices.Sorted(maps.Keys(lastCallTime)) {
		lines = append(lines, fmt.Sprintf("answer %s: %s", strconv.QuoteToASCII(descriptor), r.ask(t, start.Add(lastCallTime[descriptor]), descriptor, 0)))
	}
	return lines
}

// storedKeys returns a line for each key of Redis: the key, the type and the quoted values.
func storedKeys(t *testing.T, c *goredis.Client) (lines []string) {
	t.Helper()
	for _, key := range c.Keys(t.Context(), "*").Val() {
		words := []string{"key", strconv.QuoteToASCII(key), c.Type(t.Context(), key).Val()}
		values := []string{c.Get(t.Context(), key).Val()}
		if words[2] == "list" {
			values = c.LRange(t.Context(), key, 0, -1).Val()
		}
		for _, value := range values {
			words = append(words, strconv.QuoteToASCII(value))
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return lines
}

// restoreKey stores the key of a line of storedKeys.
func restoreKey(t *testing.T, client *goredis.Client, line string) {
	t.Helper()
	rest, isKey := strings.CutPrefix(line, "key ")
	if !isKey {
		return
	}
	unquote := func() string {
		rest = strings.TrimSpace(rest)
		quotedKey, err := strconv.QuotedPrefix(rest)
		require.NoError(t, err, line)
		rest = rest[len(quotedKey):]
		text, err := strconv.Unquote(quotedKey)
		require.NoError(t, err, line)
		return text
	}
	key := unquote()
	kind, values, _ := strings.Cut(strings.TrimSpace(rest), " ")
	for rest = values; rest != ""; {
		if kind == "list" {
			require.NoError(t, client.RPush(t.Context(), key, unquote()).Err())
		} else {
			require.NoError(t, client.Set(t.Context(), key, unquote(), 0).Err())
		}
	}
	require.NoError(t, client.PExpire(t.Context(), key, time.Hour).Err())
}

func TestLayoutOfCountersIsThatOfTheLastVersion(t *testing.T) {
	server := redistest.Start(t)
	replica := newReplica(t, redis.Options{Main: redis.Server{URL: server.Addr}})
	for _, c := range calls {
		replica.ask(t, start.Add(c.sinceStart), c.descriptor, c.hits)
	}
	answers := replica.answers(t)
	keys := storedKeys(t, server.Client(t))
	requireGolden(t, "testdata/layout.txt", append(keys, answers...))
}

func TestLayoutOfClusterIsThatOfTheLastVersion(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false)
	replica := newReplica(t, redis.Options{Main: redis.Server{Kind: redis.Cluster, URL: cluster.URL()}, KeyPrefix: "team:"})
	for _, c := range calls {
		replica.ask(t, start.Add(c.sinceStart), c.descriptor, c.hits)
	}
	var keys []string
	for _, master := range cluster.Masters {
		for _, line := range storedKeys(t, master.Client(t)) {
			name, err := strconv.QuotedPrefix(strings.TrimPrefix(line, "key "))
			require.NoError(t, err)
			keys = append(keys, name)
		}
	}
	requireGolden(t, "testdata/layout_cluster.txt", keys)
}

func TestCountersOfTheLastVersionAreRead(t *testing.T) {
	server := redistest.Start(t)
	text, err := os.ReadFile("testdata/layout.txt")
	require.NoError(t, err)
	var want []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		restoreKey(t, server.Client(t), line)
		if strings.HasPrefix(line, "answer ") {
			want = append(want, line)
		}
	}
	require.NotEmpty(t, want)
	replica := newReplica(t, redis.Options{Main: redis.Server{URL: server.Addr}})
	assert.Equal(t, want, replica.answers(t), breaksUpgrades)
}

// requireGolden compares the sorted lines with those of a file.
func requireGolden(t *testing.T, file string, lines []string) {
	t.Helper()
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	if *updateGolden {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, breaksUpgrades)
}
