package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/tap"
)

// drain takes the listeners down in order. Debug and metrics are last, so that
// a drain which hangs can be looked into and the last calls are counted.
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
		s.opts.Log.Warn("gRPC calls did not finish in time and are cut", "drain_timeout", s.opts.DrainTimeout)
		// Stop doesn't wait for handlers, GracefulStop goes on to.
		s.grpc.Stop()
	}
}

func (s *Server) stopHTTP(ctx context.Context) {
	if err := s.http.server.Shutdown(ctx); err != nil {
		s.opts.Log.Warn("HTTP requests did not finish in time and are cut", "drain_timeout", s.opts.DrainTimeout)
		s.http.close()
	}
}

// Close releases a Server at once, cutting what is in flight. New calls it on
// one that is not complete.
func (s *Server) Close() {
	s.startDrain()
	if s.grpc != nil {
		s.grpc.Stop()
		_ = s.grpcListener.Close() // if it was never served
	}
	s.http.close()
	s.debug.close()
	s.metrics.close()
}

// cancelStreams cancels the context of streams once draining is done: health
// watches and reflection last as long as the client likes, and GracefulStop
// would wait for them. Their clients see Canceled. It is a tap because only a
// context given before the stream starts also ends a handler that waits in
// Recv; for other calls it is a map lookup.
func cancelStreams(streams map[string]bool, draining context.Context) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if !streams[info.FullMethodName] {
			return ctx, nil
		}
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(draining, cancel)
		context.AfterFunc(ctx, func() { stop() }) // the stream has ended by itself
		return ctx, nil
	}
}
