package redismodel_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/lua"
	"github.com/seed-81f232ab/rls/test/simulate/redismodel"
	"github.com/seed-81f232ab/rls/test/simulate/resp"
)

// takeScript is the script that rls sends.
var (
	takeScript = lua.Take(limit.AlgorithmNames()...)
	takeDigest = goredis.NewScript(takeScript).Hash()
)

// start is the time of the first hits, in microseconds since 1970. The test gives scripts
// the time, so start can differ from the clock of Redis.
const start = 1_900_000_000_000_000

var names = []string{"a", "b", "c"}

// commandGenerator draws the commands that rls sends and that its scripts use.
var commandGenerator = rapid.Custom(func(t *rapid.T) []string {
	name := rapid.SampledFrom(names).Draw(t, "key")
	number := func() string {
		return rapid.OneOf(
			rapid.Map(rapid.Int64Range(-5, 20), func(n int64) string { return strconv.FormatInt(n, 10) }),
			rapid.SampledFrom([]string{"9223372036854775807", "-9223372036854775808", "x", "", "1.5", " 1", "+1", "007", "-0"}),
		).Draw(t, "number")
	}
	place := func() string { return strconv.Itoa(rapid.IntRange(-6, 6).Draw(t, "place")) }
	ttl := func() string {
		return rapid.SampledFrom([]string{"100000", "31536000000", "0", "-1", "x", "9223372036854775807"}).Draw(t, "ttl")
	}
	scores := []string{"-3600000000000001", "-2", "0", "1", "3600000000000001", "x"} // rls stores no infinite score
	score := func() string { return rapid.SampledFrom(scores).Draw(t, "score") }
	member := func() string { return rapid.SampledFrom([]string{"m", "n", "x"}).Draw(t, "member") }
	switch rapid.IntRange(0, 26).Draw(t, "command") {
	case 0:
		return []string{"GET", name}
	case 1:
		return append([]string{"MGET"}, names...)
	case 2:
		return []string{"SET", name, number()}
	case 3:
		return []string{"SET", name, number(), "PX", ttl(), "NX"}
	case 4:
		return []string{"set", name, number(), "px", ttl()}
	case 5:
		return []string{"DEL", name, rapid.SampledFrom(names).Draw(t, "other key")}
	case 6:
		return []string{"INCRBY", name, number()}
	case 7:
		return []string{"INCR", name}
	case 8:
		return []string{"PEXPIRE", name, ttl()}
	case 9:
		return []string{"SETRANGE", name, place(), number()}
	case 10:
		return []string{"LLEN", name}
	case 11:
		return []string{"LRANGE", name, place(), place()}
	case 12:
		return []string{"LTRIM", name, place(), place()}
	case 13:
		return []string{"RPUSH", name, number(), number()}
	case 14:
		return rapid.SampledFrom([][]string{{"GET"}, {"NOSUCH", "x"}, {"SET", name, "1", "PX"}, {"SET", name, "1", "NX", "what"}, {"PING"}}).Draw(t, "wrong command")
	case 15:
		return []string{"ZADD", name, score(), member(), score(), member()}
	case 16:
		return []string{"ZREM", name, member(), member()}
	case 17:
		return []string{"ZSCORE", name, member()}
	case 18:
		bound := func() string {
			return rapid.SampledFrom([]string{"", "("}).Draw(t, "bound") + rapid.SampledFrom(append(scores, "inf", "-inf")).Draw(t, "score")
		}
		command := rapid.SampledFrom([]string{"ZRANGEBYSCORE", "ZREVRANGEBYSCORE"}).Draw(t, "order")
		return []string{command, name, bound(), bound(), "WITHSCORES", "LIMIT", place(), place()}
	case 19:
		return []string{"ZCARD", name}
	case 20:
		return []string{"HGET", name, member()}
	case 21:
		return []string{"HMGET", name, member(), member()}
	case 22:
		return []string{"HGETALL", name}
	case 23:
		return []string{"HSET", name, member(), number(), member(), number()}
	case 24:
		return []string{"HDEL", name, member(), member()}
	case 25:
		return []string{"HINCRBY", name, member(), number()}
	case 26:
		return []string{"EXPIRE", name, rapid.SampledFrom([]string{"100", "31536000", "0", "-1", "x"}).Draw(t, "ttl in seconds")}
	}
	return scriptCommand(t, name)
})

// holdMicros is the time after which a hold expires, and the window of the other algorithms, in microseconds.
// anonymousHold stands for the anonymous hold that was taken now.
const (
	holdMicros    = 1_000_000
	anonymousHold = "anonymous"
)

// scriptKeys returns the keys that only scripts with the algorithm use. In rls, the name of a key has the algorithm, so
// no algorithm reads the state of another one.
func scriptKeys(algorithm string) []string { return []string{"s1/" + algorithm, "s2/" + algorithm} }

