package lua_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/seed-81f232ab/rls/internal/testkit/redistest"
	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/lua"
)

// jitter keeps keys alive while a test uses times that differ from the clock of Redis.
const jitter = 1000 * time.Hour

func TestEachAlgorithmHasAScript(t *testing.T) {
	want := limit.AlgorithmNames()
	files, err := fs.Glob(os.DirFS("."), "*.lua")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_admit.lua") })
	assert.ElementsMatch(t, append([]string{"packed.lua", "packed_step.lua", "slow_path.lua", "take.lua"}, addSuffix(want, ".lua")...), files)
}

// update makes TestWholeScriptIsWrittenForReaders write the file.
var update = flag.Bool("update", false, "write testdata")

func TestWholeScriptIsWrittenForReaders(t *testing.T) {
	const file = "testdata/take.lua.golden"
	script := lua.Take(limit.AlgorithmNames()...)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(script), 0o644))
	}
	golden, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, script, string(golden), "run: go test ./lua -run WrittenForReaders -update")
}

func addSuffix(names []string, suffix string) []string {
	names = slices.Clone(names)
	for i := range names {
		names[i] += suffix
	}
	return names
}

// hit is one hit of a call of take.
type hit struct {
	key   string
	limit *limit.Limit
	n     int64
	hold  string // the id of a hold, or empty

	refundedExpiry int64 // the expiry of the anonymous hold that a refund ends; 0 for other hits

	allOrNone  bool
	shadow     bool   // the hit is in shadow mode; only with allOrNone
	refundable bool   // the group of the hit has hits in other scripts too; only with allOrNone
	script     string // the name of the script; empty for the script of the algorithm
}

// answer is the reply of take to one hit.
type answer struct {
	limit.Result
	mayEndEarly bool
	err         string
}

// redis is a Redis that has the script.
type redis struct {
	t      testing.TB
	client *goredis.Client
	prefix string
	sha    string
}

func openRedis(t testing.TB) *redis {
	db := redistest.Open(t)
	r := &redis{t: t, client: db.Client(t), prefix: db.Prefix}
	var err error
	r.sha, err = r.client.ScriptLoad(context.Background(), lua.Take(limit.AlgorithmNames()...)).Result()
	require.NoError(t, err)
	t.Cleanup(func() { db.RequireAllExpire(t) })
	return r
}

// take calls the script at now, in microseconds. With a now of 0, the script uses the clock of Redis.
func (r *redis) take(now int64, groups []int64, hits ...hit) []answer {
	r.t.Helper()
	reply, err := r.client.Do(context.Background(), r.buildArgs(now, groups, hits)...).Text()
	require.NoError(r.t, err)
	return r.decode(reply, hits)
}

func (r *redis) buildArgs(now int64, groups []int64, hits []hit) []any {
	args := []any{"EVALSHA", r.sha, len(hits)}
	var limitValues, hitValues []any
	limitNumbers := map[[5]any]int64{} // the place of a limit among the limits, from 1
	for _, h := range hits {
		args = append(args, r.prefix+h.key)
		period := h.limit.Period()
		if h.limit.Algorithm.CountsByWindow() {
			period = timeToWindowEnd(h.limit, now)
		}
		values := [5]any{cmp.Or(h.script, h.limit.Algorithm.String()), h.limit.Max(), period, h.limit.Capacity(), int64(0)}
		if h.limit.HasBurst() {
			values[3] = -h.limit.Capacity()
		}
		switch {
		case h.allOrNone:
			values[4] = int64(2)
			if h.shadow {
				values[4] = int64(2 + 4)
			}
			if h.refundable {
				values[4] = values[4].(int64) + 8
			}
		case h.limit.ChargeDenied:
			values[4] = int64(1)
		}
		if limitNumbers[values] == 0 {
			limitNumbers[values] = int64(len(limitNumbers) + 1)
			limitValues = append(limitValues, values[:]...)
		}
		var n any = h.n
		if h.hold != "" {
			n = []any{h.n, h.hold}
		}
		if h.refundedExpiry != 0 {
			n = []any{h.n, h.refundedExpiry}
		}
		hitValues = append(hitValues, limitNumbers[values], n)
	}
	packedGroups := ""
	if groups != nil {
		var sizes []any
		for _, n := range groups {
			sizes = append(sizes, n)
		}
		packedGroups = pack(sizes...)
	}
	keysDiffer, keys := int64(1), map[string]bool{}
	for _, h := range hits {
		if keys[h.key] {
			keysDiffer = 0
		}
		keys[h.key] = true
	}
	headValues := []any{now, jitter.Milliseconds(), keysDiffer, int64(2000), int64(len(limitNumbers))}
	return append(args, pack(slices.Concat(headValues, limitValues, hitValues)...), packedGroups)
}

