package client_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-81f232ab/rls/client"
	"github.com/seed-81f232ab/rls/client/clienttest"
)

// slidingLog is a descriptor with a sliding_log of 100 per second.
var slidingLog = client.NewDescriptor("log", "x")

func TestAcquireWaitsUntilReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock starts at the start of a minute
		c := clienttest.New(t, limits, nil)
		startTime := time.Now()
		for range 10 {
			require.NoError(t, c.Acquire(t.Context(), "shop", tenant))
		}
		assert.Zero(t, time.Since(startTime))
		require.NoError(t, c.Acquire(t.Context(), "shop", tenant))
		assert.GreaterOrEqual(t, time.Since(startTime), time.Minute)
		assert.LessOrEqual(t, time.Since(startTime), time.Minute+5*time.Second, "the random delay is small")
		assert.Equal(t, 9, remaining(t, c, tenant))
	})
}

func TestPermitsComeInOrderOfCallsAndExceedNoWindow(t *testing.T) {
	const callers = 1000
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		startTime := time.Now()
		times := make([]time.Duration, callers)
		var callerGroup sync.WaitGroup
		for i := range callers {
			callerGroup.Go(func() {
				assert.NoError(t, c.Acquire(t.Context(), "shop", slidingLog))
				times[i] = time.Since(startTime)
			})
			synctest.Wait() // until the caller stands in the queue, or has its permit
		}
		callerGroup.Wait()
		assert.GreaterOrEqual(t, times[callers-1], 9*time.Second)
		assert.LessOrEqual(t, times[callers-1], 11*time.Second)
		assert.True(t, slices.IsSorted(times), "no caller overtakes an earlier one")
		for i := 100; i < callers; i++ {
			require.GreaterOrEqual(t, times[i]-times[i-100], time.Second, "caller %d", i)
		}
	})
}

func TestAcquireGivesUpAtOnceIfDeadlineIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 10, "shop", tenant))
		time.Sleep(20 * time.Second)
		startTime := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 39*time.Second)
		defer cancel()
		err := c.Acquire(ctx, "shop", tenant)
		var waitError *client.WaitError
		require.ErrorAs(t, err, &waitError)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 40*time.Second, waitError.Wait)
		assert.Zero(t, time.Since(startTime))

		laterContext, cancelLater := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancelLater()
		require.NoError(t, c.Acquire(laterContext, "shop", tenant), "a later deadline is early enough")
	})
}

func TestDeadlineIsComparedWithTheClockOfTheClient(t *testing.T) {
	clock := clienttest.NewClock(start)
	s := newService(t, clock)
	c, otherClient := newClient(t, s, client.Options{Clock: clock}), newClient(t, s, client.Options{Clock: clock})
	require.NoError(t, otherClient.AcquireN(t.Context(), 10, "shop", tenant))
	ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
	defer cancel()
	acquired := make(chan error)
	go func() { acquired <- c.Acquire(ctx, "shop", tenant) }()
	clock.WaitForTimers(1)
	clock.Advance(time.Minute)
	require.NoError(t, otherClient.AcquireN(t.Context(), 10, "shop", tenant))
	clock.Advance(time.Second) // the random delay
	var waitError *client.WaitError
	require.ErrorAs(t, <-acquired, &waitError, "9 of 70 s are left, and the next window starts in 59 s")
}

func TestDeadlineCountsPermitsOfEarlierCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 10, "shop", tenant))
		var callerGroup sync.WaitGroup
		for range 3 { // each caller takes 8 permits, so each caller needs another minute
			callerGroup.Go(func() { assert.NoError(t, c.AcquireN(t.Context(), 8, "shop", tenant)) })
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		startTime := time.Now()
		var waitError *client.WaitError
		require.ErrorAs(t, c.AcquireN(ctx, 8, "shop", tenant), &waitError)
		assert.Zero(t, time.Since(startTime))
		assert.Equal(t, 3*time.Minute, waitError.Wait)
		callerGroup.Wait()
	})
}

