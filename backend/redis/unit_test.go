package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func TestEachFormOfAURLIsParsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		server Server
		want   address
	}{
		{"host and port", Server{URL: "a:1"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}}},
		{"IPv6", Server{URL: "[::1]:1"}, address{kind: Single, network: "tcp", nodes: []string{"[::1]:1"}}},
		{"path", Server{URL: "/run/redis.sock"}, address{kind: Single, network: "unix", nodes: []string{"/run/redis.sock"}}},
		{"relative path", Server{URL: "redis.sock", SocketType: "unix"}, address{kind: Single, network: "unix", nodes: []string{"redis.sock"}}},
		{"unix URL", Server{URL: "unix://:p@/run/redis.sock?db=2"}, address{kind: Single, network: "unix", nodes: []string{"/run/redis.sock"}, db: 2, login: login{"", "p"}}},
		{"redis URL", Server{URL: "redis://u:p%40@a:1/3"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, db: 3, login: login{"u", "p@"}}},
		{"user, password and database in the query", Server{URL: "redis://a:1?username=u&password=p&db=4"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, db: 4, login: login{"u", "p"}}},
		{"database 0", Server{URL: "redis://a:1/0"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}}},
		{"cluster with database 0", Server{Kind: Cluster, URL: "redis://a:1/0"}, address{kind: Cluster, network: "tcp", nodes: []string{"a:1"}}},
		{"default port", Server{URL: "redis://a"}, address{kind: Single, network: "tcp", nodes: []string{"a:6379"}}},
		{"password", Server{URL: "a:1", Auth: "p"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"", "p"}}},
		{"user and password", Server{URL: "a:1", Auth: "u:p:q"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"u", "p:q"}}},
		{"Auth overrides the login of the URL", Server{URL: "redis://u:p@a:1", Auth: "q"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"u", "q"}}},
		{"cluster", Server{Kind: Cluster, URL: "redis://u:p@a:1, b:2", SocketType: "unix"}, address{kind: Cluster, network: "tcp", nodes: []string{"a:1", "b:2"}, login: login{"u", "p"}}},
		{"sentinels", Server{Kind: Sentinel, URL: "m,redis://u:p@a:1,b:2", Auth: "q"}, address{kind: Sentinel, network: "tcp", master: "m", nodes: []string{"a:1", "b:2"}, login: login{"", "q"}, sentinelLogin: login{"u", "p"}}},
		{"sentinel auth", Server{Kind: Sentinel, URL: "m,a:1", SentinelAuth: "u:p"}, address{kind: Sentinel, network: "tcp", master: "m", nodes: []string{"a:1"}, sentinelLogin: login{"u", "p"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(c.server)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	for want, server := range map[string]Server{
		"a:1":         {URL: "redis://u:p@a:1"},
		"a:1,b:2":     {Kind: Cluster, URL: "redis://u:p@a:1,b:2"},
		"m,a:1,b:2":   {Kind: Sentinel, URL: "m,redis://u:p@a:1,b:2"},
		"/redis.sock": {URL: "unix://:p@/redis.sock"},
	} {
		a, err := parse(server)
		require.NoError(t, err)
		assert.Equal(t, want, a.name(), "the name in errors has no secret")
	}
	tlsAddress, err := parse(Server{URL: "rediss://a:1"})
	require.NoError(t, err)
	assert.NotNil(t, tlsAddress.tls)
}

func TestBadURLsAreErrorsWithoutSecrets(t *testing.T) {
	for _, c := range []struct {
		server   Server
		wantText string
	}{
		{Server{}, "URL: got none"},
		{Server{URL: "a"}, `URL: got "a", want host:port`},
		{Server{URL: "a:b"}, "65535"},
		{Server{URL: "a:0"}, "65535"},
		{Server{URL: "http://a:1"}, "redis://"},
		{Server{URL: "user:secret@a:1"}, "redis://user:password@host:port"},
		{Server{URL: "redis://user:secret%zz@a:1"}, "escape"},
		{Server{URL: "redis://user:sec/ret@a:1"}, "escape"},
		{Server{URL: "redis://a:1/x"}, "database"},
		{Server{URL: "m", Kind: Sentinel}, "mymaster,host:26379"},
		{Server{URL: ",a:1", Kind: Sentinel}, "mymaster,host:26379"},
		{Server{URL: "a:1,b", Kind: Cluster}, "node 2"},
		{Server{URL: "redis://a:1/2", Kind: Cluster}, "database"},
		{Server{URL: "unix:///a", Kind: Cluster}, "unix://"},
	} {
		_, err := parse(c.server)
		if assert.ErrorContains(t, err, c.wantText, c.server.URL) {
			assert.NotContains(t, err.Error(), "node 1", "the only address needs no number")
			assert.NotContains(t, err.Error(), "secret")
			assert.NotContains(t, err.Error(), "sec/ret")
		}
	}
}

func TestEachBatchHasAConnection(t *testing.T) {
	for _, c := range []struct {
		kind                          Kind
		poolSize, partitions, batches int
		wantConnections, wantBatches  int
	}{
		{kind: Single, batches: 1, wantConnections: 4, wantBatches: 1},
		{kind: Single, batches: 40, wantConnections: 64, wantBatches: 40},
		{kind: Single, batches: 100, wantConnections: 100, wantBatches: 100},
		{kind: Single, poolSize: 1, batches: 40, wantConnections: 1, wantBatches: 1},
		{kind: Sentinel, poolSize: 10, batches: 3, wantConnections: 10, wantBatches: 3},
		{kind: Cluster, partitions: 12, batches: 1, wantConnections: 24, wantBatches: 1},
		{kind: Cluster, partitions: 12, batches: 8, wantConnections: 96, wantBatches: 8},
		{kind: Cluster, partitions: 12, batches: 4, poolSize: 30, wantConnections: 30, wantBatches: 2},
		{kind: Cluster, partitions: 12, batches: 4, poolSize: 10, wantConnections: 12, wantBatches: 1},
	} {
		connections, batches := address{kind: c.kind, poolSize: c.poolSize}.connectionsAndBatches(Options{Partitions: c.partitions, MaxInflightBatches: c.batches})
		assert.Equal(t, []int{c.wantConnections, c.wantBatches}, []int{connections, batches}, "%+v", c)
	}
}

func TestLateBatchesLeaveAConnectionForEachWorker(t *testing.T) {
	for _, c := range []struct {
		options Options
		want    int64
	}{
		{Options{Main: Server{URL: "127.0.0.1:1", PoolSize: 10}, MaxInflightBatches: 4}, 6},
		{Options{Main: Server{Kind: Cluster, URL: "127.0.0.1:1", PoolSize: 10}, Partitions: 3, MaxInflightBatches: 2}, 4},
		{Options{Main: Server{URL: "127.0.0.1:1", PoolSize: 1}}, 0},
	} {
		l, err := New(c.options)
		require.NoError(t, err)
		assert.Equal(t, c.want, l.instances[0].maxWatchedBatches, "%+v", c.options.Main)
		require.NoError(t, l.Close())
	}
}

// The test uses the bounds of CACHE_KEY_PREFIX and REDIS_CLUSTER_PARTITIONS.
const maxPrefix, maxPartitions = 64, 1024

func TestNewRejectsBadAddresses(t *testing.T) {
	for _, o := range []Options{{Main: Server{URL: "127.0.0.1:1"}, PerSecond: &Server{}}, {}} {
		_, err := New(o)
		assert.Error(t, err, "%+v", o)
	}
}

func TestBudgetIsLessThanTheCallersDeadline(t *testing.T) {
	now := time.Now()
	l := &Limiter{options: Options{Timeout: 50 * time.Millisecond}}
	assert.Equal(t, 50*time.Millisecond, l.budget(t.Context(), now))
	for roundTrip, want := range map[time.Duration]time.Duration{
		time.Second:           50 * time.Millisecond,
		20 * time.Millisecond: 15 * time.Millisecond,
	} {
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(roundTrip))
		defer cancel()
		assert.Equal(t, want, l.budget(ctx, now))
	}
}

func TestLongKeysAreHashed(t *testing.T) {
	k := keyspace("rls:{3}")
	nameOf := func(l *limit.Limit, key string) string { return string(k.append(nil, l, []byte(key))) }
	for start, l := range map[string]*limit.Limit{
		"rls:{3}v1:tb86400": perDay(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 1}),
		"rls:{3}v2:fw86400": perDay(t, limit.Spec{Requests: 1}),
	} {
		assert.Equal(t, start+":shop|ip=1", nameOf(l, "shop|ip=1"))
		windowLength := 0
		if l.Algorithm.CountsByWindow() {
			windowLength = maxWindowNameBytes
		}
		longestKey := strings.Repeat("x", maxNameBytes-windowLength-len(start+":"))
		assert.Equal(t, start+":"+longestKey, nameOf(l, longestKey))
		hashedName := nameOf(l, longestKey+"y")
		assert.Len(t, hashedName, maxNameBytes-windowLength)
		assert.Regexp(t, "^"+regexp.QuoteMeta(start)+`#[\w-]{43}:x+$`, hashedName)
	}
}

