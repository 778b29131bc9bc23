package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/lua"
)

func TestCodesAreThoseOfTheScript(t *testing.T) {
	for _, a := range limit.Algorithms() {
		assert.Equal(t, a.String(), lua.Names()[a])
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name string
		in   Server
		want address
	}{
		{"host and port", Server{URL: "a:1"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}}},
		{"IPv6", Server{URL: "[::1]:1"}, address{kind: Single, network: "tcp", nodes: []string{"[::1]:1"}}},
		{"any case", Server{Kind: "SINGLE", URL: "a:1"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}}},
		{"path", Server{URL: "/run/redis.sock"}, address{kind: Single, network: "unix", nodes: []string{"/run/redis.sock"}}},
		{"relative path", Server{URL: "redis.sock", SocketType: "unix"}, address{kind: Single, network: "unix", nodes: []string{"redis.sock"}}},
		{"unix URL", Server{URL: "unix://:p@/run/redis.sock?db=2"}, address{kind: Single, network: "unix", nodes: []string{"/run/redis.sock"}, db: 2, login: login{"", "p"}}},
		{"redis URL", Server{URL: "redis://u:p%40@a:1/3"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, db: 3, login: login{"u", "p@"}}},
		{"query", Server{URL: "redis://a:1?username=u&password=p&db=4"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, db: 4, login: login{"u", "p"}}},
		{"default port", Server{URL: "redis://a"}, address{kind: Single, network: "tcp", nodes: []string{"a:6379"}}},
		{"password", Server{URL: "a:1", Auth: "p"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"", "p"}}},
		{"user and password", Server{URL: "a:1", Auth: "u:p:q"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"u", "p:q"}}},
		{"auth wins", Server{URL: "redis://u:p@a:1", Auth: "q"}, address{kind: Single, network: "tcp", nodes: []string{"a:1"}, login: login{"u", "q"}}},
		{"cluster", Server{Kind: Cluster, URL: "redis://u:p@a:1, b:2", SocketType: "unix"}, address{kind: Cluster, network: "tcp", nodes: []string{"a:1", "b:2"}, login: login{"u", "p"}}},
		{"sentinels", Server{Kind: Sentinel, URL: "m,redis://u:p@a:1,b:2", Auth: "q"}, address{kind: Sentinel, network: "tcp", master: "m", nodes: []string{"a:1", "b:2"}, login: login{"", "q"}, sentinels: login{"u", "p"}}},
		{"sentinel auth", Server{Kind: Sentinel, URL: "m,a:1", SentinelAuth: "u:p"}, address{kind: Sentinel, network: "tcp", master: "m", nodes: []string{"a:1"}, sentinels: login{"u", "p"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse(c.in)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
	secure, err := parse(Server{URL: "rediss://a:1"})
	require.NoError(t, err)
	assert.NotNil(t, secure.tls)
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		in   Server
		says string
	}{
		{Server{}, "missing"},
		{Server{URL: "a"}, "host:port"},
		{Server{URL: "a:b"}, "65535"},
		{Server{URL: "a:0"}, "65535"},
		{Server{URL: "a:1", Kind: "other"}, "single, sentinel or cluster"},
		{Server{URL: "a:1", SocketType: "udp"}, "tcp or unix"},
		{Server{URL: "a:1", PoolSize: -1}, "pool size"},
		{Server{URL: "http://a:1"}, "redis://"},
		{Server{URL: "user:secret@a:1"}, "redis://user:password@host:port"},
		{Server{URL: "redis://user:secret%zz@a:1"}, "escaped"},
		{Server{URL: "redis://user:sec/ret@a:1"}, "escaped"},
		{Server{URL: "redis://a:1/x"}, "database"},
		{Server{URL: "m", Kind: Sentinel}, "mymaster,host:26379"},
		{Server{URL: ",a:1", Kind: Sentinel}, "mymaster,host:26379"},
		{Server{URL: "a:1,b", Kind: Cluster}, "node 2"},
		{Server{URL: "redis://a:1/2", Kind: Cluster}, "database"},
		{Server{URL: "unix:///a", Kind: Cluster}, "unix://"},
	} {
		_, err := parse(c.in)
		if assert.ErrorContains(t, err, c.says, c.in.URL) {
			assert.NotContains(t, err.Error(), "secret")
			assert.NotContains(t, err.Error(), "sec/ret")
		}
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	server := Server{URL: "127.0.0.1:1"}
	for _, o := range []Options{
		{Main: server, Partitions: -1},
		{Main: server, MaxHits: maxCall + 1},
		{Main: server, Trips: -1},
		{Main: server, Timeout: 1},
		{Main: server, Jitter: -1},
		{Main: server, KeyPrefix: strings.Repeat("x", 65)},
		{Main: Server{Kind: Cluster, URL: "127.0.0.1:1"}, KeyPrefix: "{x}"},
		{Main: server, PerSecond: &Server{}},
		{},
	} {
		_, err := New(o)
		assert.Error(t, err, "%+v", o)
	}
}

func TestBudgetLeavesACallerTimeToBeTold(t *testing.T) {
	now := time.Now()
	l := &Limiter{options: Options{Timeout: 50 * time.Millisecond}}
	assert.Equal(t, 50*time.Millisecond, l.budget(t.Context(), now))
	for within, want := range map[time.Duration]time.Duration{
		time.Second:           50 * time.Millisecond,
		20 * time.Millisecond: 15 * time.Millisecond,
	} {
		ctx, cancel := context.WithDeadline(t.Context(), now.Add(within))
		defer cancel()
		assert.Equal(t, want, l.budget(ctx, now))
	}
}

func TestNamesOfKeys(t *testing.T) {
	k := keys{head: "rls:{3}" + layout}
	assert.Equal(t, "rls:{3}v1:fw60:shop|ip=1", string(k.append(nil, "fw60", []byte("shop|ip=1"))))
	longest := strings.Repeat("x", maxKey-len("rls:{3}v1:fw60:"))
	assert.Equal(t, "rls:{3}v1:fw60:"+longest, string(k.append(nil, "fw60", []byte(longest))))
	hashed := string(k.append(nil, "fw60", []byte(longest+"y")))
	assert.Len(t, hashed, maxKey)
	assert.Regexp(t, `^rls:\{3\}v1:fw60#[\w-]{43}:x+$`, hashed)
}

func TestNamesAreUnambiguous(t *testing.T) {
	k := keys{head: strings.Repeat("p", maxPrefix) + "{16383}" + layout}
	seen := map[string]string{}
	rapid.Check(t, func(t *rapid.T) {
		tag := rapid.SampledFrom([]string{"fw60", "fw6", "sw60", "tb315360000i"}).Draw(t, "tag")
		key := rapid.OneOf(
			rapid.SliceOfN(rapid.Byte(), 0, 300),
			rapid.Custom(func(t *rapid.T) []byte { // what another name looks like
				return k.append(nil, tag, []byte(strings.Repeat(":", rapid.IntRange(0, 300).Draw(t, "n"))))
			}),
		).Draw(t, "key")
		name := string(k.append(nil, tag, key))
		whose := tag + "\x00" + string(key)
		if other, ok := seen[name]; ok && other != whose {
			t.Fatalf("%q and %q share %q", other, whose, name)
		}
		seen[name] = whose
		if len(name) > maxKey {
			t.Fatalf("%d bytes: %q", len(name), name)
		}
	})
}

func TestHashTagsAreSpreadEvenly(t *testing.T) {
	assert.Equal(t, 12739, slot("123456789"), "as in the Redis Cluster specification (0x31C3)")
	for _, n := range []int{1, 3, 16, 64, maxPartitions} {
		for masters := 1; masters <= n; masters += max(1, n/5) {
			counts := make([]int, masters)
			for _, tag := range hashTags(n) {
				counts[slot(strings.Trim(tag, "{}"))*masters/slots]++
			}
			for _, c := range counts {
				assert.InDelta(t, float64(n)/float64(masters), c, 2, "%d partitions on %d masters", n, masters)
			}
		}
	}
}

func TestMessagePack(t *testing.T) {
	numbers := []int64{0, 1, 127, 128, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64, -1, -32, -33, math.MinInt64}
	for range 1000 {
		numbers = append(numbers, rand.Int64()>>rand.IntN(64), -rand.Int64()>>rand.IntN(64))
	}
	b := appendArray(nil, len(numbers))
	for _, n := range numbers {
		b = appendInt(b, n)
	}
	r := reader{rest: string(b)}
	require.Equal(t, len(numbers), r.array())
	for _, n := range numbers {
		assert.Equal(t, n, r.int())
	}
	assert.False(t, r.failed)
	assert.Empty(t, r.rest)
}

func FuzzReadingNeverPanics(f *testing.F) {
	f.Add("\x94\x01\xcd\x00\x01\xd3")
	f.Fuzz(func(t *testing.T, s string) {
		r := reader{rest: s}
		for n := r.array(); n > 0 && !r.failed; n-- {
			r.int()
			r.string()
		}
	})
}

// said is an error that Redis replied with.
type said string

func (s said) Error() string { return string(s) }
func (said) RedisError()     {}

func TestRefusalsAreToldFromWhatMayHaveBeenExecuted(t *testing.T) {
	for err, want := range map[error]string{
		said("NOSCRIPT No matching script."):    "NOSCRIPT",
		said("MOVED 1 127.0.0.1:1"):             "MOVED",
		said("READONLY You can't write"):        "READONLY",
		said("NOPERM this user"):                "NOPERM",
		errors.New("EOF"):                       "",
		context.DeadlineExceeded:                "",
		fmt.Errorf("read: %w", said("LOADING")): "LOADING",
		said("ERR Script attempted to access a non local key in a cluster node script: 2266"): "TRYAGAIN",
	} {
		assert.Equal(t, want, refusal(err), err)
	}
}
