package live

import "slices"

// Times of the history.
const (
	stepSeconds   = 5
	historySteps  = 60 // five minutes
	windowSeconds = 5  // of the figures of this moment
)

// history has the figures of the last five minutes.
type history struct {
	window []sample // of the last windowSeconds
	points [figureCount][]Value
}

// sample is what happened in about a second.
type sample struct {
	seconds float64
	calls   callCounts
	redis   histogram // round trips
}

// The figures.
const (
	figureCalls = iota
	figureDeniedShare
	figureErrors
	figureP50
	figureP99
	figureRedisP50
	figureRedisP99
	figureWithoutRedis
	figureCount
)

// add appends a sample. endsStep reports that a step ends with the sample.
func (h *history) add(s sample, endsStep bool) {
	h.window = append(h.window, s)
	h.window = slices.Delete(h.window, 0, max(len(h.window)-windowSeconds, 0))
	if !endsStep {
		return
	}
	for i, v := range h.currentFigures() {
		h.points[i] = append(h.points[i], v)
		h.points[i] = slices.Delete(h.points[i], 0, max(len(h.points[i])-historySteps, 0))
	}
}

// currentFigures returns the figures of the window.
func (h *history) currentFigures() (figures [figureCount]Value) {
	var sum sample
	for i := range h.window {
		s := &h.window[i]
		sum.seconds += s.seconds
		sum.calls.add(&s.calls)
		sum.redis.add(&s.redis)
	}
	perSecond := func(n uint64) Value {
		if sum.seconds <= 0 {
			return Unknown
		}
		return Value(float64(n) / sum.seconds)
	}
	c := &sum.calls
	figures = [figureCount]Value{
		figureCalls:        perSecond(c.calls),
		figureDeniedShare:  Unknown,
		figureErrors:       perSecond(c.errors),
		figureP50:          c.latency.quantile(0.5),
		figureP99:          c.latency.quantile(0.99),
		figureRedisP50:     sum.redis.quantile(0.5),
		figureRedisP99:     sum.redis.quantile(0.99),
		figureWithoutRedis: perSecond(c.withoutRedis),
	}
	if c.calls > 0 {
		figures[figureDeniedShare] = Value(float64(c.denied) / float64(c.calls))
	}
	return figures
}

// figures returns the figures with their history.
func (h *history) figures() Figures {
	current := h.currentFigures()
	series := func(i int) Series { return Series{current[i], append([]Value{}, h.points[i]...)} }
	return Figures{
		StepSeconds: stepSeconds,
		Calls:       series(figureCalls), DeniedShare: series(figureDeniedShare), Errors: series(figureErrors),
		P50: series(figureP50), P99: series(figureP99),
		RedisP50: series(figureRedisP50), RedisP99: series(figureRedisP99), WithoutRedis: series(figureWithoutRedis),
	}
}
