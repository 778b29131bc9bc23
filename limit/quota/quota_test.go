package quota

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const minute = 60 * second

// perMinute returns a limit with the defaults of a limits file.
func perMinute(rate, burst int64) Limit {
	return Limit{Rate: rate, Interval: minute, Burst: burst, MinShare: 0.01, Headroom: 0.01, TTL: 15 * second, Delay: second}
}

// TestHoldersTogetherStayWithinLimit runs Envoys that ask for more than they get, while streams break, Envoys and replicas
// restart, answers of the store are lost, and the store loses its data.
func TestHoldersTogetherStayWithinLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := perMinute(rapid.Int64Range(1000, 100_000).Draw(t, "rate"), rapid.Int64Range(1, 3000).Draw(t, "burst"))
		l.Headroom = rapid.SampledFrom([]float64{0, 0.01, 0.1}).Draw(t, "headroom")
		f := newFleet(l, rapid.IntRange(1, 6).Draw(t, "envoys"), 2, rapid.Uint64().Draw(t, "seed"))
		f.marker = rapid.SampledFrom([]int64{0, f.now}).Draw(t, "marker")
		envoy := rapid.IntRange(0, len(f.envoys)-1)
		replica := rapid.IntRange(0, 1)
		lossTokens := 0.0
		actions := map[string]func(*rapid.T){
			"connect": func(t *rapid.T) {
				if e := f.envoys[envoy.Draw(t, "envoy")]; e.replica < 0 {
					f.connect(e, replica.Draw(t, "replica"))
				}
			},
			"break stream": func(t *rapid.T) {
				e := f.envoys[envoy.Draw(t, "envoy")]
				f.disconnect(e)
				f.connect(e, replica.Draw(t, "replica"))
			},
			"restart Envoy": func(t *rapid.T) {
				i := envoy.Draw(t, "envoy")
				f.disconnect(f.envoys[i])
				f.envoys[i] = f.newEnvoy()
				f.connect(f.envoys[i], replica.Draw(t, "replica"))
			},
			"restart replica": func(t *rapid.T) {
				i := replica.Draw(t, "replica")
				for _, e := range f.replicas[i].open {
					f.disconnect(e)
				}
				f.replicas[i].known = nil
			},
			"change demand": func(t *rapid.T) {
				f.envoys[envoy.Draw(t, "envoy")].demand = rapid.Float64Range(0, float64(l.Rate)/30).Draw(t, "demand")
			},
			"lose answer": func(t *rapid.T) { f.update(replica.Draw(t, "replica"), storedMute) },
			"lose data": func(t *rapid.T) {
				if f.now >= f.marker+l.TTL+l.Delay {
					f.store, f.marker = nil, f.now
					if l.reserve(l.Burst) == 0 {
						lossTokens++
					}
				}
			},
			"run":         func(t *rapid.T) { f.run(rapid.Int64Range(1, 3000).Draw(t, "ms")*millisecond, 25*millisecond) },
			"run long":    func(t *rapid.T) { f.run(rapid.Int64Range(3, 20).Draw(t, "s")*second, 25*millisecond) },
			"ask for all": func(t *rapid.T) { f.envoys[envoy.Draw(t, "envoy")].request(1e6, f) },
			"": func(t *rapid.T) {
				require.LessOrEqual(t, f.largestSum, 1.0, "sum of the enforced rates, as a part of the limit")
				require.GreaterOrEqual(t, f.lowestLevel, -1e-3-lossTokens, "tokens of a bucket with the whole limit")
			},
		}
		t.Repeat(actions)
	})
}

// TestStateKeepsSumsWithinLimit applies any reports in any order.
func TestStateKeepsSumsWithinLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := perMinute(rapid.Int64Range(0, math.MaxInt64).Draw(t, "rate"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "burst"))
		l.MinShare, l.Headroom = rapid.Float64Range(-1, 2).Draw(t, "min share"), rapid.Float64Range(-1, 2).Draw(t, "headroom")
		bounded := l.bounded()
		s, now := &State{}, int64(1000*second)
		known := map[HolderID]Holder{}
		for range rapid.IntRange(1, 30).Draw(t, "updates") {
			now += rapid.Int64Range(-20*second, 20*second).Draw(t, "elapsed")
			var u Update
			for _, id := range rapid.SliceOfN(rapid.Uint64Range(1, 9), 0, 9).Draw(t, "holders") {
				u.Reports = append(u.Reports, Report{
					Holder: HolderID(id), Requests: rapid.Int64().Draw(t, "requests"), Denied: rapid.Int64().Draw(t, "denied"),
					IsReturning: rapid.Bool().Draw(t, "returning"),
				})
			}
			for _, h := range known {
				u.Known = append(u.Known, h)
			}
			u.IsFrozen = rapid.IntRange(0, 9).Draw(t, "frozen") == 0
			grants := s.Apply(&l, now, u)
			rates, bursts := s.sums()
			require.LessOrEqual(t, rates, bounded.Rate)
			if bounded.reserve(bounded.Burst) > 0 {
				require.LessOrEqual(t, bursts, bounded.Burst)
			}
			for _, g := range grants {
				require.Equal(t, g.Rate > 0, g.Burst > 0)
			}
			decoded, err := Decode(s.Append(nil))
			require.NoError(t, err)
			require.Equal(t, s.Append(nil), decoded.Append(nil))
			require.ElementsMatch(t, s.Holders(), decoded.Holders())
			s = decoded
			clear(known)
			for _, h := range s.Holders() {
				known[h.ID] = h
			}
		}
	})
}

func TestDecodeRefusesOtherBytes(t *testing.T) {
	s := &State{}
	l := perMinute(1000, 100)
	s.Apply(&l, 1000*second, Update{Reports: []Report{{Holder: 1}, {Holder: 2}}})
	encoded := s.Append(nil)
	for i := 1; i < len(encoded); i++ {
		_, err := Decode(encoded[:i])
		assert.ErrorIs(t, err, ErrState, "%d bytes", i)
	}
	for _, b := range [][]byte{{0}, {layout}, append(encoded[:len(encoded):len(encoded)], 0), []byte("\x02abc")} {
		_, err := Decode(b)
		assert.ErrorIs(t, err, ErrState)
	}
	rapid.Check(t, func(t *rapid.T) {
		if s, err := Decode(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")); err == nil {
			s.Apply(&l, 2000*second, Update{Reports: []Report{{Holder: 1}}})
		}
	})
}