func TestCallerGivesUpAtOnceIfItsWaitIsLongerThanADuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, yearlyDescriptor := clienttest.New(t, limits, nil), client.NewDescriptor("yearly", "x")
		require.NoError(t, c.Acquire(t.Context(), "shop", yearlyDescriptor))
		ctx, cancel := context.WithCancel(t.Context())
		var callerGroup sync.WaitGroup
		for range 300 { // a Duration ends after 292 years
			callerGroup.Go(func() { assert.ErrorIs(t, c.Acquire(ctx, "shop", yearlyDescriptor), context.Canceled) })
		}
		synctest.Wait()
		soonContext, cancelSoon := context.WithTimeout(t.Context(), time.Minute)
		defer cancelSoon()
		err := c.Acquire(soonContext, "shop", yearlyDescriptor)
		cancel()
		callerGroup.Wait()
		var waitError *client.WaitError
		require.ErrorAs(t, err, &waitError)
		assert.Equal(t, time.Duration(math.MaxInt64), waitError.Wait)
	})
}

func TestNextCallerGetsPermitsAtOnceIfFirstCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 5, "shop", tenant))
		client.DelayTakes(c, time.Second/2) // so that both callers wait when the first answer comes
		startTime := time.Now()
		var callerGroup sync.WaitGroup
		for _, n := range []int{10, 1} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			callerGroup.Go(func() {
				if err := c.AcquireN(ctx, n, "shop", tenant); n == 10 {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					assert.NoError(t, err)
				}
			})
			synctest.Wait()
		}
		callerGroup.Wait()
		assert.Equal(t, time.Second, time.Since(startTime), "one call for each caller")
	})
}

func TestCancelledAcquireChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		reservation, err := c.ReserveN(t.Context(), 10, "shop", tenant)
		require.NoError(t, err)
		require.True(t, reservation.OK())
		ctx, cancel := context.WithCancel(t.Context())
		var callerGroup sync.WaitGroup
		for range 5 {
			callerGroup.Go(func() { assert.ErrorIs(t, c.Acquire(ctx, "shop", tenant), context.Canceled) })
		}
		synctest.Wait()
		cancel()
		callerGroup.Wait()
		require.NoError(t, reservation.Cancel())
		assert.Equal(t, 10, remaining(t, c, tenant), "Acquire charges no denied hits, although the limit charges denied hits")
	})
}

func TestNextCallerGetsPermitsAtOnceIfFirstCallerIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 7, "shop", tenant))
		ctx, cancel := context.WithCancel(t.Context())
		var callerGroup sync.WaitGroup
		callerGroup.Go(func() { assert.ErrorIs(t, c.AcquireN(ctx, 5, "shop", tenant), context.Canceled) })
		synctest.Wait()
		startTime := time.Now()
		callerGroup.Go(func() { assert.NoError(t, c.AcquireN(t.Context(), 3, "shop", tenant)) })
		synctest.Wait()
		cancel()
		callerGroup.Wait()
		assert.Zero(t, time.Since(startTime), "3 permits are enough for the second caller")
	})
}

func TestRequestThatExceedsLimitFailsAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		n          int
		descriptor client.Descriptor
		limit      uint32
	}{
		"fixed_window":               {11, tenant, 10},
		"token_bucket with burst":    {51, bucket, 10},
		"max_hits":                   {6, client.NewDescriptor("bounded", "x"), 100},
		"limit of 0":                 {1, client.NewDescriptor("nothing", "x"), 0},
		"tightest of several limits": {3, tenant.Add("path", "/"), 2},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clienttest.NewClock(start)
			c := newClient(t, newService(t, clock), client.Options{Clock: clock})
			for kind, c := range map[string]*client.Client{"service": c, "local": clienttest.New(t, limits, clock)} {
				remainingBefore := remaining(t, c, test.descriptor)
				var weightError *client.WeightError
				require.ErrorAs(t, c.AcquireN(t.Context(), test.n, "shop", test.descriptor), &weightError, kind)
				assert.Equal(t, test.n, weightError.N)
				assert.Equal(t, test.limit, weightError.Limit)
				assert.ErrorContains(t, weightError, "can never pass")
				_, err := c.ReserveN(t.Context(), test.n, "shop", test.descriptor)
				assert.ErrorAs(t, err, &weightError, kind)
				assert.Equal(t, remainingBefore, remaining(t, c, test.descriptor), kind)
			}
		})
	}
}

