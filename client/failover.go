package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Failure says how a Client decides while the service does not answer.
type Failure int

const (
	// FailClosed grants nothing and returns the error of the service. But Acquire waits until its context ends.
	FailClosed Failure = iota

	// FailOpen grants everything.
	FailOpen

	// FailLocal decides in this process, with Options.Limits and Options.LocalRatio.
	FailLocal
)

// probePause is the time between two calls that test whether a failed service answers again.
const probePause = time.Second

type failover struct {
	remote service
	mode   Failure
	local  service // decides in mode FailLocal; otherwise nil
	clock  Clock
	log    *slog.Logger

	// minOutageTime is the shortest time after which a call that misses its deadline counts as an outage. Otherwise
	// a caller with very short deadlines could open the limits of other callers.
	minOutageTime time.Duration

	// nextProbe is the time of the next call while the service fails, in nanoseconds; 0 while the service answers.
	nextProbe atomic.Int64
}

func newFailover(remote service, o Options, clock Clock, log *slog.Logger) (*failover, error) {
	f := &failover{
		remote: remote, mode: o.Failure, clock: clock, log: log,
		minOutageTime: cmp.Or(o.Timeout, DefaultTimeout) / 10,
	}
	switch {
	case o.Failure == FailLocal:
		var err error
		f.local, err = newLocal(o.Limits, o.LocalRatio, clock)
		return f, err
	case o.Failure < FailClosed || o.Failure > FailLocal:
		return nil, fmt.Errorf("options: Failure: got %d, want FailClosed, FailOpen or FailLocal", o.Failure)
	case o.Limits != nil || o.LocalRatio != 0:
		return nil, errors.New("options: Limits and LocalRatio: got a value, want none without FailLocal")
	}
	return f, nil
}

func (f *failover) decide(ctx context.Context, c *call) (*answer, error) {
	switch isRefund := c.n < 0; {
	case f.mode == FailClosed, isRefund && !c.grantedWithoutService:
		return f.remote.decide(ctx, c)
	case isRefund, !f.mayCall():
		return f.decideWithoutService(ctx, c)
	}
	begin := time.Now()
	a, err := f.remote.decide(ctx, c)
	if isAnswered(err) && f.nextProbe.Swap(0) != 0 {
		f.log.Info("rls answers again")
	}
	switch {
	case err == nil:
		return a, nil
	case !isOutage(err):
		return nil, err
	case isMissedDeadline(err) && time.Since(begin) < f.minOutageTime:
		return f.decideWithoutService(ctx, c)
	}
	if f.nextProbe.Swap(f.clock.Now().Add(probePause).UnixNano()) == 0 {
		f.log.Warn("rls failed", "error", err)
	}
	return f.decideWithoutService(ctx, c)
}

// mayCall reports whether the caller may call the service. While it fails, one caller in each probePause may.
func (f *failover) mayCall() bool {
	nextProbe := f.nextProbe.Load()
	now := f.clock.Now()
	return nextProbe == 0 || now.UnixNano() >= nextProbe && f.nextProbe.CompareAndSwap(nextProbe, now.Add(probePause).UnixNano())
}

func (f *failover) decideWithoutService(ctx context.Context, c *call) (*answer, error) {
	if f.mode == FailOpen {
		return &answer{Decision: Decision{Allowed: true, Degraded: true}}, nil
	}
	a, err := f.local.decide(ctx, c)
	if a != nil {
		a.Degraded = true
	}
	return a, err
}

// isOutage reports whether err is an error of the service or of the connection, so the same request can succeed later.
func isOutage(err error) bool {
	if isMissedDeadline(err) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Unknown, codes.Internal,
		codes.ResourceExhausted, codes.Aborted, codes.FailedPrecondition:
		_, isStatus := status.FromError(err)
		return isStatus
	}
	return false
}

// isAnswered reports whether the service has answered. An error about the request is an answer too.
func isAnswered(err error) bool {
	s, isStatus := status.FromError(err) // a nil err has the code OK
	return isStatus && s.Code() != codes.Canceled && !isOutage(err)
}

// isMissedDeadline reports whether the call of err has missed its deadline.
func isMissedDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}
