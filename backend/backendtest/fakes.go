package backendtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/base/wait"
)

// Func is a function that is a Limiter.
type Func func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result)

var _ backend.Limiter = Func(nil)

// Take calls f.
func (f Func) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f(ctx, now, hits, results)
}

// Flaky wraps a Limiter and can fail or delay its Takes. Its methods can be called from any
// goroutine. They affect only later Takes.
type Flaky struct {
	next backend.Limiter

	mu    sync.Mutex
	fail  func(backend.Hit) error
	delay time.Duration
	calls int
}

var _ backend.Limiter = (*Flaky)(nil)

// NewFlaky returns a Flaky that neither fails nor delays Takes of next.
func NewFlaky(next backend.Limiter) *Flaky { return &Flaky{next: next} }

// SetError makes Takes answer every hit with err. To simulate a lost backend, err must wrap
// backend.ErrUnavailable. A nil err ends the failure.
func (f *Flaky) SetError(err error) { f.FailHits(func(backend.Hit) error { return err }) }

// FailHits makes Takes answer a hit with the error of fail. If fail returns nil, the hit goes to the
// wrapped Limiter. Many goroutines may call fail.
func (f *Flaky) FailHits(fail func(backend.Hit) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// Delay makes each Take wait for d. If its context ends before, the Take fails with an error
// that wraps backend.ErrUnavailable and the error of the context. A d of 0 ends the delay.
func (f *Flaky) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Calls returns how many Takes have begun.
func (f *Flaky) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Take implements backend.Limiter.
func (f *Flaky) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f.mu.Lock()
	f.calls++
	fail, delay := f.fail, f.delay
	f.mu.Unlock()

	if delay > 0 && !wait.Sleep(ctx, delay) {
		err := fmt.Errorf("%w: %w", backend.ErrUnavailable, context.Cause(ctx))
		for i := range results {
			results[i] = backend.Result{Err: err}
		}
		return
	}
	if fail == nil {
		f.next.Take(ctx, now, hits, results)
		return
	}
	var passedHits backend.SubBatch
	for i, h := range hits {
		if err := fail(h); err != nil {
			results[i] = backend.Result{Err: err}
		} else {
			passedHits.Add(i, h)
		}
	}
	passedHits.Take(ctx, now, f.next)
	passedHits.CopyResults(results)
}
