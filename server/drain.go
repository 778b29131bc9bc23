package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/tap"
)

// drain stops the listeners in order. Debug and metrics stop last, so that operators can
// inspect a drain that hangs and Prometheus can scrape the last calls.
func (s *Server) drain() {
	s.opts.Health.Set("server", false, "shutting down")
	time.Sleep(s.opts.DrainDelay)

	s.startDrain()
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
	defer cancel()
	var stopping sync.WaitGroup
	stopping.Go(func() { s.stopGRPC(ctx) })
	stopping.Go(func() { s.stopHTTP(ctx) })
	stopping.Wait()
	stopping.Go(func() { s.debug.finish() })
	stopping.Go(func() { s.metrics.finish() })
	stopping.Wait()
}

func (s *Server) stopGRPC(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		s.opts.Log.Warn("gRPC calls cut at the drain timeout", "drain_timeout", s.opts.DrainTimeout)
		// Stop does not wait for handlers. GracefulStop still does.
		s.grpc.Stop()
	}
}

func (s *Server) stopHTTP(ctx context.Context) {
	if err := s.http.server.Shutdown(ctx); err != nil {
		s.opts.Log.Warn("HTTP requests cut at the drain timeout", "drain_timeout", s.opts.DrainTimeout)
		s.http.close()
	}
}

// Close cuts calls in flight and releases all listeners. Serve need not have run.
func (s *Server) Close() {
	s.startDrain()
	if s.grpc != nil {
		s.grpc.Stop()
		_ = s.grpcListener.Close() // Stop closes only a listener that was served
	}
	s.http.close()
	s.debug.close()
	s.metrics.close()
}

// cancelStreams returns a tap that cancels the context of streams once draining is done.
// Otherwise GracefulStop would wait for health watches and reflection, which last as long
// as their clients want. Their clients get code Canceled. A tap sets the context before
// the stream starts, so that the context also ends a handler that waits in Recv. For
// other calls the tap is a map lookup.
func cancelStreams(isStream map[string]bool, draining context.Context) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if !isStream[info.FullMethodName] {
			return ctx, nil
		}
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(draining, cancel)
		context.AfterFunc(ctx, func() { stop() })
		return ctx, nil
	}
}