func TestNameOfACounterEndsWithTheWindow(t *testing.T) {
	minute, quarter := newLimit(t, limit.Spec{Unit: limit.Minute}), newLimit(t, limit.Spec{Unit: limit.Millisecond, Multiplier: 250})
	assert.Equal(t, "name@1763784000", string(minute.AppendWindow([]byte("name"), 1_763_784_000_000_000)))
	assert.Equal(t, "name@1763784000250", string(quarter.AppendWindow([]byte("name"), 1_763_784_000_250_000)))
	assert.Len(t, minute.AppendWindow(nil, math.MaxInt64), maxWindowNameBytes)
}

func TestNoTwoCountersShareAName(t *testing.T) {
	k := keyspace(strings.Repeat("p", maxPrefix) + "{16383}")
	limits := []*limit.Limit{
		newLimit(t, limit.Spec{Unit: limit.Minute}), newLimit(t, limit.Spec{Unit: limit.Second, Multiplier: 6}),
		newLimit(t, limit.Spec{Unit: limit.Millisecond, Multiplier: 6050}),
		newLimit(t, limit.Spec{Unit: limit.Minute, Algorithm: limit.SlidingWindow}),
		newLimit(t, limit.Spec{Unit: limit.Year, Multiplier: 10, Algorithm: limit.TokenBucket, Scope: limit.Instance}),
	}
	nameOf := func(l *limit.Limit, key []byte, window int64) []byte {
		name := k.append(nil, l, key)
		if l.Algorithm.CountsByWindow() {
			name = l.AppendWindow(name, window*l.Period())
		}
		return name
	}
	counterByName := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.SampledFrom(limits).Draw(t, "limit")
		window := rapid.Int64Range(0, 30).Draw(t, "window")
		key := rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 300),
			rapid.Custom(func(t *rapid.T) []byte { // a key that looks like a name
				return nameOf(l, []byte(strings.Repeat(":", rapid.IntRange(0, 300).Draw(t, "n"))), window)
			}),
			rapid.Custom(func(t *rapid.T) []byte { // a key that looks like the end of a name
				return l.AppendWindow([]byte("k"), rapid.Int64Range(0, 30).Draw(t, "number")*l.Period())
			}),
		).Draw(t, "key")
		name := string(nameOf(l, key, window))
		counter := l.Tag() + "\x00" + string(key)
		if l.Algorithm.CountsByWindow() {
			counter += fmt.Sprint("\x00", window)
		}
		if other, ok := counterByName[name]; ok && other != counter {
			t.Fatalf("%q and %q share %q", other, counter, name)
		}
		counterByName[name] = counter
		if len(name) > maxNameBytes {
			t.Fatalf("%d bytes: %q", len(name), name)
		}
	})
}