// scriptCommand draws a call of the script with one to four hits.
func scriptCommand(t *rapid.T, name string) []string {
	algorithm := rapid.SampledFrom(limit.AlgorithmNames()).Draw(t, "algorithm")
	count := rapid.IntRange(1, 4).Draw(t, "hits")
	keys, isDistinct := []string{}, int64(1)
	ownKeys := scriptKeys(algorithm)
	if algorithm == limit.AlgorithmNames()[slices.Index(names, name)] {
		ownKeys = append(ownKeys, name)
	}
	for range count {
		key := rapid.SampledFrom(ownKeys).Draw(t, "script key")
		if slices.Contains(keys, key) {
			isDistinct = 0
		}
		keys = append(keys, key)
	}
	now := int64(start) + rapid.OneOf(rapid.Int64Range(0, 3_000_000), rapid.SampledFrom([]int64{0, holdMicros})).Draw(t, "now")
	refundableMillis := rapid.SampledFrom([]int64{0, 60_000}).Draw(t, "refundable")
	b := msgp.AppendArrayHeader(nil, uint32(5+5+2*count))
	for _, n := range []int64{now, 1_000_000_000, isDistinct, refundableMillis, 1} {
		b = msgp.AppendInt64(b, n)
	}
	b = msgp.AppendString(b, algorithm)
	maxHits := rapid.Int64Range(0, 6).Draw(t, "max")
	for _, n := range []int64{maxHits, holdMicros, maxHits + rapid.Int64Range(0, 2).Draw(t, "burst"), rapid.Int64Range(0, 15).Draw(t, "mode")} {
		b = msgp.AppendInt64(b, n)
	}
	for range count {
		b = msgp.AppendInt64(b, 1)
		hits := rapid.Int64Range(-2, 4).Draw(t, "n")
		hold := ""
		if algorithm == limit.Concurrency.String() {
			hold = rapid.SampledFrom([]string{"", "", "1", "2", "3", anonymousHold}).Draw(t, "hold")
		}
		switch {
		case hold == anonymousHold && hits < 0:
			b = msgp.AppendInt64(msgp.AppendInt64(msgp.AppendArrayHeader(b, 2), hits), now+holdMicros)
		case hold != "" && hold != anonymousHold:
			b = msgp.AppendString(msgp.AppendInt64(msgp.AppendArrayHeader(b, 2), hits), hold)
		default:
			b = msgp.AppendInt64(b, hits)
		}
	}
	groups := ""
	if rapid.Bool().Draw(t, "grouped") {
		g := msgp.AppendArrayHeader(nil, 2)
		firstGroup := rapid.Int64Range(0, int64(count)).Draw(t, "first group")
		groups = string(msgp.AppendInt64(msgp.AppendInt64(g, firstGroup), int64(count)-firstGroup))
	}
	args := append([]string{"EVALSHA", takeDigest, strconv.Itoa(count)}, keys...)
	return append(args, string(b), groups)
}

// fixture sends each command to a real Redis and to the model.
type fixture struct {
	server *goredis.Client
	model  *goredis.Client
}