// timeToWindowEnd returns the time until the window of l ends, in microseconds. A now of 0 is the
// time of this process.
func timeToWindowEnd(l *limit.Limit, now int64) int64 {
	if now == 0 {
		now = time.Now().UnixMicro()
	}
	return l.Period() - now%l.Period()
}

func (r *redis) decode(reply string, hits []hit) []answer {
	r.t.Helper()
	size, unread, err := msgp.ReadArrayHeaderBytes([]byte(reply))
	require.NoError(r.t, err)
	readNumber := func() (n int64) {
		n, unread, err = msgp.ReadInt64Bytes(unread)
		require.NoError(r.t, err)
		return n
	}
	answers := make([]answer, len(hits))
	for i := range answers {
		spent, reset, retry := readNumber(), readNumber(), readNumber()
		if answers[i].mayEndEarly = reset < 0; answers[i].mayEndEarly {
			reset = -1 - reset
		}
		answers[i].Result = limit.Result{
			Allowed: retry == 0 || retry <= retryOfRenewal, HoldExists: retry == retryOfRenewal, Remaining: hits[i].limit.Capacity() - spent, ResetAfter: reset, RetryAfter: retry,
		}
		if retry <= retryOfRenewal {
			answers[i].RetryAfter = retryOfRenewal - retry
		}
	}
	readNumber() // the time
	for errorValues := int(size) - 3*len(hits) - 1; errorValues > 0; errorValues -= 2 {
		i := readNumber()
		answers[i-1].err, unread, err = msgp.ReadStringBytes(unread)
		require.NoError(r.t, err)
	}
	require.Empty(r.t, unread)
	return answers
}

// retryOfRenewal is the retry time in the reply to a hit that has renewed its hold.
const retryOfRenewal = -2

// pack returns a MessagePack array of the values: integers, strings, and arrays of such values.
func pack(values ...any) string { return string(appendArray(nil, values)) }

func appendArray(b []byte, values []any) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(values)))
	for _, v := range values {
		switch v := v.(type) {
		case string:
			b = msgp.AppendString(b, v)
		case []any:
			b = appendArray(b, v)
		default:
			b = msgp.AppendInt64(b, v.(int64))
		}
	}
	return b
}

// requireKeys requires that each key with a nonzero state exists and expires. A key with a zero state
// must be absent, but the key of a fixed window can exist.
func (r *redis) requireKeys(states map[string]*limit.State, a limit.Algorithm) {
	r.t.Helper()
	ttls := map[string]*goredis.DurationCmd{}
	_, err := r.client.Pipelined(context.Background(), func(p goredis.Pipeliner) error {
		for key := range states {
			ttls[key] = p.PTTL(context.Background(), r.prefix+key)
		}
		return nil
	})
	require.NoError(r.t, err)
	for key, s := range states {
		switch ttl := ttls[key].Val(); {
		case !s.IsZero() || a.CountsByWindow() && ttl != -2:
			require.Positive(r.t, ttl, "the time to live of %s", key)
		default:
			require.Equal(r.t, time.Duration(-2), ttl, "%s is absent", key)
		}
	}
}

// Each trace has limits with the same tag. A test changes the limit of a counter from one of them to another, as a reload does.
var traces = []struct {
	name       string
	period     limit.Unit
	multiplier uint32
	maxHits    []uint32
	bursts     []uint32
}{
	{"a small limit", limit.Second, 1, []uint32{5}, []uint32{0}},
	{"a limit of 1", limit.Minute, 1, []uint32{1}, []uint32{0, 3}},
	{"a small limit that changes", limit.Minute, 7, []uint32{10, 3, 0, 17}, []uint32{0, 5, 40}},
	{"rates with fractions of a microsecond", limit.Hour, 3, []uint32{7, 999_983, 1_000_003}, []uint32{0, 123_457}},
	{"the largest limits", limit.Day, 365, []uint32{math.MaxUint32, 4_000_000_007, 3_999_999_979}, []uint32{0, 2_147_483_647}},
	{"the longest window", limit.Year, 10, []uint32{math.MaxUint32, 12_345_678, 3}, []uint32{0}},
}