func TestCallAboveMaxHitsThatPassesDoesNotChargeTheRule(t *testing.T) {
	quota := client.NewDescriptor("quota", "x")
	for name, descriptors := range map[string][]client.Descriptor{
		"shadow mode": {client.NewDescriptor("bounded-shadow", "x")},
		"two quotas":  {client.NewDescriptor("bounded-quota", "x"), quota},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clienttest.NewClock(start)
			c := newClient(t, newService(t, clock), client.Options{Clock: clock})
			for kind, c := range map[string]*client.Client{"service": c, "local": clienttest.New(t, limits, clock)} {
				ok, err := c.AllowN(t.Context(), 6, "shop", descriptors...)
				require.NoError(t, err, kind)
				assert.True(t, ok, kind)
				assert.EqualValues(t, 100, remaining(t, c, descriptors[0]), kind)
				if len(descriptors) > 1 {
					assert.EqualValues(t, 94, remaining(t, c, quota), kind)
				}
			}
		})
	}
}

// The second limit denies the request, but the request spends the last permit of the limit per minute.
func TestResetOfDeniedRequestIsTheTimeUntilItCanPass(t *testing.T) {
	for name, ds := range map[string][]client.Descriptor{
		"one rule":  {client.NewDescriptor("pair", "x")},
		"two rules": {client.NewDescriptor("five", "x"), client.NewDescriptor("four", "x")},
	} {
		clock := clienttest.NewClock(start)
		c := newClient(t, newService(t, clock), client.Options{Clock: clock})
		for kind, c := range map[string]*client.Client{"service": c, "local": clienttest.New(t, limits, clock)} {
			var d client.Decision
			for i := range 5 {
				var err error
				d, err = c.Check(t.Context(), client.Request{Domain: "shop", Descriptors: ds})
				require.NoError(t, err)
				require.Equal(t, i < 4, d.Allowed, "%s, %s", kind, name)
			}
			assert.Equal(t, time.Minute, d.Reset, "%s, %s", kind, name)
			assert.False(t, d.Never)
			d, err := c.Check(t.Context(), client.Request{Domain: "shop", Descriptors: ds, N: 9})
			require.NoError(t, err)
			assert.True(t, !d.Allowed && d.Never, "%s, %s", kind, name)
		}
	}
}

func TestCallPassesIfAnotherQuotaHasNoLimitInForce(t *testing.T) {
	zeroQuota := client.NewDescriptor("quota-zero", "x")
	for otherQuota, want := range map[string]bool{"": false, "pace": false, "quota-unlimited": true, "quota-disabled": true, "quota-without-a-limit": true} {
		clock := clienttest.NewClock(start)
		c := newClient(t, newService(t, clock), client.Options{Clock: clock})
		for kind, c := range map[string]*client.Client{"service": c, "local": clienttest.New(t, limits, clock)} {
			ds := []client.Descriptor{zeroQuota}
			if otherQuota != "" {
				ds = append(ds, client.NewDescriptor(otherQuota, "x"))
			}
			ok, err := c.Allow(t.Context(), "shop", ds...)
			require.NoError(t, err, "%s, %s", kind, otherQuota)
			assert.Equal(t, want, ok, "%s, %s", kind, otherQuota)
		}
	}
}

func TestBurstAboveRateCanBeAcquired(t *testing.T) {
	clock := clienttest.NewClock(start)
	c := newClient(t, newService(t, clock), client.Options{Clock: clock})
	require.NoError(t, c.AcquireN(t.Context(), 45, "shop", bucket))
	done := make(chan error)
	go func() { done <- c.AcquireN(t.Context(), 30, "shop", bucket) }()
	clock.WaitForTimers(1)
	clock.Advance(3 * time.Second) // 25 permits need 2.5 s, and the random delay needs some time
	require.NoError(t, <-done)
}

func TestShadowRuleDeniesNobody(t *testing.T) {
	c := clienttest.New(t, limits, nil)
	for range 3 {
		require.NoError(t, c.Acquire(t.Context(), "shop", client.NewDescriptor("shadow", "x")))
	}
}

func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t, limits, nil)
		require.NoError(t, c.AcquireN(t.Context(), 10, "shop", tenant))
		var callerGroup sync.WaitGroup
		for range 3 {
			callerGroup.Go(func() { assert.ErrorIs(t, c.Acquire(t.Context(), "shop", tenant), client.ErrClosed) })
		}
		synctest.Wait()
		require.NoError(t, c.Close())
		callerGroup.Wait()
	})
}
