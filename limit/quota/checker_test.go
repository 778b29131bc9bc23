package quota

import (
	"encoding/binary"
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The checker visits the states of three Envoys that share a limit of 4, breadth first, with all orders of events. It calls
// Apply as the service does. docs/model/quota.tla has the same events. A message takes at most one tick, and the clock of an
// Envoy may lose one tick in a TTL.

const (
	tick        = second
	checkedRate = 4
	checkedTTL  = 2 // ticks
	latency     = 1 // ticks
	drift       = 1 // ticks
)

// checkedEnvoy is an Envoy and its stream. The stream's messages are in flight for at most one tick.
type checkedEnvoy struct {
	stream    byte // counts the streams, so that each has its own id
	rate      byte // the rate that the Envoy enforces
	ticksLeft byte // until rate expires
	// grant and report are in flight. An age of 0 means that there is no message.
	grant, grantAge   byte
	report, reportAge byte
	isReturning       byte
}

type checkedWorld struct {
	state     State
	envoys    [3]checkedEnvoy
	memories  [3]Holder // the holder that the replica of each Envoy remembers
	now       int64
	breaks    byte  // how many streams may still break
	losses    byte  // how often the store may still lose its data
	freezeEnd int64 // the time from which the store is not frozen
}

// mutant has rules that can be wrong on purpose.
type mutant struct {
	limit      Limit
	afterApply func(*State)
}

func checkedLimit() Limit {
	return Limit{Rate: checkedRate, Interval: minute, Burst: 12, TTL: checkedTTL * tick, Delay: (latency + drift) * tick}
}

func (w *checkedWorld) holder(i int) HolderID {
	return HolderID(i*100) + HolderID(w.envoys[i].stream) + 1
}

// apply lets the replica of Envoy i apply its report.
func (w *checkedWorld) apply(i int, m *mutant) {
	e := &w.envoys[i]
	u := Update{IsFrozen: w.now < w.freezeEnd}
	u.Reports = []Report{{Holder: w.holder(i), Requests: int64(e.report) * 1000, IsReturning: e.isReturning > 0}}
	if w.memories[i].ID == w.holder(i) {
		u.OwnHolders = []Holder{w.memories[i]}
	}
	e.report, e.reportAge, e.isReturning = 0, 0, 0
	s := w.state
	s.holders = append([]Holder(nil), s.holders...)
	grants := s.Apply(&m.limit, w.now, u)
	if m.afterApply != nil {
		m.afterApply(&s)
	}
	for _, g := range grants {
		e.grant, e.grantAge = byte(g.Rate), 1
	}
	for j := range s.holders { // the checker follows rates only, so bursts and past times must not make states differ
		h := &s.holders[j]
		h.Burst, h.MaxBurst = h.Rate, h.MaxRate
		if h.SentAt > 0 {
			h.JoinedAt = h.ReportedAt
		}
		if !h.isReduced() {
			h.ReducedAt = 0
		}
		if h.ID == w.holder(i) {
			w.memories[i] = *h
		}
	}
	s.credit, s.level = m.limit.Burst*nano, m.limit.Burst*nano
	w.state = s
}

// successors returns the worlds that follow w.
func (w *checkedWorld) successors(m *mutant) []checkedWorld {
	var nextWorlds []checkedWorld
	add := func(change func(*checkedWorld)) {
		next := *w
		change(&next)
		nextWorlds = append(nextWorlds, next)
	}
	mayTick := true
	for i := range w.envoys {
		e := &w.envoys[i]
		mayTick = mayTick && e.grantAge <= latency && e.reportAge <= latency
		if e.grantAge > 0 {
			add(func(next *checkedWorld) { next.envoys[i].receive() })
		}
		if e.reportAge > 0 {
			add(func(next *checkedWorld) { next.apply(i, m) })
		} else {
			for requests := range byte(2) {
				add(func(next *checkedWorld) { next.envoys[i].report, next.envoys[i].reportAge = requests, 1 })
			}
		}
		if w.breaks > 0 && e.stream < 99 {
			add(func(next *checkedWorld) { next.breakStream(i, false) })
			add(func(next *checkedWorld) { next.breakStream(i, true) })
		}
	}
	if w.losses > 0 && w.now >= w.freezeEnd {
		add(func(next *checkedWorld) {
			next.losses--
			next.state, next.freezeEnd = State{}, next.now+m.limit.TTL+m.limit.Delay
		})
	}
	if mayTick {
		add((*checkedWorld).tick)
	}
	return nextWorlds
}

func (e *checkedEnvoy) receive() {
	e.rate, e.ticksLeft = e.grant, checkedTTL+drift
	e.grant, e.grantAge = 0, 0
}

// breakStream loses the messages in flight. An Envoy that restarts also loses its grant.
func (w *checkedWorld) breakStream(i int, restarts bool) {
	e := &w.envoys[i]
	*e = checkedEnvoy{stream: e.stream + 1, rate: e.rate, ticksLeft: e.ticksLeft, report: 1, reportAge: 1, isReturning: 1}
	if restarts {
		e.rate, e.ticksLeft, e.isReturning = 0, 0, 0
	}
	w.breaks--
}

func (w *checkedWorld) tick() {
	w.now += tick
	for i := range w.envoys {
		e := &w.envoys[i]
		if e.ticksLeft > 0 {
			e.ticksLeft--
		}
		if e.ticksLeft == 0 {
			e.rate = 0
		}
		if e.grantAge > 0 {
			e.grantAge++
		}
		if e.reportAge > 0 {
			e.reportAge++
		}
	}
}

// key names the world. Equal worlds at other times have equal keys.
func (w *checkedWorld) key() string {
	b := make([]byte, 0, 200)
	age := func(time int64) byte {
		if time == 0 {
			return 255
		}
		return byte(min((w.now-time)/tick, 20))
	}
	appendHolder := func(h *Holder) {
		b = append(b, byte(h.ID/100), byte(h.ID%100), byte(h.Rate), byte(h.MaxRate), byte(h.Demands[0]), byte(h.Demands[1]),
			age(h.JoinedAt), age(h.ReportedAt), age(h.SentAt), age(h.ReducedAt))
	}
	for i := range w.envoys {
		e := &w.envoys[i]
		b = append(b, e.stream, e.rate, e.ticksLeft, e.grant, e.grantAge, e.report, e.reportAge, e.isReturning)
		appendHolder(&w.memories[i])
	}
	b = append(b, w.breaks, w.losses, byte(max(w.freezeEnd-w.now, 0)/tick), byte(max(w.state.frozenUntil-w.now, 0)/tick), byte(len(w.state.holders)))
	for i := range w.state.holders {
		appendHolder(&w.state.holders[i])
	}
	return string(binary.AppendUvarint(b, uint64(w.state.frozenRate)))
}

func (w *checkedWorld) sumOfRates() (sum int) {
	for i := range w.envoys {
		sum += int(w.envoys[i].rate)
	}
	return sum
}

// reachesTargets lets all Envoys ask for all without faults. It reports whether the whole limit is then in use, and each
// Envoy has a part of it.
func (w checkedWorld) reachesTargets(m *mutant) bool {
	for range 40 {
		for i := range w.envoys {
			w.envoys[i].report, w.envoys[i].reportAge = 1, 1
			w.apply(i, m)
			w.envoys[i].receive()
		}
		w.tick()
	}
	for i := range w.envoys {
		if w.envoys[i].rate == 0 {
			return false
		}
	}
	return w.sumOfRates() == checkedRate
}

// visitStates visits at most n worlds. It returns the number of visited worlds, and the first world that breaks the limit.
func visitStates(t *testing.T, m *mutant, n int) (visitedCount int, brokenWorld *checkedWorld) {
	start := checkedWorld{now: 100 * tick, breaks: 2, losses: 1}
	for range 3 { // the first Envoy has the whole limit
		start.envoys[0].report, start.envoys[0].reportAge = 1, 1
		start.apply(0, m)
		start.envoys[0].receive()
		start.tick()
	}
	seenStates := map[string]bool{start.key(): true}
	for queue := []checkedWorld{start}; len(queue) > 0 && len(seenStates) < n; queue = queue[1:] {
		w := &queue[0]
		if visitedCount++; visitedCount%1000 == 0 && m.afterApply == nil {
			require.True(t, w.reachesTargets(m), "the targets are not reached after faults: %+v", w)
		}
		for _, c := range w.successors(m) {
			if c.sumOfRates() > checkedRate {
				return visitedCount, &c
			}
			if key := c.key(); !seenStates[key] {
				seenStates[key] = true
				queue = append(queue, c)
			}
		}
	}
	return visitedCount, nil
}

// maxWorlds is the number of worlds that a check remembers.
var maxWorlds = flag.Int("worlds", 100_000, "worlds that the checker remembers")

func TestCheckerFindsNoOrderOfEventsAboveLimit(t *testing.T) {
	visitedCount, brokenWorld := visitStates(t, &mutant{limit: checkedLimit()}, *maxWorlds)
	assert.Nil(t, brokenWorld)
	t.Logf("%d worlds", visitedCount)
}

func TestCheckerFindsDecreaseThatIsFreedAtOnce(t *testing.T) {
	_, brokenWorld := visitStates(t, &mutant{checkedLimit(), func(s *State) {
		for i := range s.holders {
			s.holders[i].MaxRate = s.holders[i].Rate
		}
	}}, *maxWorlds)
	assert.NotNil(t, brokenWorld)
}

func TestCheckerFindsTTLThatCountsFromSending(t *testing.T) {
	l := checkedLimit()
	l.TTL -= l.Delay
	_, brokenWorld := visitStates(t, &mutant{l, func(*State) {}}, *maxWorlds)
	assert.NotNil(t, brokenWorld)
}
