package quota

import (
	"flag"
	"math"
	"math/rand/v2"
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

// TestHoldersTogetherStayWithinLimit runs Envoys that ask for nothing or for all, while streams break, Envoys and replicas
// restart, answers of the store are lost, and the store loses its data.
func TestHoldersTogetherStayWithinLimit(t *testing.T) {
	for seed := range uint64(*seeds) {
		runDisturbedFleet(t, seed)
		if t.Failed() {
			return
		}
	}
}

var seeds = flag.Int("seeds", 150, "disturbed fleets to run")

func runDisturbedFleet(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(n int) int { return random.IntN(n) }
	l := perMinute(int64(1000+pick(30_000)), int64(1+pick([]int{10, 300, 3000}[pick(3)])))
	l.Headroom = []float64{0, 0.01, 0.1}[pick(3)]
	l.TTL = int64(5+pick(11)) * second
	f := newFleet(l, 1+pick(5), 2, seed)
	if pick(2) == 0 {
		f.storeCreated = f.now
	}
	lostTokens := 0.0
	for range 120 {
		i := pick(len(f.envoys))
		e := f.envoys[i]
		switch pick(12) {
		case 0:
			f.disconnect(e)
		case 1:
			f.disconnect(e)
			f.connect(e, pick(2))
		case 2:
			f.disconnect(e)
			f.envoys[i] = f.newEnvoy()
			f.connect(f.envoys[i], pick(2))
		case 3:
			if pick(5) == 0 {
				r := f.replicas[pick(2)]
				for _, e := range f.envoys {
					if r.openStreams[e.stream] == e {
						f.disconnect(e)
					}
				}
				r.knownHolders = nil
			}
		case 4, 5:
			e.demand = []float64{0, 1, 0.2, 3}[pick(4)] * float64(l.Rate) / 60
		case 6:
			f.update(pick(2), answerLost)
		case 7:
			if pick(5) == 0 && f.now >= f.storeCreated+l.TTL+l.Delay {
				f.store, f.storeCreated = nil, f.now
				lostTokens += max(1-float64(l.reserve(l.Burst)), 0)
			}
		case 8:
			isFlooded := pick(2) == 0
			for _, e := range f.envoys {
				e.asksForAll = isFlooded
			}
		default:
			e.request(1e6, f)
		}
		for _, e := range f.envoys {
			if e.replica < 0 && pick(3) == 0 {
				f.connect(e, pick(2))
			}
		}
		f.run(int64(1+pick([]int{100, 2000, 8000}[pick(3)]))*millisecond, 50*millisecond)
		if !assert.LessOrEqual(t, f.largestSum, 1.0, "sum of the enforced rates, as a part of the limit; seed %d", seed) ||
			!assert.GreaterOrEqual(t, f.lowestLevel, -1e-3-lostTokens, "tokens of a single bucket with the limit; seed %d", seed) {
			return
		}
	}
}

// TestStateKeepsSumsWithinLimit applies any reports in any order.
func TestStateKeepsSumsWithinLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := perMinute(rapid.Int64Range(0, math.MaxInt64).Draw(t, "rate"), rapid.Int64Range(0, math.MaxInt64).Draw(t, "burst"))
		l.MinShare, l.Headroom = rapid.Float64Range(-1, 2).Draw(t, "min share"), rapid.Float64Range(-1, 2).Draw(t, "headroom")
		boundedLimit := l.bounded()
		s, now := &State{}, int64(1000*second)
		knownHolders := map[HolderID]Holder{}
		for range rapid.IntRange(1, 30).Draw(t, "updates") {
			now += rapid.Int64Range(-20*second, 20*second).Draw(t, "elapsed")
			var u Update
			for _, id := range rapid.SliceOfN(rapid.Uint64Range(1, 9), 0, 9).Draw(t, "holders") {
				u.Reports = append(u.Reports, Report{
					Holder: HolderID(id), Requests: rapid.Int64().Draw(t, "requests"), Denied: rapid.Int64().Draw(t, "denied"),
					IsReturning: rapid.Bool().Draw(t, "returning"),
				})
			}
			for _, h := range knownHolders {
				u.OwnHolders = append(u.OwnHolders, h)
			}
			u.IsFrozen = rapid.IntRange(0, 9).Draw(t, "frozen") == 0
			grants := s.Apply(&l, now, u)
			rates, bursts := s.sums()
			require.LessOrEqual(t, rates, boundedLimit.Rate)
			if boundedLimit.reserve(boundedLimit.Burst) > 0 {
				require.LessOrEqual(t, bursts, boundedLimit.Burst)
			}
			for _, g := range grants {
				require.Equal(t, g.Rate > 0, g.Burst > 0)
			}
			decodedState, err := Decode(s.Append(nil))
			require.NoError(t, err)
			require.Equal(t, s.Append(nil), decodedState.Append(nil))
			require.ElementsMatch(t, s.Holders(), decodedState.Holders())
			s = decodedState
			clear(knownHolders)
			for _, h := range s.Holders() {
				knownHolders[h.ID] = h
			}
		}
	})
}

func TestHoldersBeyondMaxHoldersGetNoGrant(t *testing.T) {
	l := perMinute(MaxHolders*60, MaxHolders)
	var s State
	reports := func(first, n int) (u Update) {
		for i := range n {
			u.Reports = append(u.Reports, Report{Holder: HolderID(first + i), Requests: 10})
		}
		u.OwnHolders = s.Holders()
		return u
	}
	now := int64(1000 * second)
	assert.Len(t, s.Apply(&l, now, reports(1_000_000, MaxHolders-1)), MaxHolders-1)
	grants := s.Apply(&l, now+second, reports(1, 2))
	assert.Len(t, s.holders, MaxHolders)
	assert.EqualValues(t, 1, s.holders[0].ID)
	assert.Contains(t, grants, Grant{Holder: 2})
	assert.Len(t, s.Apply(&l, now+2*second, reports(1_000_000, MaxHolders-1)), MaxHolders-1, "the others keep their grants")
}

func TestDecodeRejectsBytesThatAreNoState(t *testing.T) {
	s := &State{}
	l := perMinute(1000, 100)
	s.Apply(&l, 1000*second, Update{Reports: []Report{{Holder: 1}, {Holder: 2}}})
	encodedState := s.Append(nil)
	largeHolder := Holder{ID: 1, Rate: maxTokens, Burst: maxTokens, MaxRate: maxTokens, MaxBurst: maxTokens, Demands: [2]int64{maxTokens, maxTokens}, JoinedAt: 1}
	largeState := State{appliedAt: 1000 * second, holders: []Holder{largeHolder, {ID: 2}}}
	for _, b := range [][]byte{encodedState, largeState.Append(nil)} {
		_, err := Decode(b)
		assert.NoError(t, err)
		for i := 1; i < len(b); i++ {
			_, err := Decode(b[:i])
			assert.ErrorIs(t, err, ErrState, "%d bytes", i)
		}
	}
	stateWithEqualIDs := State{appliedAt: 1000 * second, holders: []Holder{{ID: 1}, {ID: 1}}}
	for _, b := range [][]byte{{0}, {layout}, append(encodedState[:len(encodedState):len(encodedState)], 0), []byte("\x02abc"), stateWithEqualIDs.Append(nil)} {
		_, err := Decode(b)
		assert.ErrorIs(t, err, ErrState)
	}
	rapid.Check(t, func(t *rapid.T) {
		if s, err := Decode(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")); err == nil {
			s.Apply(&l, 2000*second, Update{Reports: []Report{{Holder: 1}}})
		}
	})
}
