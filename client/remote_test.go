package client_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
	"github.com/seed-81f232ab/rls/client/local"
)

func TestDeniedAcquireChargesNoLimitOfService(t *testing.T) {
	clock := clienttest.NewClock(start)
	c := newClient(t, newService(t, clock), client.Options{Clock: clock})
	pathDescriptor := tenant.Add("path", "/orders")
	require.NoError(t, c.AcquireN(t.Context(), 2, "shop", pathDescriptor))
	for range 20 {
		r, err := c.Reserve(t.Context(), "shop", pathDescriptor, tenant)
		require.NoError(t, err)
		require.False(t, r.OK())
		assert.Equal(t, time.Second, r.Delay())
	}
	assert.Equal(t, 10, remaining(t, c, tenant), "the other descriptor is not charged")
	clock.Advance(time.Second)
	for range 49 { // the limit of an hour has 98 hits left
		require.NoError(t, c.AcquireN(t.Context(), 2, "shop", pathDescriptor))
		clock.Advance(time.Second)
	}
	r, err := c.Reserve(t.Context(), "shop", pathDescriptor)
	require.NoError(t, err)
	assert.False(t, r.OK())
	assert.Equal(t, 59*time.Minute+10*time.Second, r.Delay())
}

func TestAllowChargesDeniedHitsAsRuleStates(t *testing.T) {
	clock := clienttest.NewClock(start)
	c := newClient(t, newService(t, clock), client.Options{Clock: clock})
	r, err := c.ReserveN(t.Context(), 10, "shop", tenant)
	require.NoError(t, err)
	ok, err := c.AllowN(t.Context(), 4, "shop", tenant)
	require.NoError(t, err)
	assert.False(t, ok)
	require.NoError(t, r.Cancel())
	assert.Equal(t, 6, remaining(t, c, tenant), "fixed_window charges denied hits")
}

func TestCancelRefundsOnceAndNotAfterCommitOrReset(t *testing.T) {
	clock := clienttest.NewClock(start)
	c := newClient(t, newService(t, clock), client.Options{Clock: clock})
	reserve := func() *client.Reservation {
		r, err := c.ReserveN(t.Context(), 4, "shop", tenant)
		require.NoError(t, err)
		require.True(t, r.OK())
		return r
	}
	cancelledReservation, committedReservation := reserve(), reserve()
	committedReservation.Commit()
	for range 2 {
		require.NoError(t, cancelledReservation.Cancel())
		require.NoError(t, committedReservation.Cancel())
	}
	assert.Equal(t, 6, remaining(t, c, tenant))
	pastReservation := reserve()
	clock.Advance(time.Minute)
	currentReservation := reserve()
	require.NoError(t, pastReservation.Cancel())
	assert.Equal(t, 6, remaining(t, c, tenant), "permits of a past window are not refunded in the next window")
	currentReservation.Commit()
}

func TestCancelFreesSlotAfterOtherHoldsHaveExpired(t *testing.T) {
	for name, newClientWith := range map[string]func(*clienttest.Clock) *client.Client{
		"service": func(clock *clienttest.Clock) *client.Client {
			return newClient(t, newService(t, clock), client.Options{Clock: clock})
		},
		"local": func(clock *clienttest.Clock) *client.Client { return clienttest.New(t, limits, clock) },
	} {
		clock := clienttest.NewClock(start)
		c := newClientWith(clock)
		_, err := c.Reserve(t.Context(), "shop", slot)
		require.NoError(t, err)
		clock.Advance(20 * time.Second)
		r, err := c.Reserve(t.Context(), "shop", slot)
		require.NoError(t, err)
		require.True(t, r.OK())
		clock.Advance(20 * time.Second) // the first hold has expired
		require.NoError(t, r.Cancel())
		assert.Equal(t, 2, remaining(t, c, slot), name)
	}
}

