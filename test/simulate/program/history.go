package main

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// history has the states of the tight counter in Redis, each from the command that has written it. It also
// has the times at which each call's own counter was charged.
type history struct {
	states map[string][]counterState // by name of the counter, in order of time
	own    map[int][]chargedTime     // by call
}

// counterState is the value of a counter from a time on.
type counterState struct {
	at    time.Duration
	value string // as the model of Redis lists it
}

// chargedTime is a time in which a call's own counter has hits.
type chargedTime struct{ start, end time.Duration }

// endless is the end of a time that has not ended.
const endless = time.Duration(math.MaxInt64)

// record records the counters in names after a command.
func (h *history) record(at time.Duration, names []string, valueOf func(name string) string) {
	isOwnChanged := false
	for _, name := range names {
		if id, ok := callOfCounter(name); ok {
			isOwnChanged = h.recordOwn(at, id, valueOf(name)) || isOwnChanged
		}
	}
	for _, name := range names {
		if isTightCounter(name) && !isLeaseCounter(name) {
			h.recordTight(at, name, valueOf(name), isOwnChanged)
		}
	}
	if isOwnChanged { // a state of the tight counter never includes two states of an own counter
		for name, states := range h.states {
			h.recordTight(at, name, states[len(states)-1].value, true)
		}
	}
}

// recordOwn reports whether the call's own counter was charged first, or lost its last hits.
func (h *history) recordOwn(at time.Duration, id int, value string) bool {
	times := h.own[id]
	wasCharged := len(times) > 0 && times[len(times)-1].end == endless
	isCharged := value != "" && value != "0"
	switch {
	case isCharged && !wasCharged:
		h.own[id] = append(times, chargedTime{at, endless})
	case !isCharged && wasCharged:
		times[len(times)-1].end = at
	}
	return isCharged != wasCharged
}

func (h *history) recordTight(at time.Duration, name, value string, evenIfSame bool) {
	states := h.states[name]
	if n := len(states); n == 0 || evenIfSame || states[n-1].value != value {
		h.states[name] = append(states, counterState{at, value})
	}
}

// tightLimit is what the checks know about the tight limit.
type tightLimit struct {
	algorithm string
	period    int64 // in microseconds
	max       int64
	burst     int64 // 0 for none
	capacity  int64 // of the counter in Redis
}

// newTightLimit returns the tight limit of p with this maximum, burst and lease.
func newTightLimit(p *plan, maxHits, burst int, leaseWaste float64) tightLimit {
	l := tightLimit{algorithm: p.algorithm, max: int64(maxHits), burst: int64(burst), capacity: int64(maxHits)}
	if burst > 0 {
		l.capacity = int64(burst)
	}
	switch p.unit {
	case "second":
		l.period = time.Second.Microseconds()
	case "day":
		l.period = 24 * time.Hour.Microseconds()
	case "year":
		l.period = 365 * 24 * time.Hour.Microseconds()
	}
	if p.algorithm == "token_bucket" { // the replicas can hold the other part
		l.capacity -= int64(leaseWaste * float64(l.capacity))
	}
	return l
}

// micros returns a time since the start of the program as microseconds since 1970.
func micros(t time.Duration) float64 { return float64(startTime.Add(t).UnixNano()) / 1000 }

// spent returns how many hits of l a counter with this state has spent at a time t. It is at least what
// the limits of docs/limits.md say, and computed without code of rls.
func (s *counterState) spent(l *tightLimit, t time.Duration) float64 {
	now, period := micros(t), float64(l.period)
	if s.value == "" {
		return 0
	}
	numbers := numbersOf(l.algorithm, s.value)
	switch l.algorithm {
	case "first_hit_window":
		if start, count := numbers[0], numbers[1]; now < start+period {
			return count
		}
		return 0
	case "sliding_window":
		start, current, previous := numbers[0], numbers[1], numbers[2]
		switch windows := math.Floor((now - start) / period); {
		case windows == 1:
			start, current, previous = start+period, 0, current
		case windows > 1:
			return 0
		}
		tick := math.Ceil(period / (1 << 19))
		covered := 1 - math.Floor(max(now-start, 0)/tick)*tick/period
		return current + math.Ceil(previous*min(covered, 1))
	case "sliding_log":
		return logSum(numbers, now-period)
	case "token_bucket":
		fullAt, rate := numbers[0], float64(l.max)
		if l.burst > 0 { // a change of the rate keeps the spent tokens
			rate = numbers[2]
		}
		if numbers[2] > 0 {
			fullAt += numbers[1] / numbers[2]
		}
		return max(fullAt-now, 0) * rate / period
	}
	return numbers[0] // fixed_window
}

