package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/seed-81f232ab/rls/backend"
	"github.com/seed-81f232ab/rls/limit"
)

func newLimit(t require.TestingT, s limit.Spec) *limit.Limit {
	l, err := limit.New(s)
	require.NoError(t, err)
	return l
}

// admission has the number of hits that were admitted at a time.
type admission struct{ time, n int64 }

// scenario has replicas that share counters, and remembers the admitted hits.
type scenario struct {
	t          *rapid.T
	counters   *sharedCounters
	limit      *limit.Limit
	replicas   []*replica
	admissions []admission
}

func (s *scenario) drawReplica() int {
	return rapid.IntRange(0, len(s.replicas)-1).Draw(s.t, "replica")
}

// step makes a random event happen to a random replica.
func (s *scenario) step() {
	i := s.drawReplica()
	r := s.replicas[i]
	switch rapid.SampledFrom([]string{
		"hits", "hits", "hits", "hits", "work", "work", "time", "time", "window", "sweep", "close", "crash", "outage",
	}).Draw(s.t, "event") {
	case "hits":
		for range rapid.IntRange(1, 40).Draw(s.t, "calls") {
			n := rapid.SampledFrom([]int64{1, 1, 1, 2, 5, s.limit.Capacity()}).Draw(s.t, "n")
			if a := r.takeHits(s.counters, s.limit, n); a.Err == nil && a.Allowed {
				s.admissions = append(s.admissions, admission{s.counters.now.UnixMicro(), n})
			}
			s.counters.now = s.counters.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(s.t, "micros")) * time.Microsecond)
		}
	case "work":
		r.runBackground()
	case "time":
		s.counters.now = s.counters.now.Add(time.Duration(rapid.Int64Range(0, s.limit.Period()/4).Draw(s.t, "micros")) * time.Microsecond)
	case "window":
		s.counters.now = s.counters.now.Truncate(time.Duration(s.limit.Period()) * time.Microsecond).
			Add(time.Duration(s.limit.Period()+rapid.Int64Range(-2, 2).Draw(s.t, "micros")) * time.Microsecond)
	case "sweep":
		r.Sweep(s.counters.now)
	case "close":
		r.runBackground()
		r.closeAt(s.counters.now)
		s.replicas[i] = newReplica(s.counters)
	case "crash": // the background work that waits is lost
		s.replicas[i] = newReplica(s.counters)
	case "outage":
		s.counters.err, s.counters.chargesBeforeError = nil, false
		if rapid.Bool().Draw(s.t, "down") {
			s.counters.err, s.counters.chargesBeforeError = errDown, rapid.Bool().Draw(s.t, "charged")
		}
	}
}

func startScenario(t *rapid.T, algorithm limit.Algorithm) *scenario {
	s := &scenario{t: t, counters: newSharedCounters()}
	s.limit = newLimit(t, limit.Spec{
		Algorithm: algorithm, Requests: rapid.SampledFrom([]uint32{20, 100, 1000}).Draw(t, "requests"), Unit: limit.Second,
		Lease: true, LeaseWaste: rapid.SampledFrom([]float64{0.1, 0.5}).Draw(t, "waste"),
	})
	for range rapid.IntRange(1, 4).Draw(t, "replicas") {
		s.replicas = append(s.replicas, newReplica(s.counters))
	}
	return s
}

func TestFixedWindowChargesEachAdmittedHitAndKeepsTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := startScenario(t, limit.FixedWindow)
		for range 40 {
			s.step()
			admittedByWindow := map[int64]int64{}
			for _, a := range s.admissions {
				admittedByWindow[a.time-a.time%s.limit.Period()] += a.n
			}
			for window, admittedHits := range admittedByWindow {
				chargedHits := s.counters.counts[counterName(&backend.Hit{Limit: s.limit, Key: []byte("k")}, window)]
				assert.LessOrEqual(t, admittedHits, s.limit.Max())
				assert.LessOrEqual(t, admittedHits, chargedHits, "each admitted hit is charged")
			}
		}
	})
}

func TestTokenBucketNeverAdmitsMoreThanItsBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := startScenario(t, limit.TokenBucket)
		for range 40 {
			s.step()
		}
		maxBurst := s.limit.Capacity() + s.limit.MaxLeasePermits()
		for i, firstAdmission := range s.admissions {
			sum := int64(0)
			for _, a := range s.admissions[i:] {
				sum += a.n
				assert.LessOrEqual(t, sum, maxBurst+s.limit.RefilledTokens(a.time-firstAdmission.time))
			}
		}
	})
}

// If no call fails and no denied hit is charged, each charge beyond the admitted hits is a permit that is held
// or lost.
func TestAllReplicasTogetherHoldAtMostTheBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := startScenario(t, limit.FixedWindow)
		spec := s.limit.Spec
		spec.ChargeDenied = false
		s.limit = newLimit(t, spec)
		for range 40 {
			s.step()
			if s.counters.chargesBeforeError { // hits of failed calls can be charged
				s.counters.err, s.counters.chargesBeforeError = nil, false
			}
			now := s.counters.now.UnixMicro()
			admittedHits := int64(0)
			for _, a := range s.admissions {
				if a.time/s.limit.Period() == now/s.limit.Period() {
					admittedHits += a.n
				}
			}
			unusedPermits := s.counters.count(s.limit, "k") - admittedHits
			assert.LessOrEqual(t, unusedPermits, s.limit.MaxLeasePermits())
			assert.GreaterOrEqual(t, unusedPermits, int64(0))
		}
	})
}