func TestScriptsAnswerAsPackageLimit(t *testing.T) {
	steps := 240
	for _, a := range limit.Algorithms() {
		for _, trace := range traces {
			for _, chargeCase := range []string{"denied hits not charged", "denied hits charged", "a change of charge_denied"} {
				t.Run(fmt.Sprintf("%s/%s/%s", a, trace.name, chargeCase), func(t *testing.T) {
					t.Parallel()
					for seed := range uint64(3) {
						rnd := rand.New(rand.NewPCG(seed, 7))
						var limits []*limit.Limit
						for _, requests := range trace.maxHits {
							for _, burst := range trace.bursts {
								for _, chargeDenied := range []bool{false, true} {
									if !a.UsesBurst() {
										burst = 0
									}
									if chargeCase == "denied hits not charged" && chargeDenied || chargeCase == "denied hits charged" && !chargeDenied {
										continue
									}
									l, err := limit.New(limit.Spec{Algorithm: a, Requests: requests, Unit: trace.period, Multiplier: trace.multiplier, Burst: burst, ChargeDenied: chargeDenied})
									if err != nil { // the burst would refill too slowly
										continue
									}
									limits = append(limits, l)
								}
							}
						}
						r := openRedis(t)
						compareAnswers(t, r, rnd, limits, steps, 1)
						compareAnswers(t, r, rnd, limits, steps/4, 5)
					}
				})
			}
		}
	}
}

// compareAnswers compares the answers of Redis with the answers of package limit. A step is a call of up to maxHits hits on
// two counters. The limit changes now and then.
func compareAnswers(t *testing.T, r *redis, rnd *rand.Rand, limits []*limit.Limit, steps, maxHits int) {
	period := limits[0].Period()
	now := time.Now().UnixMicro()
	states := map[string]*limit.State{}
	currentLimit, restarts := limits[0], 0
	for step := range steps {
		if now += clockStep(rnd, period); now > year2100 {
			r.requireKeys(states, currentLimit.Algorithm)
			now, restarts, states = time.Now().UnixMicro(), restarts+1, map[string]*limit.State{}
		}
		var hits []hit
		for range 1 + rnd.IntN(maxHits) {
			if rnd.IntN(10) == 0 {
				currentLimit = limits[rnd.IntN(len(limits))]
			}
			key := fmt.Sprintf("%d:%d:%d:%s", steps, restarts, rnd.IntN(2), currentLimit.Tag())
			if currentLimit.Algorithm.CountsByWindow() {
				key = fmt.Sprintf("%s@%d", key, now/period)
			}
			hits = append(hits, hit{key: key, limit: currentLimit, n: randomHits(rnd, currentLimit)})
		}
		got := r.take(now, nil, hits...)
		chargedStates := map[string]*limit.State{}
		for i, h := range hits {
			s := states[h.key]
			if s == nil {
				s = &limit.State{}
				states[h.key] = s
			}
			chargedStates[h.key] = s
			oldState := *s
			want := h.limit.TakeHold(s, now, h.n, h.hold)
			require.Empty(t, got[i].err)
			require.Equal(t, want, got[i].Result, "step %d, hit %d of %d: %d hits at %d of %v, charge denied %v, state %+v", step, i, len(hits), h.n, now, h.limit, h.limit.ChargeDenied, oldState)
		}
		r.requireKeys(chargedStates, currentLimit.Algorithm)
	}
	r.requireKeys(states, currentLimit.Algorithm)
}

// year2100 is the time after which a trace starts again at the present time, because microseconds exceed 2^53 in 2255.
const year2100 = 4_102_444_800_000_000

// clockStep returns the time until the next call. It is usually short, sometimes longer than a
// window, and sometimes negative.
func clockStep(rnd *rand.Rand, period int64) int64 {
	switch rnd.IntN(12) {
	case 0, 1:
		return 0
	case 2:
		return rnd.Int64N(2*period) + 1
	case 3:
		return period - 1 + rnd.Int64N(3)
	case 4:
		return -rnd.Int64N(period/4 + 1)
	case 5:
		if rnd.IntN(8) == 0 {
			return -period - rnd.Int64N(min(period, 1e13))
		}
		return 1
	default:
		return rnd.Int64N(period/8 + 1)
	}
}

