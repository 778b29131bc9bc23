package backendtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

// testChangedAlgorithm checks the bound of docs/limits.md: in the window of the change, the
// admitted hits are at most the sum of the old and the new limit.
func testChangedAlgorithm(t *testing.T, l backend.Limiter) {
	for _, oldLimit := range perHour(t, l, 10, false) {
		for _, newLimit := range perHour(t, l, 20, false) {
			if oldLimit.Algorithm == newLimit.Algorithm {
				continue
			}
			t.Run(fmt.Sprintf("%s to %s", oldLimit.Algorithm, newLimit.Algorithm), func(t *testing.T) {
				start, key := Start(), Key()
				countAdmitted := func(lim *limit.Limit) (n int) {
					for range 50 {
						if take(t, l, start, 0, backend.Hit{Key: key, Limit: lim, N: 1})[0].Allowed {
							n++
						}
					}
					return n
				}
				assert.Equal(t, 10, countAdmitted(oldLimit))
				assert.Equal(t, 20, countAdmitted(newLimit), "the new counter starts with nothing spent")
				assert.Zero(t, countAdmitted(oldLimit), "the old counter has not changed")
				assert.Zero(t, countAdmitted(newLimit))
			})
		}
	}
}

// testChangedBuckets changes the rate and the burst of a bucket, with and without a lease. The number of
// spent tokens stays.
func testChangedBuckets(t *testing.T, l backend.Limiter) {
	for _, c := range []struct{ requests, burst, newRequests, newBurst uint32 }{
		{10, 50, 200, 50},
		{200, 50, 10, 50},
		{10, 50, 50, 50},
		{50, 50, 10, 50},
		{10, 50, 10, 500},
		{10, 50, 10, 40},
		{10, 50, 200, 500},
		{10, 50, 200, 40},
		{200, 50, 10, 500},
		{200, 50, 10, 40},
		{7, 50, 11, 50},
		{11, 50, 7, 50},
	} {
		for _, waste := range []float64{0, 0.1} {
			bucket := func(requests, burst uint32) *limit.Limit {
				return NewLimit(t, limit.Spec{Algorithm: limit.TokenBucket, Unit: limit.Month, Requests: requests, Burst: burst, Lease: waste > 0, LeaseWaste: waste})
			}
			oldLimit, newLimit := bucket(c.requests, c.burst), bucket(c.newRequests, c.newBurst)
			t.Run(fmt.Sprintf("%v to %v, lease_waste %v", oldLimit, newLimit, waste), func(t *testing.T) {
				hit := backend.Hit{Key: Key(), Limit: oldLimit, N: 4}
				assertTake(t, l, Start(), hit, ok, oldLimit.Capacity()-4)
				hit.Limit, hit.N = newLimit, 0
				assertTake(t, l, Start(), hit, ok, newLimit.Capacity()-4)
				hit.N = 3
				assertTake(t, l, Start(), hit, ok, newLimit.Capacity()-7)
				hit.Limit, hit.N = oldLimit, 0
				assertTake(t, l, Start(), hit, ok, oldLimit.Capacity()-7)
			})
		}
	}
}

// testReloads charges one key for less than an hour, under limits per hour that change
// at random. Each algorithm has its own counter. Whatever the sequence of changes, a counter admits at most as many hits
// as the largest limit that it has had.
//
// There are two exceptions. If a reload lowers the capacity of a token bucket with a burst, or of a sliding log that
// charges denied hits, the counter may forget hits: at most the old capacity minus the new one. A sequence of changes may
// have one of the exceptions, both or none.
func testReloads(t *testing.T, l backend.Limiter) {
	const maxRequests = 20
	type counterHistory struct{ maxCapacity, maxRequestsPerHour, lastCapacity, capacityDecrease, refundedHits, admittedHits int64 }
	rapid.Check(t, func(rt *rapid.T) {
		start, key, elapsed := Start(), Key(), time.Duration(0)
		hasBursts, chargesDenied := rapid.Bool().Draw(rt, "bursts"), rapid.Bool().Draw(rt, "some charge denied hits")
		mayForgetHits := map[limit.Algorithm]bool{limit.TokenBucket: hasBursts, limit.SlidingLog: chargesDenied}
		counters := map[string]*counterHistory{}
		var currentLimit *limit.Limit
		take := func(n int64) limit.Result {
			return take(rt, l, start, elapsed, backend.Hit{Key: key, Limit: currentLimit, N: n})[0].Result
		}
		reload := func(rt *rapid.T) {
			s := limit.Spec{
				Unit:         limit.Hour,
				Algorithm:    rapid.SampledFrom(algorithmsOf(l)).Draw(rt, "algorithm"),
				Requests:     rapid.Uint32Range(0, maxRequests).Draw(rt, "requests"),
				ChargeDenied: chargesDenied && rapid.Bool().Draw(rt, "charge denied"),
			}
			if hasBursts && s.Algorithm.UsesBurst() {
				s.Burst = rapid.Uint32Range(0, 40).Draw(rt, "burst")
			}
			currentLimit = NewLimit(rt, s)
			c := counters[currentLimit.Tag()]
			if c == nil {
				c = &counterHistory{}
				counters[currentLimit.Tag()] = c
			}
			if mayForgetHits[s.Algorithm] {
				c.capacityDecrease += max(c.lastCapacity-currentLimit.Capacity(), 0)
			}
			c.lastCapacity = currentLimit.Capacity()
			c.maxCapacity, c.maxRequestsPerHour = max(c.maxCapacity, c.lastCapacity), max(c.maxRequestsPerHour, currentLimit.Max())
		}
		reload(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"reload": reload,
			"wait": func(rt *rapid.T) {
				elapsed = min(elapsed+time.Duration(rapid.IntRange(0, 120).Draw(rt, "seconds"))*time.Second, 59*time.Minute)
			},
			"take": func(rt *rapid.T) {
				c, n := counters[currentLimit.Tag()], rapid.Int64Range(1, 8).Draw(rt, "n")
				if take(n).Allowed {
					c.admittedHits += n
				}
				bound := c.maxCapacity + c.capacityDecrease + c.refundedHits
				if currentLimit.Algorithm == limit.TokenBucket {
					bound += (c.maxRequestsPerHour*elapsed.Microseconds() + time.Hour.Microseconds() - 1) / time.Hour.Microseconds()
				}
				require.LessOrEqual(rt, c.admittedHits, bound, currentLimit.Tag())
			},
			"refund": func(rt *rapid.T) {
				n := rapid.Int64Range(1, 8).Draw(rt, "n")
				take(-n)
				// If the rate changes, a bucket keeps the share that is spent, so a refunded hit can become several hits.
				if currentLimit.Algorithm == limit.TokenBucket {
					n = n * maxRequests / max(currentLimit.Max(), 1)
				}
				counters[currentLimit.Tag()].refundedHits += n
			},
			"reset": func(rt *rapid.T) {
				take(-limit.MaxHits)
				require.Equal(rt, currentLimit.Capacity(), take(0).Remaining)
				counters[currentLimit.Tag()] = &counterHistory{maxCapacity: currentLimit.Capacity(), maxRequestsPerHour: currentLimit.Max(), lastCapacity: currentLimit.Capacity()}
			},
		})
	})
}
