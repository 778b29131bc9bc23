package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/seed-81f232ab/rls/limit"
	"github.com/seed-81f232ab/rls/test/bench/curves"
)

// endpointSlots is the limit of concurrency in the picture of a slow endpoint.
const endpointSlots = 6

// call is a call of a slow endpoint.
type call struct{ start, end time.Duration }

// slowCalls returns one call a second. A call takes 3 s, and 20 s while the endpoint is slow, which
// is in the second minute.
func slowCalls() (calls []call) {
	for start := time.Duration(0); start < patternLength; start += time.Second {
		length := 3 * time.Second
		if start >= time.Minute && start < 2*time.Minute {
			length = 20 * time.Second
		}
		calls = append(calls, call{start, start + length})
	}
	return calls
}

// slowAlgorithms are the algorithms in the picture of a slow endpoint.
var slowAlgorithms = []limit.Algorithm{limit.FixedWindow, limit.TokenBucket, limit.Concurrency}

// admittedCalls returns the calls that a limit with the algorithm admits, in the order of their
// start. With holds, the limit has slots, and an admitted call releases its slot at its end. Other
// limits admit patternLimit in a minute.
func admittedCalls(algorithm limit.Algorithm, calls []call) (admitted []call, err error) {
	spec := limit.Spec{Algorithm: algorithm, Unit: limit.Minute, Requests: patternLimit, ChargeDenied: algorithm.DefaultChargeDenied()}
	if algorithm.HasHolds() {
		spec = limit.Spec{Algorithm: algorithm, Requests: endpointSlots}
	}
	l, err := limit.New(spec)
	if err != nil {
		return nil, err
	}
	counter := newClientCounter(l)
	var open []call
	for _, c := range calls {
		if algorithm.HasHolds() {
			open = slices.DeleteFunc(open, func(o call) bool {
				ended := o.end <= c.start
				if ended {
					counter.allows(o.end, -1, holdID(o))
				}
				return ended
			})
		}
		if counter.allows(c.start, 1, holdID(c)) {
			admitted, open = append(admitted, c), append(open, c)
		}
	}
	return admitted, nil
}

// holdID returns the id of the hold of a call.
func holdID(c call) string { return strconv.FormatInt(c.start.Milliseconds(), 10) }

// mostInFlight returns a bar with the largest number of calls in flight in each slot of time. The
// number grows only at the start of a call, so these starts and the start of the slot are enough.
func mostInFlight(calls []call) []plotter.HistogramBin {
	bars := emptyBars()
	for i := range bars {
		bars[i].Weight = inFlight(calls, time.Duration(i)*patternSlot)
	}
	for _, c := range calls {
		bar := &bars[c.start/patternSlot]
		bar.Weight = max(bar.Weight, inFlight(calls, c.start))
	}
	return bars
}

// inFlight returns the number of calls in flight at a time.
func inFlight(calls []call, at time.Duration) (number float64) {
	for _, c := range calls {
		if c.start <= at && at < c.end {
			number++
		}
	}
	return number
}

// highest returns the height of the highest bar.
func highest(bars []plotter.HistogramBin) (height float64) {
	for _, bar := range bars {
		height = max(height, bar.Weight)
	}
	return height
}

// writeSlowCalls draws the calls in flight of a slow endpoint, and writes their table into the page.
func writeSlowCalls(folder, page string) error {
	calls := slowCalls()
	all := mostInFlight(calls)
	var table strings.Builder
	fmt.Fprintf(&table, "| limit | admitted of %d | most calls in flight |\n|---|---|---|\n", len(calls))
	fmt.Fprintf(&table, "| none | %d | %.0f |\n", len(calls), highest(all))
	var panels []panel
	for _, algorithm := range slowAlgorithms {
		admitted, err := admittedCalls(algorithm, calls)
		if err != nil {
			return err
		}
		bars := mostInFlight(admitted)
		fmt.Fprintf(&table, "| `%s`, %s | %d | %.0f |\n", algorithm, slowLimit(algorithm), len(admitted), highest(bars))
		drawn := newPlot(fmt.Sprintf("%s: at most %.0f in flight", algorithm, highest(bars)), "seconds", "calls in flight")
		drawn.Add(&plotter.Histogram{Bins: all, FillColor: sentColor}, &plotter.Histogram{Bins: bars, FillColor: admittedColor})
		setMinutes(drawn)
		panels = append(panels, drawn)
	}
	panels = append(panels, legendPanel("a call each second, slow from 60 to 120",
		"in flight without a limit", "in flight with the limit", slowLimit(limit.FixedWindow)+", or "+slowLimit(limit.Concurrency)))
	if err := save(slices.Collect(slices.Chunk(panels, 2)), filepath.Join(folder, "slow.svg")); err != nil {
		return err
	}
	return curves.ReplaceSection(page, "slow-calls", table.String())
}

// slowLimit returns the limit with the algorithm as text.
func slowLimit(algorithm limit.Algorithm) string {
	if algorithm.HasHolds() {
		return fmt.Sprintf("%d slots", endpointSlots)
	}
	return fmt.Sprintf("%d per minute", patternLimit)
}