func randomHits(rnd *rand.Rand, l *limit.Limit) int64 {
	m := max(l.Capacity(), 1)
	switch rnd.IntN(10) {
	case 0:
		return 0
	case 1:
		return -rnd.Int64N(m) - 1
	case 2:
		return m + rnd.Int64N(3) - 1
	case 3:
		return []int64{-limit.MaxHits, limit.MaxHits}[rnd.IntN(2)]
	case 4, 5:
		return 1
	default:
		return rnd.Int64N(m/3+1) + 1
	}
}

func newMember(score float64, member string) goredis.Z {
	return goredis.Z{Score: score, Member: member}
}

func newLimit(t testing.TB, s limit.Spec) *limit.Limit {
	t.Helper()
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

func TestNowOfZeroUsesTheClockOfRedis(t *testing.T) {
	r := openRedis(t)
	for _, a := range limit.Algorithms() {
		l := newLimit(t, limit.Spec{Algorithm: a, Requests: 2, Unit: limit.Day})
		h := hit{key: "clock" + l.Tag(), limit: l, n: 2}
		assert.True(t, r.take(0, nil, h)[0].Allowed)
		got := r.take(0, nil, h)[0]
		assert.False(t, got.Allowed)
		assert.Positive(t, got.RetryAfter)
		assert.LessOrEqual(t, got.RetryAfter, 2*l.Period())
	}
	windowLimit := newLimit(t, limit.Spec{Requests: 2, Unit: limit.Day})
	timeLeft := windowLimit.Period() - time.Now().UnixMicro()%windowLimit.Period()
	got := r.take(0, nil, hit{key: "aligned", limit: windowLimit, n: 1})[0]
	assert.InDelta(t, timeLeft, got.ResetAfter, 10e6, "windows are aligned to the epoch")
}

func TestTimeToLiveIsResetAfterPlusJitter(t *testing.T) {
	r := openRedis(t)
	now := time.Now().UnixMicro()
	for _, a := range limit.Algorithms() {
		l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour})
		h := hit{key: "ttl" + l.Tag(), limit: l, n: 3}
		for range 3 {
			now += 1e6
			got := r.take(now, nil, h)[0]
			ttl, err := r.client.PTTL(t.Context(), r.prefix+h.key).Result()
			require.NoError(t, err)
			want := jitter + time.Duration(got.ResetAfter)*time.Microsecond
			if a == limit.FixedWindow { // late hits can still charge the window
				want += 10 * time.Second
			}
			assert.InDelta(t, want.Seconds(), ttl.Seconds(), 10, "%s", a)
		}
	}
}

func TestForeignValueFailsOnlyItsOwnHits(t *testing.T) {
	r := openRedis(t)
	ctx, now := t.Context(), time.Now().UnixMicro()
	require.NoError(t, r.client.SAdd(ctx, r.prefix+"set", "member").Err())
	require.NoError(t, r.client.Expire(ctx, r.prefix+"set", time.Hour).Err())
	foreignStrings := map[string]string{"text": "not a counter", "16 bytes": "not a counter...", "24 bytes": "not a counter either....", "fractions": "\x00\x00\x00\x00\x00\x00\xf8\x3f\x00\x00\x00\x00\x00\x00\xf8\x3f", "not numbers": strings.Repeat("\xff", 24)}
	for key, value := range foreignStrings {
		require.NoError(t, r.client.Set(ctx, r.prefix+key, value, time.Hour).Err())
	}
	foreignLists := map[string][]any{"even list": {1, 2}, "list of words": {"not", "a", "counter"}, "one word": {"counter"}}
	for key, values := range foreignLists {
		require.NoError(t, r.client.RPush(ctx, r.prefix+key, values...).Err())
		require.NoError(t, r.client.Expire(ctx, r.prefix+key, time.Hour).Err())
	}
	for _, a := range limit.Algorithms() {
		l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour})
		ownHit := hit{key: "own" + l.Tag(), limit: l, n: 1}
		hits := []hit{ownHit, {key: "set", limit: l, n: 1}}
		for _, key := range slices.Sorted(maps.Keys(foreignStrings)) {
			hits = append(hits, hit{key: key, limit: l, n: 1})
		}
		for _, key := range slices.Sorted(maps.Keys(foreignLists)) {
			hits = append(hits, hit{key: key, limit: l, n: 1})
		}
		got := r.take(now, nil, append(hits, ownHit)...)
		assert.Equal(t, int64(8), got[len(hits)].Remaining, "%s", a)
		for i, h := range hits[1:] {
			assert.Contains(t, got[i+1].err, "WRONGTYPE", "%s, %s", a, h.key)
		}
	}
	for key, value := range foreignStrings {
		assert.Equal(t, value, r.client.Get(ctx, r.prefix+key).Val())
	}
	assert.Equal(t, []string{"not", "a", "counter"}, r.client.LRange(ctx, r.prefix+"list of words", 0, -1).Val())
	assert.Equal(t, []string{"member"}, r.client.SMembers(ctx, r.prefix+"set").Val())
}

