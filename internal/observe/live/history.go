package live

import (
	"slices"
	"time"
)

// Times of the history.
const (
	stepSeconds  = 5
	historySteps = 60 // five minutes
)

// stepClock divides time into steps of about stepSeconds. The current value of a figure describes the last stepSeconds:
// the step in progress and the end of the step before. The clock assumes that the hits of the step before were spread
// evenly over that step.
type stepClock struct {
	elapsed    float64 // the seconds since the start of the step in progress
	lastLength float64 // the seconds of the step before; 0 in the first step
}

// advance moves the clock forward by seconds, and reports whether a step ends.
func (c *stepClock) advance(seconds float64) bool {
	c.elapsed += seconds
	if c.elapsed < stepSeconds-0.5 {
		return false
	}
	c.lastLength, c.elapsed = c.elapsed, 0
	return true
}

// lastShare returns the share of the step before that is in the last stepSeconds: 0.4 if 3 of 5 seconds have elapsed.
func (c *stepClock) lastShare() float64 { return max(1-c.elapsed/stepSeconds, 0) }

// perSecond returns the current rate, from the count in the step in progress and the count in the step before. The
// rate is NaN before the clock advances for the first time.
func (c *stepClock) perSecond(current, last float64) float64 {
	return (current + c.lastShare()*last) / (c.elapsed + c.lastShare()*c.lastLength)
}

// history has the figures of the last five minutes.
type history struct {
	stepClock
	current, last sample  // the samples of the step in progress and of the step before
	steps         Figures // has only the points, which describe past steps
}

// sample describes what happened in a span of time.
type sample struct {
	calls   callCounts
	redis   histogram // the durations of round trips to Redis
	cpuTime time.Duration
}

// add adds the sample of that many seconds, and reports whether a step ends.
func (h *history) add(s *sample, seconds float64) (endsStep bool) {
	h.current.calls.add(&s.calls)
	h.current.redis.add(&s.redis)
	h.current.cpuTime += s.cpuTime
	if !h.advance(seconds) {
		return false
	}
	h.last, h.current = h.current, sample{}
	figures := h.currentFigures()
	current := figures.series()
	for i, past := range h.steps.series() {
		past.Points = append(past.Points, current[i].Now)
		past.Points = slices.Delete(past.Points, 0, max(len(past.Points)-historySteps, 0))
	}
	return true
}

// currentFigures returns the current values of the figures, without points.
func (h *history) currentFigures() Figures {
	c, last := &h.current.calls, &h.last.calls
	perSecond := func(n, last uint64) Series { return Series{Now: Value(h.perSecond(float64(n), float64(last)))} }
	quantile := func(current, last *histogram, q float64) Series {
		return Series{Now: current.quantile(q, last, h.lastShare())}
	}
	deniedShare := Unknown
	if calls := float64(c.calls) + h.lastShare()*float64(last.calls); calls > 0 {
		deniedShare = Value((float64(c.denied) + h.lastShare()*float64(last.denied)) / calls)
	}
	return Figures{
		StepSeconds: stepSeconds,
		Calls:       perSecond(c.calls, last.calls), DeniedShare: Series{Now: deniedShare}, Errors: perSecond(c.errors, last.errors), Refused: perSecond(c.refused, last.refused), GivenUp: perSecond(c.givenUp, last.givenUp),
		P50: quantile(&c.latency, &last.latency, 0.5), P99: quantile(&c.latency, &last.latency, 0.99),
		RedisP50: quantile(&h.current.redis, &h.last.redis, 0.5), RedisP99: quantile(&h.current.redis, &h.last.redis, 0.99),
		RedisMax: quantile(&h.current.redis, &h.last.redis, 1), RedisStalls: perSecond(c.redisStalls, last.redisStalls),
		WithoutRedis: perSecond(c.fallbackDecisions, last.fallbackDecisions), Unmatched: perSecond(c.unmatched, last.unmatched),
		CPU: Series{Now: Value(h.perSecond(h.current.cpuTime.Seconds(), h.last.cpuTime.Seconds()))},
	}
}

// figures returns the current values of the figures, with their points.
func (h *history) figures() Figures {
	figures := h.currentFigures()
	past := h.steps.series()
	for i, series := range figures.series() {
		series.Points = append([]Value{}, past[i].Points...)
	}
	return figures
}
