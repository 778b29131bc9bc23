package client_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
	"github.com/seed-81f232ab/rls/client/local"
)

// slot is a descriptor with 2 slots. A hold of a slot expires after 30 s.
var slot = client.NewDescriptor("slot", "x")

func TestHoldKeepsItsSlotUntilRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		firstHold, err := c.AcquireHold(t.Context(), "shop", slot)
		require.NoError(t, err)
		secondHold, err := c.AcquireHold(t.Context(), "shop", slot)
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		r, err := c.Reserve(t.Context(), "shop", slot)
		require.NoError(t, err)
		assert.False(t, r.OK(), "both slots are renewed")

		acquired := make(chan *client.Hold)
		go func() {
			thirdHold, err := c.AcquireHold(t.Context(), "shop", slot)
			assert.NoError(t, err)
			acquired <- thirdHold
		}()
		synctest.Wait()
		startTime := time.Now()
		for range 2 {
			require.NoError(t, firstHold.Release())
		}
		thirdHold := <-acquired
		assert.Zero(t, time.Since(startTime), "a release in this process wakes the next caller")
		assert.Zero(t, remaining(t, c, slot), "the second Release frees nothing")
		require.NoError(t, secondHold.Release())
		require.NoError(t, thirdHold.Release())
		assert.Equal(t, 2, remaining(t, c, slot))
	})
}

// If another limit of the rule is spent, the caller would get no slot even after a release. So the
// caller waits for the other limit, and then asks once.
func TestAcquireHoldAsksOnceWhenTheOtherLimitHasAPermit(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c, job := newClient(t, s, client.Options{Clock: clock}), client.NewDescriptor("job", "x")
	firstHold, err := c.AcquireHold(t.Context(), "shop", job)
	require.NoError(t, err)
	require.NoError(t, firstHold.Release())
	callsBefore := s.calls.Load()
	acquired := make(chan error)
	go func() {
		_, err := c.AcquireHold(t.Context(), "shop", job)
		acquired <- err
	}()
	for range 5 {
		clock.WaitForTimers(1)
		clock.Advance(10 * time.Minute)
	}
	clock.WaitForTimers(1)
	clock.Advance(15 * time.Minute) // the last 10 minutes of the hour, and the random delay
	require.NoError(t, <-acquired)
	assert.EqualValues(t, 2, s.calls.Load()-callsBefore)
}

func TestReleaseBeforeACallDoesNotShortenThePauseAfterTheCall(t *testing.T) {
	assert.True(t, client.PausesDespiteEarlierRelease())
}

func TestAcquireHoldFailsAtOnceIfAnotherLimitIsSpentPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, job := clienttest.New(t, limits, nil), client.NewDescriptor("job", "x")
		firstHold, err := c.AcquireHold(t.Context(), "shop", job)
		require.NoError(t, err)
		require.NoError(t, firstHold.Release())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = c.AcquireHold(ctx, "shop", job)
		var waitError *client.WaitError
		require.ErrorAs(t, err, &waitError)
		assert.Equal(t, time.Hour, waitError.Wait)
	})
}

func TestSlotsOfStoppedClientAreFreeExactlyAfterTheHoldTime(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	stoppedClient := newClient(t, s, client.Options{Clock: clienttest.NewClock(start)}) // its clock stands still, so it renews nothing
	_, err := stoppedClient.AcquireHoldN(t.Context(), 2, "shop", slot)
	require.NoError(t, err)
	otherClient := newClient(t, s, client.Options{Clock: clock})
	clock.Advance(30*time.Second - time.Microsecond)
	assert.Zero(t, remaining(t, otherClient, slot))
	clock.Advance(time.Microsecond)
	assert.Equal(t, 2, remaining(t, otherClient, slot))
}

func TestCallersGetSlotsInOrderOfCallsAndNeverExceedTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		var mu sync.Mutex
		holders, maxHolders := 0, 0
		acquireTimes := make([]time.Duration, 10)
		startTime := time.Now()
		var callerGroup sync.WaitGroup
		for i := range 10 {
			callerGroup.Go(func() {
				h, err := c.AcquireHold(t.Context(), "shop", slot)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				holders++
				maxHolders = max(maxHolders, holders)
				acquireTimes[i] = time.Since(startTime)
				mu.Unlock()
				time.Sleep(time.Minute)
				mu.Lock()
				holders--
				mu.Unlock()
				assert.NoError(t, h.Release())
			})
			synctest.Wait()
		}
		callerGroup.Wait()
		assert.Equal(t, 2, maxHolders)
		assert.Equal(t, 5*time.Minute, time.Since(startTime).Truncate(time.Second))
		assert.True(t, slices.IsSorted(acquireTimes), "no caller overtakes an earlier one")
	})
}