// A bucket with a burst converts a state that has another max. In a foreign value, this max can be infinite.
func TestForeignMaxOfTokenBucketIsError(t *testing.T) {
	r := openRedis(t)
	now := time.Now().UnixMicro()
	l := newLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Requests: 10, Burst: 20, Unit: limit.Hour})
	for _, oldMax := range []float64{math.Inf(1), math.NaN(), math.MaxFloat64, -1, 10.5} {
		var value []byte
		for _, number := range []float64{float64(now + 1_000_000), 0, oldMax} {
			value = binary.LittleEndian.AppendUint64(value, math.Float64bits(number))
		}
		require.NoError(t, r.client.Set(t.Context(), r.prefix+"foreign", value, time.Hour).Err())
		assert.Contains(t, r.take(now, nil, hit{key: "foreign", limit: l, n: 1})[0].err, "WRONGTYPE", oldMax)
		assert.Equal(t, string(value), r.client.Get(t.Context(), r.prefix+"foreign").Val(), oldMax)
	}
}

func TestUnknownScriptFailsOnlyItsOwnHits(t *testing.T) {
	r := openRedis(t)
	l := newLimit(t, limit.Spec{Requests: 10, Unit: limit.Hour})
	for _, groups := range [][]int64{nil, {4}} {
		now := time.Now().UnixMicro()
		got := r.take(now, groups,
			hit{key: "a", limit: l, n: 1},
			hit{key: "unknown", limit: l, n: 1, script: "leaky_bucket"},
			hit{key: "a", limit: l, n: 1, allOrNone: groups != nil},
			hit{key: "unknown", limit: l, n: 1, script: "leaky_bucket"})
		assert.Equal(t, "ERR no script is named leaky_bucket", got[1].err)
		assert.Equal(t, got[1].err, got[3].err)
		assert.Empty(t, got[0].err)
		assert.True(t, got[2].Allowed)
	}
	assert.Equal(t, int64(6), r.take(0, nil, hit{key: "a", limit: l, n: 0})[0].Remaining)
}

