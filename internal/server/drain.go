package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/tap"
)

// ErrInterrupted is the cause of a context that a person has ended, such as with Ctrl+C. Serve then drains without
// DrainDelay.
var ErrInterrupted = errors.New("interrupted")

// drain stops the listeners. The debug and the metrics listener stop last, so that an operator can see a drain that hangs,
// and the metrics of the last calls.
func (s *Server) drain(delay time.Duration) {
	start, callsInFlight, totalAtStart := time.Now(), s.calls.inFlight.Load(), s.calls.total.Load()
	s.options.Log.Info("drain started", "calls_in_flight", callsInFlight, "drain_delay", delay, "drain_timeout", s.options.DrainTimeout)
	s.options.Observer.DrainStarted(callsInFlight)
	s.options.Health.Set("server", false, "shutting down")
	if delay > 0 {
		s.serveDuringDelay(delay)
		s.options.Log.Info("drain delay ended", "calls_in_flight", s.calls.inFlight.Load(), "calls_since_start", s.calls.total.Load()-totalAtStart)
	}

	s.startDrain()
	ctx, cancel := context.WithTimeout(context.Background(), s.options.DrainTimeout)
	defer cancel()
	var cutCalls int64 // the calls in flight at the timeout
	countCutCalls := sync.OnceFunc(func() { cutCalls = s.calls.inFlight.Load() })
	var goroutines sync.WaitGroup
	goroutines.Go(func() { s.stopGRPC(ctx, countCutCalls) })
	if s.http.stop(ctx, countCutCalls) != nil {
		s.options.Log.Warn("HTTP requests cut at the drain timeout", "drain_timeout", s.options.DrainTimeout)
	}
	goroutines.Wait()
	s.options.Log.Info("drain finished", "took", time.Since(start).Round(time.Millisecond), "calls_cut", cutCalls)
	s.options.Observer.DrainFinished(cutCalls)

	ctx, cancelOptional := context.WithTimeout(context.Background(), optionalTimeout)
	defer cancelOptional()
	for _, l := range s.optionalListeners {
		goroutines.Go(func() { _ = l.stop(ctx, func() {}) })
	}
	goroutines.Wait()
}

// maxQuietTime bounds the quiet time at the end of the drain delay, in which no more calls should arrive. The quiet time
// is at most half of the delay.
const maxQuietTime = time.Second

// serveDuringDelay waits for delay while the server still answers calls. It warns if calls arrive in the quiet time.
func (s *Server) serveDuringDelay(delay time.Duration) {
	quietTime := min(maxQuietTime, delay/2)
	time.Sleep(delay - quietTime)
	totalAtQuietStart := s.calls.total.Load()
	time.Sleep(quietTime)
	if lateCalls := s.calls.total.Load() - totalAtQuietStart; lateCalls > 0 {
		s.options.Log.Warn("calls still arrive at the end of the drain delay",
			"reason", "clients reconnect only now, or DRAIN_DELAY is too short", "calls", lateCalls, "in", quietTime, "drain_delay", delay)
	}
}

// optionalTimeout is the time after which the debug and the metrics listener cut the requests in flight, such as a long
// profile.
const optionalTimeout = 3 * time.Second

// stopGRPC waits for calls in flight. When ctx is done, it calls beforeCut and cuts the calls.
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
		s.options.Log.Warn("gRPC calls cut at the drain timeout", "drain_timeout", s.options.DrainTimeout)
		// Stop does not wait for the handlers, but GracefulStop does.
		s.grpc.Stop()
	}
}

// Close cuts calls in flight and releases all listeners. It can be called even if Serve was never called.
func (s *Server) Close() {
	s.startDrain()
	s.endStreams()
	if s.grpc != nil {
		s.grpc.Stop()
		_ = s.grpcListener.Close() // Stop closes the listener only after Serve
	}
	if s.http != nil {
		s.http.close()
	}
	for _, l := range s.optionalListeners {
		l.close()
	}
}

// streamCanceller returns a function that grpc calls before each call. If the call is a stream, the function ends the
// stream when drainCtx is done. Otherwise GracefulStop would wait for health watches and reflection.
func streamCanceller(isStream map[string]bool, drainCtx context.Context) tap.ServerInHandle {
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

type callCounter struct {
	inFlight atomic.Int64 // the number of calls in flight
	total    atomic.Int64 // the number of calls since the start of the server
}

func (f *callCounter) beginCall() {
	f.inFlight.Add(1)
	f.total.Add(1)
}

func (f *callCounter) endCall() { f.inFlight.Add(-1) }
