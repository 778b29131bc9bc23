//go:build e2e

package e2e_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// failedCalls is Envoy's counter of failed calls to rls.
const failedCalls = "cluster.echo.ratelimit.error"

// failureCauses are Envoy's counters that say why a call failed.
var failureCauses = []struct{ counter, cause string }{
	{"cluster.rls.upstream_rq_timeout", "without an answer in time"},
	{"cluster.rls.upstream_rq_rx_reset", "reset by a replica, which happens at a deadline too"},
	{"cluster.rls.upstream_cx_destroy_remote_with_active_rq", "cut by a replica that closed its connection"},
	{"cluster.rls.upstream_cx_connect_fail", "without a connection, which a replica refused"},
	{"cluster.rls.upstream_cx_connect_timeout", "without a connection in time"},
	{"cluster.rls.upstream_cx_none_healthy", "without a healthy replica"},
}

const watchPeriod = 100 * time.Millisecond

// busyShare is the share of a period in which a process waits for a processor, from which on the
// machine alone can make calls late.
const busyShare = 0.5

// failureWatch logs the restarts, and the failed calls of each period with their cause.
type failureWatch struct {
	t          *testing.T
	envoy      *envoy
	start      time.Time
	done       chan struct{}
	goroutines sync.WaitGroup

	failedCount         int64 // calls
	failedOnBusyMachine int64 // the failed calls while the machine was busy
	causes              map[string]int64
}

// watchFailures watches the calls of an Envoy until stop.
func (e *envoy) watchFailures(t *testing.T) *failureWatch {
	w := &failureWatch{t: t, envoy: e, start: time.Now(), done: make(chan struct{}), causes: map[string]int64{}}
	w.goroutines.Go(w.readCounters)
	return w
}

// log logs an event with the time since the start.
func (w *failureWatch) log(format string, args ...any) {
	w.t.Logf("%7.2f s: %s", time.Since(w.start).Seconds(), fmt.Sprintf(format, args...))
}

// readCounters compares Envoy's counters with those of the period before.
func (w *failureWatch) readCounters() {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	lastSample := w.readSample()
	for isRunning := true; isRunning; {
		select {
		case <-w.done:
			isRunning = false // the last period is shorter
		case <-ticker.C:
		}
		thisSample := w.readSample()
		if len(thisSample.counters) == 0 {
			continue // Envoy did not answer; the next period has the calls of both
		}
		w.addFailures(lastSample, thisSample)
		lastSample = thisSample
	}
}

// sample has Envoy's counters, and the time that the processes of the machine have waited for a
// processor until then.
type sample struct {
	time     time.Time
	counters map[string]int64
	waitTime time.Duration
}

var waitTimeLine = regexp.MustCompile(`(?m)^some .* total=(\d+)$`)

// readSample returns the values of now.
func (w *failureWatch) readSample() sample {
	s := sample{counters: w.envoy.counters(), time: time.Now()}
	pressure, _ := os.ReadFile("/proc/pressure/cpu") // Linux only
	if total := waitTimeLine.FindSubmatch(pressure); total != nil {
		micros, _ := strconv.ParseInt(string(total[1]), 10, 64)
		s.waitTime = time.Duration(micros) * time.Microsecond
	}
	return s
}

// addFailures logs the failed calls between two samples.
func (w *failureWatch) addFailures(lastSample, thisSample sample) {
	growthOf := func(counter string) int64 { return thisSample.counters[counter] - lastSample.counters[counter] }
	failedCount := growthOf(failedCalls)
	if failedCount <= 0 {
		return
	}
	var causes []string
	for _, c := range failureCauses {
		if calls := growthOf(c.counter); calls > 0 {
			w.causes[c.cause] += calls
			causes = append(causes, fmt.Sprintf("%d %s", calls, c.cause))
		}
	}
	w.failedCount += failedCount
	busyShareOfTime := min(1, float64(thisSample.waitTime-lastSample.waitTime)/float64(thisSample.time.Sub(lastSample.time)))
	if busyShareOfTime >= busyShare {
		w.failedOnBusyMachine += failedCount
	}
	w.log("failed calls: %s; a process waited for a processor in %.0f%% of the time; new connections: %d",
		strings.Join(causes, ", "), 100*busyShareOfTime, growthOf("cluster.rls.upstream_cx_total"))
}

// stop logs the sums and returns the number of failed calls.
func (w *failureWatch) stop() int64 {
	close(w.done)
	w.goroutines.Wait()
	for cause, calls := range w.causes {
		w.t.Logf("%d calls %s", calls, cause)
	}
	w.t.Logf("%d failed calls, %d of them while processes waited for a processor at least half of the time", w.failedCount, w.failedOnBusyMachine)
	return w.failedCount
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