// newFixture returns a fixture with a client of each. The model answers through the same
// protocol.
func newFixture(t *testing.T) *fixture {
	model := redismodel.New()
	t.Cleanup(model.Close)
	client := goredis.NewClient(&goredis.Options{
		Protocol: 2, PoolSize: 1, DisableIdentity: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			clientEnd, serverEnd := net.Pipe()
			go serve(serverEnd, model)
			return clientEnd, nil
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	return &fixture{redistest.Start(t).Client(t), client}
}

func serve(conn net.Conn, model *redismodel.Server) {
	reader := bufio.NewReader(conn)
	for {
		args, err := resp.ReadCommand(reader)
		if err != nil {
			return
		}
		if _, err := conn.Write(resp.AppendReply(nil, model.Do(time.Now(), args))); err != nil {
			return
		}
	}
}

// reply returns the reply to a command. It keeps only the code of an error.
func reply(c *goredis.Client, args []string) any {
	command := make([]any, len(args))
	for i, arg := range args {
		command[i] = arg
	}
	value, err := c.Do(context.Background(), command...).Result()
	var redisErr goredis.Error
	if errors.As(err, &redisErr) && !errors.Is(err, goredis.Nil) {
		code, _, _ := strings.Cut(err.Error(), " ")
		return "error " + code
	}
	if err != nil && !errors.Is(err, goredis.Nil) {
		return err
	}
	return withoutTypes(value)
}

// withoutTypes returns a reply of RESP3 as RESP2 has it. RESP3 has a type for scores, and puts a
// member and its score into a list.
func withoutTypes(value any) any {
	switch v := value.(type) {
	case float64:
		return strconv.FormatFloat(v, 'g', 17, 64)
	case map[any]any: // a hash
		var fields []string
		for field, text := range v {
			fields = append(fields, field.(string)+" "+text.(string))
		}
		return withFieldsSorted(fields)
	case []any:
		flatReply := []any{}
		for _, element := range v {
			if pair, ok := element.([]any); ok {
				flatReply = append(flatReply, withoutTypes(pair).([]any)...)
			} else {
				flatReply = append(flatReply, withoutTypes(element))
			}
		}
		return flatReply
	}
	return value
}

// withFieldsSorted returns the fields and values of a hash in the order of the fields.
func withFieldsSorted(fields []string) any {
	slices.Sort(fields)
	flatReply := []any{}
	for _, field := range fields {
		name, text, _ := strings.Cut(field, " ")
		flatReply = append(flatReply, name, text)
	}
	return flatReply
}

// ttlSlack is the time in milliseconds by which times to live can differ, as each server reads
// the clock itself and the machine may be busy between the two reads.
const ttlSlack = 60_000

// The keys have the same values, and the same times to live, after the same commands.
func TestModelAnswersLikeRedis(t *testing.T) {
	fixture := newFixture(t)
	for _, c := range []*goredis.Client{fixture.server, fixture.model} {
		require.Equal(t, takeDigest, reply(c, []string{"SCRIPT", "LOAD", takeScript}))
	}
	allKeys := slices.Clone(names)
	for _, algorithm := range limit.AlgorithmNames() {
		allKeys = append(allKeys, scriptKeys(algorithm)...)
	}
	rapid.Check(t, func(t *rapid.T) {
		for _, c := range []*goredis.Client{fixture.server, fixture.model} {
			reply(c, append([]string{"DEL"}, allKeys...))
		}
		for range rapid.IntRange(1, 30).Draw(t, "commands") {
			args := commandGenerator.Draw(t, "command")
			want, got := reply(fixture.server, args), reply(fixture.model, args)
			require.Equal(t, want, got, "reply to %.100q", args)
			if args[0] == "EVALSHA" {
				require.NotEqual(t, "error ERR", want, "the arguments of the script must be valid: %.100q", args)
			}
			for _, name := range allKeys {
				if got, want := reply(fixture.model, []string{"GET", name}), reply(fixture.server, []string{"GET", name}); want == "error WRONGTYPE" {
					for _, read := range [][]string{{"LRANGE", name, "0", "-1"}, {"HGETALL", name}, {"ZRANGEBYSCORE", name, "-inf", "+inf", "WITHSCORES"}} {
						require.Equal(t, reply(fixture.server, read), reply(fixture.model, read), "%s after %.100q", read, args)
					}
				} else {
					require.Equal(t, want, got, "key %s after %.100q", name, args)
				}
				ttl := []string{"PTTL", name}
				require.InDelta(t, reply(fixture.server, ttl), reply(fixture.model, ttl), ttlSlack, "time to live of %s after %.100q", name, args)
			}
		}
	})
}

func TestScriptFlushForgetsScripts(t *testing.T) {
	fixture := newFixture(t)
	for _, args := range [][]string{
		{"EVALSHA", takeDigest, "0"},
		{"EVAL", "return 1", "0"},
		{"EVALSHA", goredis.NewScript("return 1").Hash(), "0"},
		{"EVAL", "local a, b = 1, 2 a, b = b, a return {a, b}", "0"},
		{"EVAL", "return redis.call('NOSUCH')", "0"},
		{"EVAL", "return redis.pcall('INCRBY', KEYS[1], 'x')", "1", "a"},
		{"EVAL", "return no", "1"},
		{"SCRIPT", "FLUSH"},
		{"EVALSHA", goredis.NewScript("return 1").Hash(), "0"},
	} {
		require.Equal(t, reply(fixture.server, args), reply(fixture.model, args), "%q", args)
	}
}

// An expired key is gone, for commands and for scripts.
func TestKeyExpiresOneMillisecondAfterItsTTL(t *testing.T) {
	s, now := redismodel.New(), time.Now()
	t.Cleanup(s.Close)
	require.Equal(t, resp.Status("OK"), s.Do(now, []string{"SET", "a", "1", "PX", "50"}))
	require.Equal(t, "1", s.Do(now.Add(50*time.Millisecond), []string{"GET", "a"}), "Redis expires a key after the millisecond of its end")
	require.Nil(t, s.Do(now.Add(51*time.Millisecond), []string{"GET", "a"}))
	require.Equal(t, int64(3), s.Do(now.Add(51*time.Millisecond), []string{"INCRBY", "a", "3"}))
}
