package backendtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/internal/wait"
)

// Func is a func as a Limiter.
type Func func(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result)

var _ backend.Limiter = Func(nil)

// Take calls f.
func (f Func) Take(ctx context.Context, now time.Time, hits []backend.Hit, results []backend.Result) {
	f(ctx, now, hits, results)
}

// Flaky wraps a Limiter and fails or waits when it is told to. Its methods can be
// called from any goroutine, at any time; they are for the Takes that begin
// afterwards.
type Flaky struct {
	next backend.Limiter

	mu    sync.Mutex
	fail  func(backend.Hit) error
	delay time.Duration
	calls int
}

var _ backend.Limiter = (*Flaky)(nil)

// NewFlaky returns a Flaky that just passes on to next.
func NewFlaky(next backend.Limiter) *Flaky { return &Flaky{next: next} }

// Fail answers every hit with err, which should wrap backend.ErrUnavailable if a
// lost backend is meant; nil ends that.
func (f *Flaky) Fail(err error) { f.FailHits(func(backend.Hit) error { return err }) }

// FailHits answers the hits for which fail returns an error with it. The others
// are passed on. fail is called by many goroutines.
func (f *Flaky) FailHits(fail func(backend.Hit) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// Delay lets Takes wait for d first, or until their context ends: then they fail
// with an error that wraps backend.ErrUnavailable and the context's. 0 ends that.
func (f *Flaky) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Calls is how many Takes have begun.
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

	if delay > 0 && !wait.For(ctx, delay) {
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
	var passed backend.SubBatch
	for i, h := range hits {
		if err := fail(h); err != nil {
			results[i] = backend.Result{Err: err}
		} else {
			passed.Add(i, h)
		}
	}
	passed.Take(ctx, now, f.next)
	passed.CopyResults(results)
}
