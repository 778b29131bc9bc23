package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// process owns the goroutines of the service, and what must be closed at its end.
type process struct {
	ctx        context.Context // is done when the process ends
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
	closers    []func()
}

// newProcess returns a process without goroutines. Calls in flight outlive ctx, and so does the process.
func newProcess(ctx context.Context) *process {
	p := &process{}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return p
}

// start runs f in a goroutine. f must return when its context is done.
func (p *process) start(f func(ctx context.Context)) {
	p.goroutines.Go(func() { f(p.ctx) })
}

// atEnd calls f after the goroutines have ended. The last function that was given is called first.
func (p *process) atEnd(f func()) { p.closers = append(p.closers, f) }

// joinTime bounds the time that goroutines have to end before anything closes. A command of Redis goes on
// until its timeout or until its client closes, although its context is done.
const joinTime = time.Second

// end waits for the goroutines, and then closes everything.
func (p *process) end() {
	p.cancel()
	ended := make(chan struct{})
	go func() {
		p.goroutines.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(joinTime):
	}
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	<-ended
}

// onHangup calls f on each SIGHUP. SIGHUP then does not end the process.
func (p *process) onHangup(f func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	p.start(func(ctx context.Context) {
		for {
			select {
			case <-signals:
				f()
			case <-ctx.Done():
				return
			}
		}
	})
}
