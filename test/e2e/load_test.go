//go:build e2e

package e2e_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// load is a group of callers that send calls until stop.
type load struct {
	goroutines sync.WaitGroup
	done       chan struct{}
	start      time.Time

	mu              sync.Mutex
	answersByStatus map[int]int
	errs            []error
}

// startLoad lets callers send calls, each with a pause after its answer.
func (e *envoy) startLoad(callers int, c call) *load {
	const pause = 2 * time.Millisecond
	return e.startCallers(callers, c, func() <-chan time.Time { return time.After(pause) })
}

// startLoadAtRate sends calls at a rate per second, whatever the answers take. If all callers wait for
// answers, the rate is lower.
func (e *envoy) startLoadAtRate(t *testing.T, rate int, c call) *load {
	const callers = 32
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	t.Cleanup(ticker.Stop)
	return e.startCallers(callers, c, func() <-chan time.Time { return ticker.C })
}

// startCallers lets callers send calls, each when its next channel has a value.
func (e *envoy) startCallers(callers int, c call, next func() <-chan time.Time) *load {
	l := &load{done: make(chan struct{}), answersByStatus: map[int]int{}, start: time.Now()}
	for range callers {
		l.goroutines.Go(func() {
			for {
				select {
				case <-l.done:
					return
				case <-next():
				}
				a, err := e.trySend(c)
				l.mu.Lock()
				if err != nil {
					l.errs = append(l.errs, err)
				} else {
					l.answersByStatus[a.status]++
				}
				l.mu.Unlock()
			}
		})
	}
	return l
}

// stop returns the number of answers by status.
func (l *load) stop(t *testing.T) map[int]int {
	t.Helper()
	close(l.done)
	l.goroutines.Wait()
	assert.Empty(t, l.errs)
	t.Logf("answers in %v: %v", time.Since(l.start).Round(time.Second), l.answersByStatus)
	return l.answersByStatus
}