func TestHashTagsAreSpreadEvenly(t *testing.T) {
	assert.Equal(t, 12739, hashSlot("123456789"), "as in the Redis Cluster specification (0x31C3)")
	for _, n := range []int{1, 3, 16, 64, maxPartitions} {
		for masters := 1; masters <= n; masters += max(1, n/5) {
			counts := make([]int, masters)
			for _, tag := range hashTags(n) {
				counts[hashSlot(strings.Trim(tag, "{}"))*masters/hashSlotCount]++
			}
			for _, c := range counts {
				assert.InDelta(t, float64(n)/float64(masters), c, 2, "%d partitions on %d masters", n, masters)
			}
		}
	}
}

// Other hash tags would have other counters, which start at 0.
func TestHashTagsNeverChange(t *testing.T) {
	assert.Equal(t, []string{"{3}", "{1}", "{0}"}, hashTags(3))
	assert.Equal(t, "{10} {3} {43} {11} {2} {42} {12} {1} {41} {13} {0} {40}", strings.Join(hashTags(12), " "))
}

func TestKeysAreSpreadOverTheShardsOfTheirRedis(t *testing.T) {
	cluster := Server{Kind: Cluster, URL: "127.0.0.1:1"}
	l, err := New(Options{Main: cluster, PerSecond: &cluster, Partitions: 3})
	require.NoError(t, err)
	defer l.Close()
	for unit, want := range map[limit.Unit][]int{limit.Minute: {0, 1, 2}, limit.Second: {3, 4, 5}} {
		shards := map[int]bool{}
		for i := range 100 {
			shards[l.ShardOf(&backend.Hit{Key: fmt.Append(nil, i), Limit: newLimit(t, limit.Spec{Unit: unit})})] = true
		}
		assert.Equal(t, want, slices.Sorted(maps.Keys(shards)))
	}
}

