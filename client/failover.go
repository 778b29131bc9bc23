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
	// FailClosed grants no permits and returns the error of the service. But Acquire tries again until its context ends.
	FailClosed Failure = iota

	// FailOpen grants all permits.
	FailOpen

	// FailLocal decides in this process, with Options.Limits and Options.LocalRatio.
	FailLocal
)

// probePause is the time between two calls that test whether a failed service answers again.
const probePause = time.Second

// failover calls the service, and decides in place of the service while the service does not answer.
type failover struct {
	remoteService service
	failureMode   Failure
	localService  service // decides in mode FailLocal; otherwise nil
	clock         Clock
	log           *slog.Logger

	// A call that misses its deadline counts as an outage only if the call took at least minOutageTime. Otherwise one
	// caller with a short deadline could cause decisions without the service for all callers of the Client.
	minOutageTime time.Duration

	// nextProbe is the time of the next probe while the service fails, in nanoseconds since 1970; 0 while the service
	// answers.
	nextProbe atomic.Int64
}

func newFailover(remoteService service, options Options, clock Clock, log *slog.Logger) (*failover, error) {
	failover := &failover{
		remoteService: remoteService, failureMode: options.Failure, clock: clock, log: log,
		minOutageTime: cmp.Or(options.Timeout, DefaultTimeout) / 10,
	}
	switch {
	case options.Failure == FailLocal:
		var err error
		failover.localService, err = newLocal(options.Limits, options.LocalRatio, clock)
		return failover, err
	case options.Failure < FailClosed || options.Failure > FailLocal:
		return nil, fmt.Errorf("options: Failure: got %d, want FailClosed, FailOpen or FailLocal", options.Failure)
	case options.Limits != nil || options.LocalRatio != 0:
		return nil, errors.New("options: Limits and LocalRatio are only for FailLocal; remove them, or set Failure to FailLocal")
	}
	return failover, nil
}

func (f *failover) decide(ctx context.Context, call *call) (*answer, error) {
	switch isRefund := call.n < 0; {
	case f.failureMode == FailClosed, isRefund && !call.isGrantDegraded:
		return f.remoteService.decide(ctx, call)
	case isRefund, !f.mayCall():
		return f.decideWithoutService(ctx, call)
	}
	start := time.Now()
	a, err := f.remoteService.decide(ctx, call)
	if hasServiceAnswered(err) && f.nextProbe.Swap(0) != 0 {
		f.log.Info("rls answers again")
	}
	switch {
	case err == nil:
		return a, nil
	case !isOutage(err):
		return nil, err
	case isMissedDeadline(err) && time.Since(start) < f.minOutageTime:
		return f.decideWithoutService(ctx, call)
	}
	if f.nextProbe.Swap(f.clock.Now().Add(probePause).UnixNano()) == 0 {
		f.log.Warn("rls failed", "error", err)
	}
	return f.decideWithoutService(ctx, call)
}

// mayCall reports whether the caller may call the service. While the service fails, only one caller in each probePause may
// call the service, as a probe.
func (f *failover) mayCall() bool {
	nextProbe := f.nextProbe.Load()
	now := f.clock.Now()
	return nextProbe == 0 || now.UnixNano() >= nextProbe && f.nextProbe.CompareAndSwap(nextProbe, now.Add(probePause).UnixNano())
}

func (f *failover) decideWithoutService(ctx context.Context, c *call) (*answer, error) {
	if f.failureMode == FailOpen {
		return &answer{Decision: Decision{Allowed: true, Degraded: true}}, nil
	}
	a, err := f.localService.decide(ctx, c)
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

// hasServiceAnswered reports whether the service has answered the call that returned err. An error about the request, such
// as INVALID_ARGUMENT, is an answer too.
func hasServiceAnswered(err error) bool {
	s, isStatus := status.FromError(err) // a nil err has the code OK
	return isStatus && s.Code() != codes.Canceled && !isOutage(err)
}

func isMissedDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}
