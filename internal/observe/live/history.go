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
// the step in progress and the end of the previous step. The clock assumes that the hits of the previous step were spread
// evenly over the step.
type stepClock struct {
	elapsedSeconds  float64 // the seconds since the start of the step in progress
	lastStepSeconds float64 // the seconds of the previous step; 0 in the first step
}

// advance moves the clock forward by seconds, and reports whether a step ends.
func (c *stepClock) advance(seconds float64) bool {
	c.elapsedSeconds += seconds
	if c.elapsedSeconds < stepSeconds-0.5 { // a sample can come a little early
		return false
	}
	c.lastStepSeconds, c.elapsedSeconds = c.elapsedSeconds, 0
	return true
}

// previousStepShare returns the share of the previous step that is in the last stepSeconds: 0.4 after 3 of 5 seconds.
func (c *stepClock) previousStepShare() float64 { return max(1-c.elapsedSeconds/stepSeconds, 0) }

// ratePerSecond returns the current rate. currentCount is the count in the step in progress, and previousCount is the
// count in the previous step. The rate is NaN before the clock advances for the first time.
func (c *stepClock) ratePerSecond(currentCount, previousCount float64) float64 {
	return (currentCount + c.previousStepShare()*previousCount) / (c.elapsedSeconds + c.previousStepShare()*c.lastStepSeconds)
}

type history struct {
	stepClock
	currentSample, previousSample sample  // the samples of the step in progress and of the previous step
	steps                         Figures // has only the points, which describe past steps
}

type sample struct {
	calls   callCounts
	redis   histogram // the durations of round trips to Redis
	cpuTime time.Duration
}

// add adds a sample that describes the given number of seconds, and reports whether a step ends.
func (h *history) add(newSample *sample, seconds float64) (endsStep bool) {
	h.currentSample.calls.add(&newSample.calls)
	h.currentSample.redis.add(&newSample.redis)
	h.currentSample.cpuTime += newSample.cpuTime
	if !h.advance(seconds) {
		return false
	}
	h.previousSample, h.currentSample = h.currentSample, sample{}
	figures := h.currentFigures()
	currentSeries := figures.series()
	for i, pastSeries := range h.steps.series() {
		pastSeries.Points = append(pastSeries.Points, currentSeries[i].Now)
		pastSeries.Points = slices.Delete(pastSeries.Points, 0, max(len(pastSeries.Points)-historySteps, 0))
	}
	return true
}

// currentFigures returns the current values of the figures, without points.
func (h *history) currentFigures() Figures {
	currentCalls, previousCalls := &h.currentSample.calls, &h.previousSample.calls
	perSecond := func(currentCount, previousCount uint64) Series {
		return Series{Now: Value(h.ratePerSecond(float64(currentCount), float64(previousCount)))}
	}
	quantile := func(currentHistogram, previousHistogram *histogram, q float64) Series {
		return Series{Now: currentHistogram.quantile(q, previousHistogram, h.previousStepShare())}
	}
	deniedShare := Unknown
	if calls := float64(currentCalls.calls) + h.previousStepShare()*float64(previousCalls.calls); calls > 0 {
		deniedShare = Value((float64(currentCalls.deniedCalls) + h.previousStepShare()*float64(previousCalls.deniedCalls)) / calls)
	}
	return Figures{
		StepSeconds: stepSeconds,
		Calls:       perSecond(currentCalls.calls, previousCalls.calls), DeniedShare: Series{Now: deniedShare}, Errors: perSecond(currentCalls.failedCalls, previousCalls.failedCalls), Refused: perSecond(currentCalls.refusedCalls, previousCalls.refusedCalls), GivenUp: perSecond(currentCalls.givenUpCalls, previousCalls.givenUpCalls),
		P50: quantile(&currentCalls.latency, &previousCalls.latency, 0.5), P99: quantile(&currentCalls.latency, &previousCalls.latency, 0.99),
		RedisP50: quantile(&h.currentSample.redis, &h.previousSample.redis, 0.5), RedisP99: quantile(&h.currentSample.redis, &h.previousSample.redis, 0.99),
		RedisMax: quantile(&h.currentSample.redis, &h.previousSample.redis, 1), RedisStalls: perSecond(currentCalls.redisStalls, previousCalls.redisStalls),
		WithoutRedis: perSecond(currentCalls.fallbackDecisions, previousCalls.fallbackDecisions), Unmatched: perSecond(currentCalls.unmatchedDescriptors, previousCalls.unmatchedDescriptors),
		CPU: Series{Now: Value(h.ratePerSecond(h.currentSample.cpuTime.Seconds(), h.previousSample.cpuTime.Seconds()))},
	}
}

// figures returns the current values of the figures, with their points.
func (h *history) figures() Figures {
	figures := h.currentFigures()
	pastSeries := h.steps.series()
	for i, series := range figures.series() {
		series.Points = append([]Value{}, pastSeries[i].Points...)
	}
	return figures
}