func TestNodeThatDoesNotKnowItsAddressHasTheHostOfTheURL(t *testing.T) {
	t.Parallel()
	instance := &redisInstance{name: "seed:1", address: address{kind: Cluster, nodes: []string{"seed:1"}}}
	for addr, want := range map[string]string{":7000": "seed:7000", "10.0.0.2:7000": "10.0.0.2:7000", "[2001:db8::2]:7000": "[2001:db8::2]:7000"} {
		node := goredis.NewClient(&goredis.Options{Addr: addr})
		node.Options().Addr = addr // NewClient completes an address without a host
		assert.Equal(t, want, instance.addressOf(newServer(node)))
		require.NoError(t, node.Close())
	}
}

func TestOnlyTheFailedMasterIsForgotten(t *testing.T) {
	l, err := New(Options{Main: Server{Kind: Cluster, URL: "127.0.0.1:1"}})
	require.NoError(t, err)
	defer l.Close()
	s := l.instances[0].client.(*servers)
	failed, healthy := newServer(&goredis.Client{}), newServer(&goredis.Client{})
	for _, master := range []*server{failed, healthy} {
		s.masters.Store(master.node, master)
	}
	isKnown := func(master *server) bool {
		_, ok := s.masters.Load(master.node)
		return ok
	}
	s.findServersAgain(nil)
	assert.True(t, isKnown(failed), "no server is named")
	s.findServersAgain(failed)
	assert.False(t, isKnown(failed))
	assert.True(t, isKnown(healthy))
	s.masters.Clear() // these clients have no connections that Close could close
}

func TestPrefixIsFoundInWholeAndShortenedNames(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("h", hashLength)
	for name, c := range map[string]struct{ isCounter, isUnclear bool }{
		"p:v1:tb60:shop|tenant=a":                      {isCounter: true},
		"p:v1:tb60:shop|tenant=a|path=/":               {isCounter: true},
		"p:v1:tb60:shop|tenant=ab":                     {},
		"p:v1:tb60:shop":                               {},
		"p:{3}v2:fw60:shop|tenant=a@60":                {isCounter: true},
		"p:v1:tb60#" + hash + ":shop|tenant=a|path=/":  {isCounter: true},
		"p:v1:tb60#" + hash + ":shop|tenant=a":         {isUnclear: true},
		"p:v1:tb60#" + hash + ":shop|ten":              {isUnclear: true},
		"p:v1:tb60#" + hash + ":bank":                  {},
		"p:v1:tb60#" + hash + ":bank|tenant=a|path=/a": {},
		"p:v1:tb60#" + hash:                            {},
		"p:v1:tb60#" + hash[1:]:                        {},
		"p:v1:tb60#" + hash + "xshop|tenant=a|path=/":  {},
		"v1:tb60:shop|tenant=a":                        {}, // of another program
	} {
		s := &prefixSearch{prefix: backend.KeyPrefix{Start: "shop|tenant=a"}, keyPrefix: "p:", counters: map[string]bool{}, unclearCounters: map[string]bool{}}
		hasRoom := s.add([]string{name})
		assert.Equal(t, c.isCounter, len(s.counters) == 1, name)
		assert.Equal(t, c.isCounter, len(s.keys) == 1, name)
		assert.Equal(t, c.isUnclear, len(s.unclearCounters) == 1, name)
		assert.Equal(t, !c.isCounter, hasRoom, "%s: the bound is 0 counters", name)
	}
}

// replyError is an error in a reply of Redis.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