func TestCancelReturnsErrorIfRuleForbidsRefunds(t *testing.T) {
	clock := clienttest.NewClock(start)
	for name, c := range map[string]*client.Client{
		"service": newClient(t, newService(t, clock), client.Options{Clock: clock}),
		"local":   clienttest.New(t, limits, clock),
	} {
		r, err := c.Reserve(t.Context(), "shop", client.NewDescriptor("final", "x"))
		require.NoError(t, err)
		assert.ErrorContains(t, r.Cancel(), "refunds: false", name)
	}
}

func TestPermitGrantedAfterCancellationIsRefunded(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Clock: clock})
	cancelInFlight(t, s, func(ctx context.Context) error { return c.Acquire(ctx, "shop", tenant) })
	assert.Eventually(t, func() bool { return remaining(t, c, tenant) == 10 }, 30*time.Second, time.Millisecond)
}

func TestWaitingCallersShareCallsOfService(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Clock: clock})
	callStarted, mayProceed := make(chan bool, 1), make(chan bool)
	var firstCall sync.Once
	block := func(context.Context) error {
		firstCall.Do(func() {
			callStarted <- true
			<-mayProceed
		})
		return nil
	}
	s.beforeDecision.Store(&block)
	var callerGroup sync.WaitGroup
	acquire := func() {
		callerGroup.Go(func() { assert.NoError(t, c.Acquire(t.Context(), "shop", slidingLog)) })
	}
	acquire()
	<-callStarted
	for range 99 {
		acquire()
	}
	assert.Eventually(t, func() bool { return client.WaiterCount(c) == 100 }, 30*time.Second, time.Millisecond)
	mayProceed <- true
	callerGroup.Wait()
	assert.LessOrEqual(t, s.calls.Load(), int64(8), "batches of 1, 2, 4, 8, 16, 32 and 37")
}

// startOutage makes s fail.
func startOutage(s *testService) {
	fail := func(context.Context) error { return status.Error(codes.Unavailable, "Redis is away") }
	s.beforeDecision.Store(&fail)
}

func TestFailureOptionDecidesDuringOutage(t *testing.T) {
	clock := clienttest.NewClock(start)
	localLimits, err := local.ParseLimits("limits.yaml", limits)
	require.NoError(t, err)
	for name, test := range map[string]struct {
		options client.Options
		want    int // the number of allowed calls among 10 calls
	}{
		"calls fail":                             {client.Options{Timeout: time.Second}, 0},
		"calls pass":                             {client.Options{Failure: client.FailOpen}, 10},
		"the client counts":                      {client.Options{Failure: client.FailLocal, Limits: localLimits}, 10},
		"the client counts a share of the limit": {client.Options{Failure: client.FailLocal, Limits: localLimits, LocalRatio: 0.5}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, clock)
			test.options.Clock = clock
			c := newClient(t, s, test.options)
			startOutage(s)
			allowedCalls, calls := 0, 10
			if test.want == 0 {
				calls = 1 // each call is retried
			}
			for range calls {
				ok, err := c.Allow(t.Context(), "shop", tenant)
				if ok {
					allowedCalls++
				}
				if test.want == 0 {
					assert.ErrorContains(t, err, "Redis is away")
				} else {
					assert.NoError(t, err)
				}
			}
			assert.Equal(t, test.want, allowedCalls)
			s.beforeDecision.Store(nil)
			clock.Advance(time.Minute)
			d, err := c.Check(t.Context(), client.Request{Domain: "shop", Descriptors: []client.Descriptor{tenant}})
			require.NoError(t, err)
			assert.False(t, d.Degraded, "the service answers again")
			assert.Equal(t, uint32(9), d.Remaining)
		})
	}
}

func TestClientCallsServiceOncePerProbePauseDuringOutage(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Failure: client.FailOpen, Clock: clock})
	startOutage(s)
	for range 20 {
		_, err := c.Allow(t.Context(), "shop", tenant)
		require.NoError(t, err)
	}
	callsBefore := s.calls.Load()
	assert.LessOrEqual(t, callsBefore, int64(5), "one call with its retries")
	clock.Advance(2 * time.Second)
	for range 20 {
		_, err := c.Allow(t.Context(), "shop", tenant)
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, s.calls.Load(), 2*callsBefore)
}

