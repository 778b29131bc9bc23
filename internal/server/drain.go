package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/tap"
)

// ErrInterrupted is the cause of a context that a person has ended. Serve then drains without DrainDelay.
var ErrInterrupted = errors.New("interrupted")

// drain stops the listeners in order. Debug and metrics stop last, to show a drain that hangs and the last calls.
func (s *Server) drain(delay time.Duration) {
	start, calls, begun := time.Now(), s.calls.calls.Load(), s.calls.begun.Load()
	s.opts.Log.Info("drain started", "calls_in_flight", calls, "drain_delay", delay, "drain_timeout", s.opts.DrainTimeout)
	s.opts.Observer.DrainStarted(calls)
	s.opts.Health.Set("server", false, "shutting down")
	if delay > 0 {
		s.serveDelay(delay)
		s.opts.Log.Info("drain delay ended", "calls_in_flight", s.calls.calls.Load(), "calls_since_start", s.calls.begun.Load()-begun)
	}

	s.startDrain()
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
	defer cancel()
	var cut int64 // calls in flight at the timeout
	countCut := sync.OnceFunc(func() { cut = s.calls.calls.Load() })
	var stopping sync.WaitGroup
	stopping.Go(func() { s.stopGRPC(ctx, countCut) })
	if s.http.stop(ctx, countCut) != nil {
		s.opts.Log.Warn("HTTP requests cut at the drain timeout", "drain_timeout", s.opts.DrainTimeout)
	}
	stopping.Wait()
	s.opts.Log.Info("drain finished", "took", time.Since(start).Round(time.Millisecond), "calls_cut", cut)
	s.opts.Observer.DrainFinished(cut)

	ctx, cancelOptional := context.WithTimeout(context.Background(), optionalTimeout)
	defer cancelOptional()
	for _, l := range s.optional {
		stopping.Go(func() { _ = l.stop(ctx, func() {}) })
	}
	stopping.Wait()
}

const lateTime = time.Second

// serveDelay waits while the server still takes calls, and warns if load balancers send calls at the end.
func (s *Server) serveDelay(delay time.Duration) {
	time.Sleep(delay - min(lateTime, delay/2))
	begun := s.calls.begun.Load()
	time.Sleep(min(lateTime, delay/2))
	if late := s.calls.begun.Load() - begun; late > 0 {
		s.opts.Log.Warn("calls still arrive at the end of the drain delay",
			"reason", "clients reconnect only now, or DRAIN_DELAY is too short", "calls", late, "in", min(lateTime, delay/2), "drain_delay", delay)
	}
}

// optionalTimeout bounds how long debug and metrics wait for requests. A long profile may be cut.
const optionalTimeout = 3 * time.Second

// stopGRPC waits for calls in flight. When ctx is done, it calls beforeCut and cuts them.
func (s *Server) stopGRPC(ctx context.Context, beforeCut func()) {
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		beforeCut()
		s.opts.Log.Warn("gRPC calls cut at the drain timeout", "drain_timeout", s.opts.DrainTimeout)
		// Stop does not wait for handlers. GracefulStop still does.
		s.grpc.Stop()
	}
}

// Close cuts calls in flight and releases all listeners. Serve need not have run.
func (s *Server) Close() {
	s.startDrain()
	s.endStreams()
	if s.grpc != nil {
		s.grpc.Stop()
		_ = s.grpcListener.Close() // Stop closes only a listener that was served
	}
	if s.http != nil {
		s.http.close()
	}
	for _, l := range s.optional {
		l.close()
	}
}

// cancelStreams returns a tap that cancels streams when drainCtx is done. Otherwise GracefulStop would wait for
// health watches and reflection. The context also ends a handler that waits in Recv.
func cancelStreams(isStream map[string]bool, drainCtx context.Context) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if !isStream[info.FullMethodName] {
			return ctx, nil
		}
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(drainCtx, cancel)
		context.AfterFunc(ctx, func() { stop() })
		return ctx, nil
	}
}

// inflight counts calls.
type inflight struct {
	calls atomic.Int64 // in flight
	begun atomic.Int64 // that ever began
}

// begin counts a call until end is called.
func (f *inflight) begin() {
	f.calls.Add(1)
	f.begun.Add(1)
}

func (f *inflight) end() { f.calls.Add(-1) }