func TestHoldWithoutConcurrencyLimitIsNotRenewedOrRefunded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		h, err := c.AcquireHold(t.Context(), "shop", tenant)
		require.NoError(t, err)
		assert.True(t, h.Limited())
		time.Sleep(30 * time.Second)
		require.NoError(t, h.Release())
		assert.Equal(t, 9, remaining(t, c, tenant), "the client does not renew or refund the permit")

		h, err = c.AcquireHold(t.Context(), "shop", client.NewDescriptor("other", "x"))
		require.NoError(t, err)
		assert.False(t, h.Limited())
		require.NoError(t, h.Release())
	})
}

func TestHoldIsLostIfOutageLastsLongerThanTheHoldTime(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Clock: clock, Timeout: time.Second})
	h, err := c.AcquireHold(t.Context(), "shop", slot)
	require.NoError(t, err)
	for range 6 { // renewals
		clock.WaitForTimers(1)
		clock.Advance(10 * time.Second)
	}
	clock.WaitForTimers(1)
	startOutage(s)
	clock.Advance(10 * time.Second)
	for range 10 { // after a failed renewal, the next one comes after 3 s, a tenth of the hold
		clock.WaitForTimers(1)
		select {
		case <-h.Lost():
			assert.Fail(t, "lost before the end of the hold")
		default:
		}
		clock.Advance(3 * time.Second)
		if clock.Now().Sub(start) > 90*time.Second {
			break
		}
	}
	<-h.Lost()
	s.beforeDecision.Store(nil) // ends the outage
	require.NoError(t, h.Release())
}

func TestHoldIsRenewedByItsId(t *testing.T) {
	clock := clienttest.NewClock(start)
	c := newClient(t, newService(t, clock), client.Options{Clock: clock})
	h, err := c.AcquireHoldN(t.Context(), 2, "shop", slot)
	require.NoError(t, err)
	for range 10 {
		clock.WaitForTimers(1)
		clock.Advance(10 * time.Second)
		assert.Zero(t, remaining(t, c, slot))
	}
	clock.WaitForTimers(1)
	require.NoError(t, h.Release())
	assert.Equal(t, 2, remaining(t, c, slot))
}

func TestReleaseWaitsForRenewalInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		client.DelayTakes(c, time.Second/2)
		h, err := c.AcquireHold(t.Context(), "shop", slot)
		require.NoError(t, err)
		time.Sleep(10*time.Second + time.Second/4) // the renewal is in flight
		require.NoError(t, h.Release())
		time.Sleep(time.Second)
		assert.Equal(t, 2, remaining(t, c, slot), "no renewal takes the slot after the release")
	})
}

func TestReleaseFreesSlotsInServiceAndInProcess(t *testing.T) {
	parsedLimits, err := local.ParseLimits("limits.yaml", limits)
	require.NoError(t, err)
	for name, startsInOutage := range map[string]bool{"granted in an outage": true, "renewed in an outage": false} {
		t.Run(name, func(t *testing.T) {
			clock := clienttest.NewClock(start)
			s := newService(t, clock)
			c := newClient(t, s, client.Options{Failure: client.FailLocal, Limits: parsedLimits, Clock: clock})
			setOutage := func(isOutage bool) {
				s.beforeDecision.Store(nil)
				if isOutage {
					startOutage(s)
				}
			}
			setOutage(startsInOutage)
			h, err := c.AcquireHold(t.Context(), "shop", slot)
			require.NoError(t, err)
			setOutage(!startsInOutage)
			clock.WaitForTimers(1)
			clock.Advance(10 * time.Second)
			clock.WaitForTimers(1) // the renewal has ended
			setOutage(false)
			clock.Advance(2 * time.Second)
			require.NoError(t, h.Release())
			assert.Equal(t, 2, remaining(t, c, slot), "the slots of the service")
			setOutage(true)
			assert.Equal(t, 2, remaining(t, c, slot), "the slots of this process")
		})
	}
}

func TestSlotGrantedAfterCancellationIsFreed(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c := newClient(t, s, client.Options{Clock: clock})
	cancelInFlight(t, s, func(ctx context.Context) error {
		_, err := c.AcquireHold(ctx, "shop", slot)
		return err
	})
	assert.Eventually(t, func() bool { return remaining(t, c, slot) == 2 }, 30*time.Second, time.Millisecond)
}

func TestRequestForMoreSlotsThanTheLimitFailsAtOnce(t *testing.T) {
	clock := clienttest.NewClock(start)
	for _, c := range []*client.Client{newClient(t, newService(t, clock), client.Options{Clock: clock}), clienttest.New(t, limits, clock)} {
		var weightError *client.WeightError
		_, err := c.AcquireHoldN(t.Context(), 3, "shop", slot)
		require.ErrorAs(t, err, &weightError)
	}
}