func TestRejectionOfRequestEndsOutage(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Failure: client.FailOpen, Clock: clock})
	request := client.Request{Domain: "shop", Descriptors: []client.Descriptor{tenant}}
	startOutage(s)
	d, err := c.Check(t.Context(), request)
	require.NoError(t, err)
	require.True(t, d.Degraded)
	clock.Advance(2 * time.Second)
	reject := func(context.Context) error { return status.Error(codes.InvalidArgument, "not this request") }
	s.beforeDecision.Store(&reject)
	_, err = c.Check(t.Context(), request)
	require.ErrorContains(t, err, "not this request")
	s.beforeDecision.Store(nil)
	d, err = c.Check(t.Context(), request)
	require.NoError(t, err)
	assert.False(t, d.Degraded, "the next call needs no probe")
}

// A caller of a server with an interceptor chooses the deadline of the call. The deadline must not open the limits.
func TestCallThatMissesAVeryShortDeadlineIsNoOutage(t *testing.T) {
	s := newService(t, clienttest.NewClock(start))
	c := newClient(t, s, client.Options{Failure: client.FailOpen})
	stall := func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}
	s.beforeDecision.Store(&stall)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, _ = c.Allow(ctx, "shop", tenant)
	s.beforeDecision.Store(nil)
	d, err := c.Check(t.Context(), client.Request{Domain: "shop", Descriptors: []client.Descriptor{tenant}, N: 11})
	require.NoError(t, err)
	assert.False(t, d.Degraded)
	assert.False(t, d.Allowed)
}

func TestAcquireSucceedsAfterOutage(t *testing.T) {
	s := newService(t, clienttest.NewClock(start))
	c := newClient(t, s, client.Options{})
	startOutage(s)
	done := make(chan error)
	go func() { done <- c.Acquire(t.Context(), "shop", tenant) }()
	assert.Eventually(t, func() bool { return s.calls.Load() > 5 }, 30*time.Second, time.Millisecond)
	s.beforeDecision.Store(nil)
	require.NoError(t, <-done)
}

func TestAcquireReturnsErrorOfServiceIfContextEndsInOutage(t *testing.T) {
	s := newService(t, clienttest.NewClock(start))
	c := newClient(t, s, client.Options{})
	startOutage(s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Acquire(ctx, "shop", tenant) }()
	assert.Eventually(t, func() bool { return s.calls.Load() > 5 }, 30*time.Second, time.Millisecond)
	cancel()
	err := <-done
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorContains(t, err, "Redis is away")
}

func TestRejectedRequestIsNotRepeated(t *testing.T) {
	s := newService(t, clienttest.NewClock(start))
	c := newClient(t, s, client.Options{Failure: client.FailOpen})
	reject := func(context.Context) error { return status.Error(codes.PermissionDenied, "not your domain") }
	s.beforeDecision.Store(&reject)
	assert.ErrorContains(t, c.Acquire(t.Context(), "shop", tenant), "not your domain")
	_, err := c.Allow(t.Context(), "shop", tenant)
	assert.ErrorContains(t, err, "not your domain")
	assert.Equal(t, int64(2), s.calls.Load())
}

func TestNewRejectsInvalidOptions(t *testing.T) {
	localLimits, err := local.ParseLimits("limits.yaml", limits)
	require.NoError(t, err)
	for want, o := range map[string]client.Options{
		"Timeout: got -1s":       {Timeout: -time.Second},
		"Failure: got 7":         {Failure: 7},
		"Limits: got none":       {Failure: client.FailLocal},
		"LocalRatio: got 1.5":    {Failure: client.FailLocal, Limits: localLimits, LocalRatio: 1.5},
		"are only for FailLocal": {Limits: localLimits},
	} {
		_, err := client.New("localhost:8081", o)
		assert.ErrorContains(t, err, want)
	}
	_, err = client.New("", client.Options{})
	assert.ErrorContains(t, err, "target: got none")
	_, err = client.NewLocal(nil, client.Options{})
	assert.ErrorContains(t, err, "Limits: got none")
}
