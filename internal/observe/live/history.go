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
	steps  Figures  // the points of past steps
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
	figures := h.currentFigures()
	current := figures.all()
	for i, past := range h.steps.all() {
		past.Points = append(past.Points, current[i].Now)
		past.Points = slices.Delete(past.Points, 0, max(len(past.Points)-historySteps, 0))
	}
}

// currentFigures returns the figures of the window, without points.
func (h *history) currentFigures() Figures {
	var sum sample
	spans, seconds := h.spans.recent()
	for i := range h.window[max(len(h.window)-spans, 0):] {
		sum.add(&h.window[len(h.window)-1-i])
	}
	perSecond := func(n uint64) Series {
		if seconds <= 0 {
			return Series{Now: Unknown}
		}
		return Series{Now: Value(float64(n) / seconds)}
	}
	quantile := func(h *histogram, q float64) Series { return Series{Now: h.quantile(q)} }
	c := &sum.calls
	deniedShare := Unknown
	if c.calls > 0 {
		deniedShare = Value(float64(c.denied) / float64(c.calls))
	}
	return Figures{
		StepSeconds: stepSeconds,
		Calls:       perSecond(c.calls), DeniedShare: Series{Now: deniedShare}, Errors: perSecond(c.errors),
		P50: quantile(&c.latency, 0.5), P99: quantile(&c.latency, 0.99),
		RedisP50: quantile(&sum.redis, 0.5), RedisP99: quantile(&sum.redis, 0.99),
		WithoutRedis: perSecond(c.withoutRedis), Unmatched: perSecond(c.unmatched),
	}
}

// figures returns the figures with their history.
func (h *history) figures() Figures {
	figures := h.currentFigures()
	past := h.steps.all()
	for i, series := range figures.all() {
		series.Points = append([]Value{}, past[i].Points...)
	}
	return figures
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