// logSum returns the hits after a time in a log: base, time1, sum1, time2, sum2, …
func logSum(log []float64, after float64) float64 {
	sum := log[0]
	for i := 1; i+1 < len(log) && log[i] <= after; i += 2 {
		sum = log[i+1]
	}
	return log[len(log)-1] - sum
}

// numbersOf returns the numbers in the value of a counter.
func numbersOf(algorithm, value string) (numbers []float64) {
	switch algorithm {
	case "fixed_window", "sliding_log":
		for _, field := range strings.Fields(value) {
			n, _ := strconv.ParseFloat(field, 64)
			numbers = append(numbers, n)
		}
	default:
		for part := range slices.Chunk([]byte(value), 8) {
			numbers = append(numbers, math.Float64frombits(binary.LittleEndian.Uint64(part)))
		}
	}
	return numbers
}

// windowOfCounter returns the time in which the counter of this name counts hits of l.
func windowOfCounter(l *tightLimit, name string) (start, end time.Duration) {
	_, window, hasWindow := strings.Cut(name, "@")
	second, err := strconv.ParseInt(window, 10, 64)
	if !hasWindow || err != nil {
		return longAgo, endless
	}
	start = time.Unix(second, 0).Sub(startTime)
	return start - windowMargin, start + time.Duration(l.period)*time.Microsecond + windowMargin
}

// temporaryCharge is a charge of the tight counter that is taken back, because another hit of the same
// group was denied.
type temporaryCharge struct {
	chargedTime
	hits int64
}

// lastWithoutRoom returns the last time until which the counter had no room for n hits of l, at most
// until. It is longAgo if the counter always had room. Temporary charges don't count.
func (h *history) lastWithoutRoom(l *tightLimit, n int64, until time.Duration, temporary []temporaryCharge) time.Duration {
	last := longAgo
	if n > l.capacity {
		return until
	}
	for name, states := range h.states {
		start, end := windowOfCounter(l, name)
		end = min(end, until)
		first, _ := slices.BinarySearchFunc(states, end, func(s counterState, t time.Duration) int {
			if s.at <= t {
				return -1
			}
			return 1
		})
		for i := first - 1; i >= 0 && end > last; i-- {
			s := &states[i]
			from, to := max(s.at, start), end
			end = min(end, s.at)
			if from >= to {
				continue
			}
			if t, ok := s.lastWithoutRoom(l, n, from, to, temporary); ok {
				last = max(last, t)
				break
			}
		}
	}
	return last
}

// lastWithoutRoom returns the last time between from and to at which s has no room for n hits. ok is false
// if there is none. Spent hits become fewer while no command comes.
func (s *counterState) lastWithoutRoom(l *tightLimit, n int64, from, to time.Duration, temporary []temporaryCharge) (t time.Duration, ok bool) {
	charged := int64(0)
	for _, c := range temporary {
		if c.start <= from && from < c.end {
			charged += c.hits
		}
	}
	const rounding = 1e-6
	hasRoom := func(at time.Duration) bool {
		return s.spent(l, at)-float64(charged)+float64(n) <= float64(l.capacity)+rounding
	}
	switch {
	case hasRoom(from):
		return 0, false
	case !hasRoom(to):
		return to, true
	}
	for to-from > time.Microsecond {
		if middle := from + (to-from)/2; hasRoom(middle) {
			to = middle
		} else {
			from = middle
		}
	}
	return to, true
}