func TestOutOfMemoryFailsHitsButNotPeeks(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "1", "--maxmemory-policy", "noeviction")
	r := &redis{t: t, client: s.Client(t)}
	var err error
	require.NoError(t, r.client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	r.sha, err = r.client.ScriptLoad(t.Context(), lua.Take(limit.AlgorithmNames()...)).Result()
	require.NoError(t, err)
	require.NoError(t, r.client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	for _, a := range limit.Algorithms() {
		l := newLimit(t, limit.Spec{Algorithm: a, Requests: 10, Unit: limit.Hour})
		got := r.take(0, nil, hit{key: "k" + l.Tag(), limit: l, n: 1}, hit{key: "peek" + l.Tag(), limit: l, n: 0})
		assert.Contains(t, got[0].err, "OOM", "%s", a)
		assert.Empty(t, got[1].err, "%s", a)
	}
}

// TestLongLogsGiveTheSameAnswersAndAreBounded has so many hits that the log
// combines the hits of a tick.
func TestLongLogsGiveTheSameAnswersAndAreBounded(t *testing.T) {
	for name, l := range map[string]*limit.Limit{
		"log that is never full":        newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 10_000_000, Unit: limit.Minute}),
		"full log":                      newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 4000, Unit: limit.Minute}),
		"full log, denied hits charged": newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 4000, Unit: limit.Minute, ChargeDenied: true}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, rnd := openRedis(t), rand.New(rand.NewPCG(1, 7))
			var s limit.State
			now, maxEntries := time.Now().UnixMicro(), 0
			for step := range 12_000 {
				now += rnd.Int64N(20_000) // some 6,000 hits in a window; a tick is 29,312 µs
				n := []int64{1, 1, 1, 1, 1, 2, 0, -1}[rnd.IntN(8)]
				if step%5000 == 4999 {
					now -= 2 * l.Period() // the clock is set back
				}
				got := r.take(now, nil, hit{key: "log", limit: l, n: n})[0]
				require.Empty(t, got.err)
				require.Equal(t, l.Take(&s, now, n), got.Result, "step %d", step)
				maxEntries = max(maxEntries, s.EntryCount())
			}
			assert.Greater(t, maxEntries, 2048, "the log has combined hits")
			assert.LessOrEqual(t, maxEntries, limit.MaxLogEntries)
			ctx := t.Context()
			assert.EqualValues(t, 2*s.EntryCount()+1, r.client.LLen(ctx, r.prefix+"log").Val())
			assert.Less(t, r.client.MemoryUsage(ctx, r.prefix+"log", 0).Val(), int64(80_000))
		})
	}
}

func TestLongLogIsSearchedByBisection(t *testing.T) {
	r := openRedis(t)
	l := newLimit(t, limit.Spec{Algorithm: limit.SlidingLog, Requests: 1_000_000, Unit: limit.Hour})
	now := time.Now().UnixMicro()
	key := r.prefix + "log"
	values := []any{0}
	const entries = 200_000
	for i := 1; i <= entries; i++ {
		values = append(values, now+int64(i), i)
	}
	require.NoError(t, r.client.RPush(t.Context(), key, values...).Err())
	require.NoError(t, r.client.PExpire(t.Context(), key, time.Hour).Err())
	cpuBefore := cpuMicros(t, r.client)
	got := r.take(now+entries/2+l.Period(), nil, hit{key: "log", limit: l, n: 1})[0]
	assert.Equal(t, l.Max()-entries/2-1, got.Remaining)
	got = r.take(now+entries/2+l.Period(), nil, hit{key: "log", limit: l, n: -entries / 4})[0]
	assert.Equal(t, l.Max()-entries/4-1, got.Remaining)
	assert.Less(t, cpuMicros(t, r.client)-cpuBefore, 50_000.0, "microseconds of Redis for two calls")
}

// cpuMicros returns the CPU time of Redis in microseconds. INFO commandstats would count wall time
// instead.
func cpuMicros(t testing.TB, c *goredis.Client) float64 {
	t.Helper()
	info, err := c.Info(context.Background(), "cpu").Result()
	require.NoError(t, err)
	var sum float64
	for line := range strings.Lines(info) {
		for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
			if v, ok := strings.CutPrefix(line, name+":"); ok {
				seconds, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
				require.NoError(t, err)
				sum += seconds * 1e6
			}
		}
	}
	return sum
}

// BenchmarkRedis measures the CPU time of Redis for a hit (redis-us/hit), in calls of 1, 4, 16 and 64 hits of as many keys, all admitted.
func BenchmarkRedis(b *testing.B) {
	for _, a := range limit.Algorithms() {
		for _, hitsPerCall := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", a, hitsPerCall), func(b *testing.B) {
				r := openRedis(b)
				l := newLimit(b, limit.Spec{Algorithm: a, Requests: 1_000_000, Unit: limit.Minute})
				var hits []hit
				for i := range hitsPerCall {
					hits = append(hits, hit{key: fmt.Sprintf("shop|ip=192.0.2.%d|%s", i, l.Tag()), limit: l, n: 1})
				}
				args := r.buildArgs(0, nil, hits)
				ctx := context.Background()
				cpuBefore := cpuMicros(b, r.client)
				for b.Loop() {
					if err := r.client.Do(ctx, args...).Err(); err != nil {
						b.Fatal(err)
					}
				}
				cpuTime := cpuMicros(b, r.client) - cpuBefore
				b.ReportMetric(cpuTime/float64(b.N*hitsPerCall), "redis-us/hit")
			})
		}
	}
}
