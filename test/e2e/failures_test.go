//go:build e2e

package e2e_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// failedCalls is Envoy's counter of failed calls to rls.
const failedCalls = "cluster.echo.ratelimit.error"

// failureCauses are Envoy's counters that say why a call failed.
var failureCauses = []struct{ counter, cause string }{
	{"cluster.rls.upstream_rq_timeout", "without an answer in time"},
	{"cluster.rls.upstream_rq_rx_reset", "reset by a replica"},
	{"cluster.rls.upstream_cx_destroy_remote_with_active_rq", "cut by a replica that closed its connection"},
	{"cluster.rls.upstream_cx_connect_fail", "without a connection, which a replica refused"},
	{"cluster.rls.upstream_cx_connect_timeout", "without a connection in time"},
	{"cluster.rls.upstream_cx_none_healthy", "without a healthy replica"},
}

const (
	watchPeriod = 100 * time.Millisecond

	// busyPause is a pause of the machine that can alone make calls late, at a timeout of 20 ms.
	busyPause = 10 * time.Millisecond
)

// failureWatch logs the restarts, and the failed calls of each period with their cause.
type failureWatch struct {
	t       *testing.T
	envoy   *envoy
	start   time.Time
	done    chan struct{}
	running sync.WaitGroup
	pause   atomic.Int64 // longest pause of the machine in this period, in ns

	mu     sync.Mutex
	failed int64 // calls
	busy   int64 // those of failed in a period with a pause
	causes map[string]int64
}

// watchFailures watches the calls of an Envoy until stop.
func (e *envoy) watchFailures(t *testing.T) *failureWatch {
	w := &failureWatch{t: t, envoy: e, start: time.Now(), done: make(chan struct{}), causes: map[string]int64{}}
	w.running.Go(w.measurePauses)
	w.running.Go(w.readCounters)
	return w
}

// log logs an event with the time since the start.
func (w *failureWatch) log(format string, args ...any) {
	w.t.Logf("%7.2f s: %s", time.Since(w.start).Seconds(), fmt.Sprintf(format, args...))
}

// measurePauses measures how much later than asked the machine wakes a process.
func (w *failureWatch) measurePauses() {
	const nap = time.Millisecond
	for {
		slept := time.Now()
		select {
		case <-w.done:
			return
		case <-time.After(nap):
		}
		if late := int64(time.Since(slept) - nap); late > w.pause.Load() {
			w.pause.Store(late)
		}
	}
}

// readCounters compares Envoy's counters with those of the period before.
func (w *failureWatch) readCounters() {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	before := w.envoy.counters()
	for running := true; running; {
		select {
		case <-w.done:
			running = false // the last period is shorter
		case <-ticker.C:
		}
		now, pause := w.envoy.counters(), time.Duration(w.pause.Swap(0))
		if len(now) == 0 {
			continue // Envoy did not answer; the next period has the calls of both
		}
		if failed := now[failedCalls] - before[failedCalls]; failed > 0 {
			w.addFailures(failed, pause, before, now)
		}
		before = now
	}
}

// addFailures logs the failed calls of a period.
func (w *failureWatch) addFailures(failed int64, pause time.Duration, before, now map[string]int64) {
	var causes []string
	w.mu.Lock()
	for _, c := range failureCauses {
		if grown := now[c.counter] - before[c.counter]; grown > 0 {
			w.causes[c.cause] += grown
			causes = append(causes, fmt.Sprintf("%d %s", grown, c.cause))
		}
	}
	w.failed += failed
	if pause >= busyPause {
		w.busy += failed
	}
	w.mu.Unlock()
	w.log("%d failed calls (%s); longest pause of the machine %v, new connections %d", failed, strings.Join(causes, ", "),
		pause.Round(time.Millisecond), now["cluster.rls.upstream_cx_total"]-before["cluster.rls.upstream_cx_total"])
}

// stop logs the sums and returns the number of failed calls.
func (w *failureWatch) stop() int64 {
	close(w.done)
	w.running.Wait()
	for cause, calls := range w.causes {
		w.t.Logf("%d calls %s", calls, cause)
	}
	w.t.Logf("%d failed calls, %d of them while the machine paused for %v or longer", w.failed, w.busy, busyPause)
	return w.failed
}

var counterLine = regexp.MustCompile(`(?m)^(cluster\.\S+): (\d+)$`)

// counters returns Envoy's counters of clusters.
func (e *envoy) counters() map[string]int64 {
	counters := map[string]int64{}
	for _, line := range counterLine.FindAllStringSubmatch(e.adminPage("/stats?usedonly&filter=^cluster\\.(rls|echo)\\."), -1) {
		counters[line[1]], _ = strconv.ParseInt(line[2], 10, 64)
	}
	return counters
}
