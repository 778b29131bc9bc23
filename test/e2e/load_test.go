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
	running sync.WaitGroup
	done    chan struct{}

	mu   sync.Mutex
	seen map[int]int // answers by status
	errs []error
}

func (e *envoy) startLoad(callers int, c call) *load {
	l := &load{done: make(chan struct{}), seen: map[int]int{}}
	for range callers {
		l.running.Go(func() {
			for {
				select {
				case <-l.done:
					return
				case <-time.After(2 * time.Millisecond):
				}
				a, err := e.do(c)
				l.mu.Lock()
				if err != nil {
					l.errs = append(l.errs, err)
				} else {
					l.seen[a.status]++
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
	l.running.Wait()
	assert.Empty(t, l.errs)
	t.Log("answers:", l.seen)
	return l.seen
}