func TestErrorCodeIsEmptyIfTheScriptMayHaveRun(t *testing.T) {
	for err, want := range map[error]string{
		replyError("NOSCRIPT No matching script."):    "NOSCRIPT",
		replyError("MOVED 1 127.0.0.1:1"):             "MOVED",
		replyError("READONLY You can't write"):        "READONLY",
		replyError("NOPERM this user"):                "NOPERM",
		errors.New("EOF"):                             "",
		context.DeadlineExceeded:                      "",
		fmt.Errorf("read: %w", replyError("LOADING")): "LOADING",
		replyError("ERR Script attempted to access a non local key in a cluster node script: 2266"): "TRYAGAIN",
	} {
		assert.Equal(t, want, errorCode(err), err)
	}
}

// A probe that does not charge would succeed on a read-only Redis.
func TestProbeChargesItsCounterInAnyCase(t *testing.T) {
	hit := newProbes(1).hit
	assert.Positive(t, hit.N)
	assert.True(t, hit.Limit.ChargeDenied)
	assert.False(t, hit.AllOrNone)
}

func TestCheckComparesClocks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lead, duration time.Duration
		want           string
	}{
		{0, 0, ""},
		{900 * time.Millisecond, 0, ""},
		{1500 * time.Millisecond, 2 * time.Second, ""}, // the real difference can be as small as 0.5 s
		{4 * time.Second, 2 * time.Second, "the clock of Redis is 4s ahead of the clock of this machine"},
		{5 * time.Second, 0, "the clock of Redis is 5s ahead of the clock of this machine"},
		{-time.Hour, 0, "the clock of Redis is 1h0m0s behind the clock of this machine"},
	} {
		check := serverCheck{partitionServer: partitionServer{server: &server{}}}
		check.checkClock()
		require.Empty(t, check.findings, "the clock of Redis is not known")
		end := microsSinceProcessStart()
		check.server.clock.add(end-c.duration.Microseconds(), end, time.Now().Add(c.lead-c.duration/2).UnixMicro())
		check.checkClock()
		var got []string
		for _, f := range check.findings {
			got = append(got, f.Text)
		}
		assert.Equal(t, c.want, strings.Join(got, ", "))
	}
}

func TestCheckNamesOldVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"4.0.14": "Redis has version 4.0.14", "5.0.0": "", "10.1.0": "", "unstable": "", "": ""} {
		check := serverCheck{options: &Options{}, instance: &redisInstance{address: address{kind: Single}}}
		check.checkInfo(map[string]string{"redis_version": version})
		got := ""
		for _, f := range check.findings {
			got += f.Text
		}
		assert.Equal(t, want, got, version)
	}
}

// A user without the right to run INFO still learns of a replica, a Cluster and an old version.
func TestCheckReadsHelloIfTheUserMayNotRunInfo(t *testing.T) {
	t.Parallel()
	hello, info := goredis.NewCmd(t.Context()), goredis.NewCmd(t.Context())
	hello.SetVal([]any{"server", "redis", "version", "4.0.14", "mode", "cluster", "role", "replica"})
	info.SetErr(replyError("NOPERM this user has no permissions to run the 'info' command"))
	fields := infoOf(hello, info)
	assert.Equal(t, "4.0.14", fields["redis_version"])
	assert.Equal(t, "slave", fields["role"], "as INFO names it")
	assert.Equal(t, "1", fields["cluster_enabled"])

	hello.SetErr(replyError("ERR unknown command 'HELLO'")) // before Redis 6
	info.SetErr(nil)
	info.SetVal("# Server\r\nredis_version:5.0.14\r\nrole:master\r\n")
	assert.Equal(t, "5.0.14", infoOf(hello, info)["redis_version"])
}

func TestOnlyAFindingAboutTheConnectionMeansUnreachable(t *testing.T) {
	t.Parallel()
	assert.True(t, connectionFinding(context.DeadlineExceeded).IsUnreachable())
	assert.Equal(t, adviceForSilence, connectionFinding(context.DeadlineExceeded).Advice, "a check waits longer than REDIS_TIMEOUT")
	assert.False(t, Finding{Check: CheckRights}.IsUnreachable())
}

func TestTimeoutIsLongEnoughForThreeRoundTrips(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for roundTrip, want := range map[time.Duration]time.Duration{0: 10 * ms, ms: 10 * ms, 10 * ms: 30 * ms, 10*ms + 1: 40 * ms, 20 * ms: 60 * ms} {
		assert.Equal(t, want, neededTimeout(roundTrip), roundTrip)
	}
	assert.False(t, isTooShort(50*ms, 25*ms), "two round trips fit")
	assert.True(t, isTooShort(50*ms-1, 25*ms))
}
