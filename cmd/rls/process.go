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

// process owns the goroutines of the service, and the functions that close things when the service ends.
type process struct {
	ctx        context.Context // is done when the process ends
	cancel     context.CancelFunc
	goroutines sync.WaitGroup
	closers    []func()
}

// newProcess returns a process without goroutines. The process runs until end is called. It does not stop when ctx ends,
// because calls are still in flight then.
func newProcess(ctx context.Context) *process {
	p := &process{}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return p
}

// start runs f in a goroutine. f must return when its context is done.
func (p *process) start(f func(ctx context.Context)) {
	p.goroutines.Go(func() { f(p.ctx) })
}

// addCloser makes end call f after the goroutines have ended. end calls the last closer first.
func (p *process) addCloser(f func()) { p.closers = append(p.closers, f) }

// joinTime is the time that end waits for the goroutines before it calls the closers. Even if its context is done, a
// command to Redis continues until its timeout, or until a closer closes its client.
const joinTime = time.Second

func (p *process) end() {
	p.cancel()
	done := make(chan struct{})
	go func() {
		p.goroutines.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(joinTime):
	}
	for _, f := range slices.Backward(p.closers) {
		f()
	}
	<-done
}

// onHangup makes each SIGHUP call f, so that SIGHUP does not end the process.
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
