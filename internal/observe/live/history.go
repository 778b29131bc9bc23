package live

import "slices"

// Times of the history.
const (
	stepSeconds   = 5
	historySteps  = 60 // five minutes
	windowSeconds = 5  // of the figures of this moment

	// maxSpan is the greatest length of a span that has grown, in seconds. A tick takes a sample each
	// second. If a viewer takes another sample in between, the span of the last sample grows.
	maxSpan = 1.5
)

// history has the figures of the last five minutes.
type history struct {
	spans  window
	window []sample // of spans, the newest last
	points [figureCount][]Value
}

// sample is what happened in a span.
type sample struct {
	seconds float64
	calls   callCounts
	redis   histogram // round trips
}

func (s *sample) add(other *sample) {
	s.calls.add(&other.calls)
	s.redis.add(&other.redis)
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
	figureUnmatched
	figureCount
)

// add appends a sample. endsStep reports that a step ends with the sample.
func (h *history) add(s sample, endsStep bool) {
	if h.spans.add(s.seconds) {
		h.window = append(h.window, s)
		h.window = slices.Delete(h.window, 0, max(len(h.window)-windowSeconds, 0))
	} else {
		h.window[len(h.window)-1].add(&s)
	}
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
	spans, seconds := h.spans.recent()
	for i := range h.window[max(len(h.window)-spans, 0):] {
		sum.add(&h.window[len(h.window)-1-i])
	}
	perSecond := func(n uint64) Value {
		if seconds <= 0 {
			return Unknown
		}
		return Value(float64(n) / seconds)
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
		figureUnmatched:    perSecond(c.unmatched),
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
		Unmatched: series(figureUnmatched),
	}
}

// window has the lengths of the last spans in seconds, the newest first. A span is the time
// between two samples. A length of 0 means that there is no span yet.
type window [windowSeconds]float64

// add adds a span. isNew is false if the newest span was so short that it grows instead.
func (w *window) add(seconds float64) (isNew bool) {
	if w[0] > 0 && w[0]+seconds < maxSpan {
		w[0] += seconds
		return false
	}
	copy(w[1:], w[:])
	w[0] = seconds
	return true
}

// recent returns how many of the newest spans the figures of this moment are means over, and the
// sum of their lengths.
func (w *window) recent() (spans int, seconds float64) {
	for spans < len(w) && !coversWindow(seconds) {
		seconds += w[spans]
		spans++
	}
	return spans, seconds
}

// coversWindow reports whether spans of these seconds together fill the window of windowSeconds.
func coversWindow(seconds float64) bool { return seconds >= windowSeconds-0.5 }
